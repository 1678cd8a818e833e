"""The pictures of a run's rows: counted, limited, and refused where a part of the run does not see them."""

from __future__ import annotations

from agentrl.chat.vision import Vision
from agentrl.config import RunConfig
from agentrl.errors import ConfigError, DataError
from agentrl.inference.sglang import resolve_engine
from agentrl.pictures import pictures_in
from agentrl.types import Sample

_ENGINES = ("embedded", "sglang")


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
        """Refuse what does not see the rows' pictures.

        Raises:
            ConfigError: one line for each key.
        """
        if self.rows and self._config is not None and self._config.reward_model.enable:
            raise ConfigError(
                "reward_model.enable: the reward model reads text only, but rows have pictures: set false"
            )


def check_seeing_model(config: RunConfig, vision: Vision | None) -> None:
    """Refuse what does not work with a model that sees pictures, before anything is loaded.

    Raises:
        ConfigError: one line for each key.
    """
    problems = []
    engine = resolve_engine(config)
    if engine not in _ENGINES:
        problems.append(
            f"actor_rollout_ref.rollout.name: got {engine}, which shows no pictures here: use embedded or sglang"
        )
    if config.actor_rollout_ref.model.adapts:
        problems.append("actor_rollout_ref.model.lora_rank: adapters are not tried on models that see pictures: set 0")
    if vision is not None and problems:
        raise ConfigError(problems)
