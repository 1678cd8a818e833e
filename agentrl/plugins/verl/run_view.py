"""The run as loops and reward managers written for verl see it: its configuration and its tokenizer."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from agentrl.errors import PluginError, suggest
from agentrl.interfaces import Renderer
from agentrl.types import JsonDict, LoopLimits


class ConfigView(Mapping[str, Any]):
    """A section of the configuration that reads as attributes, as items and with `get`, like an OmegaConf mapping.

    Args:
        section: a section, or a mapping.
        path: its dotted path.
        own: values by dotted path that stand in for those of the configuration.
    """

    def __init__(self, section: Any, path: str = "", own: Mapping[str, Any] | None = None) -> None:
        self._section = section
        self._path = path
        self._own = own or {}

    def __getattr__(self, name: str) -> Any:
        """The value of a key.

        Raises:
            AttributeError: names the nearest key.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            where = f"{self._path}.{name}".lstrip(".")
            raise AttributeError(f"the run's configuration has no key '{where}'.{suggest(name, self)}") from None

    def __getitem__(self, name: str) -> Any:
        path = f"{self._path}.{name}".lstrip(".")
        if path in self._own:
            return self._own[path]
        value = self._section[name] if isinstance(self._section, Mapping) else self._field(name)
        return self._seen(value, path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._section if isinstance(self._section, Mapping) else type(self._section).model_fields)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _field(self, name: str) -> Any:
        if name not in type(self._section).model_fields:
            raise KeyError(name)
        return getattr(self._section, name)

    def _seen(self, value: Any, path: str) -> Any:
        if isinstance(value, Mapping) or hasattr(type(value), "model_fields"):
            return ConfigView(value, path, self._own)
        return [self._seen(item, path) for item in value] if isinstance(value, list) else value


class ConfigHolder:
    """verl's `trainer_config`: the configuration as `config`.

    Args:
        config: a view of it.
    """

    def __init__(self, config: ConfigView) -> None:
        self.config = config


def view_of(config: Any, limits: LoopLimits) -> ConfigView:
    """The run's configuration, with the lengths that count; outside a run only these and the limits of turns."""
    lengths = {"prompt_length": limits.prompt_length, "response_length": limits.response_length}
    if config is None:
        turns = {name: getattr(limits, name) for name in LoopLimits.__dataclass_fields__}
        config = {
            "data": {**{f"max_{name}": value for name, value in lengths.items()}, "apply_chat_template_kwargs": {}},
            "actor_rollout_ref": {"rollout": {**lengths, "multi_turn": turns}, "model": {}},
        }
    return ConfigView(config, own={f"actor_rollout_ref.rollout.{name}": value for name, value in lengths.items()})


def tokenizer_of(renderer: Renderer) -> Any:
    """A renderer's tokenizer with the run's chat template, whose `apply_chat_template` returns a list of ids.

    Raises:
        PluginError: the renderer has none.
    """
    if not hasattr(renderer, "tokenizer"):
        raise PluginError(f"{type(renderer).__name__} has no tokenizer, which a plug-in written for verl needs")
    return _as_in_verl(renderer.tokenizer, getattr(renderer, "template", None))


@lru_cache(maxsize=8)
def _as_in_verl(original: Any, template: str | None) -> Any:
    tokenizer: Any = copy.copy(original)
    tokenizer.chat_template = template or tokenizer.chat_template
    apply = tokenizer.apply_chat_template

    def apply_chat_template(conversation: Any, *args: Any, **kwargs: Any) -> Any:
        options: JsonDict = {
            "return_dict": False,
            **kwargs,
        }  # transformers 5 returns a mapping unless it is told not to
        return apply(conversation, *args, **options)

    tokenizer.apply_chat_template = apply_chat_template
    return tokenizer
