"""The pictures of a run's rows: counted, limited, and refused where a part of the run does not see them."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.chat.vision import FAMILIES, Vision
from agentrl.config import RunConfig
from agentrl.errors import ConfigError, DataError
from agentrl.pictures import pictures_in
from agentrl.types import Sample

_ENGINES = ("auto", "embedded", "sglang")


class ShownPictures:
    """Looks at every row.

    Args:
        config: the run; None: of a run without pictures.
        vision: how its model sees pictures; None: it reads text only.
    """

    def __init__(self, config: RunConfig | None = None, vision: Vision | None = None) -> None:
        self._config, self._vision = config, vision
        self.rows = self.pictures = self.most = self.longest = 0
        """Rows with pictures, their pictures, most of one row, and tokens of the longest prompt among them."""

    def see(self, sample: Sample, tokens: int, place: str) -> None:
        """Count a row's pictures.

        Args:
            sample: the row.
            tokens: of its prompt, placeholders expanded.
            place: file and row, for an error.

        Raises:
            DataError: it has more than `rollout.limit_images`.
        """
        count = len(pictures_in(sample.prompt))
        if not count or self._config is None:
            return
        limit = self._config.actor_rollout_ref.rollout.limit_images
        if limit is not None and count > limit:
            wanted = f"at most {limit} (actor_rollout_ref.rollout.limit_images)"
            raise DataError(place, None, self._config.data.image_key, f"{count} pictures", wanted)
        self.rows, self.pictures = self.rows + 1, self.pictures + count
        self.most, self.longest = max(self.most, count), max(self.longest, tokens)

    @property
    def sentence(self) -> str | None:
        """For the plan of a run; None: no row has pictures."""
        if not self.rows:
            return None
        return (
            f"{self.pictures} in {self.rows} rows, up to {self.most} in a row; prompts with pictures take up to "
            f"{self.longest} tokens"
        )

    def check(self) -> None:
        """Refuse what does not work with a model that sees pictures, before anything is started.

        Raises:
            ConfigError: one line for each key.
        """
        problems = [] if self._vision is None or self._config is None else list(self._problems(self._config))
        if problems:
            raise ConfigError(problems)

    def _problems(self, config: RunConfig) -> Iterator[str]:
        policy = config.actor_rollout_ref
        name = policy.rollout.name
        if name not in _ENGINES:
            yield f"actor_rollout_ref.rollout.name: got {name}, which shows no pictures here: use embedded or sglang"
        sections = {
            "actor_rollout_ref.actor": policy.actor.fsdp_config,
            **({"actor_rollout_ref.ref": policy.ref.fsdp_config} if config.needs_reference else {}),
            **({"critic": config.critic.fsdp_config} if config.needs_critic else {}),
        }
        for key, fsdp in sections.items():
            for axis in ("ulysses_sequence_parallel_size", "tensor_parallel_size"):
                if getattr(fsdp, axis) > 1:
                    yield (
                        f"{key}.fsdp_config.{axis}: got {getattr(fsdp, axis)}, but the model sees pictures "
                        f"({', '.join(FAMILIES)}), and each rank must read whole rows with their pictures: set 1"
                    )
        if getattr(policy.model, "lora_rank", 0):
            yield "actor_rollout_ref.model.lora_rank: not tried with models that see pictures: set 0"
        if config.reward_model.enable and self.rows:
            yield "reward_model.enable: the reward model reads text only, but rows have pictures: set false"
