"""Finds which of the keys that a user wrote cannot act in the run. `idle_keys` lists the conditions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import translate
from functools import cache
from typing import Any, Generic, TypeVar

from agentrl.config.base import Section

M = TypeVar("M", bound=Section)


@dataclass(frozen=True, slots=True)
class Idle(Generic[M]):
    """Keys that do nothing under a condition.

    Attributes:
        keys: patterns of dotted keys; `*` stands for any text.
        when: the condition.
        reason: completes "KEY has no effect here: "; `{section.key}` stands for a value.
        but: keys that the patterns do not mean.
    """

    keys: tuple[str, ...]
    when: Callable[[M], bool]
    reason: str
    but: tuple[str, ...] = ()

    def means(self, key: str) -> bool:
        """Whether a key is one of these."""
        return _fits(key, self.keys) and not _fits(key, self.but)

    def because(self, config: M) -> str:
        """The reason, with the values of this run."""
        return re.sub(r"\{([a-z_.]+)\}", lambda name: _shown(value_at(config, name[1])), self.reason)


def find_idle(config: M, keys: Iterable[str], table: Iterable[Idle[M]]) -> dict[str, str]:
    """Those of the keys that cannot act in this run, with the reason."""
    left, found = list(keys), {}
    for idle in table:
        meant = [key for key in left if idle.means(key)]
        if meant and idle.when(config):  # asked last: some conditions import torch to look for a GPU
            found.update(dict.fromkeys(meant, idle.because(config)))
            left = [key for key in left if key not in found]
    return found


def written_keys(config: Section, prefix: str = "") -> Iterator[str]:
    """Dotted keys that were given when the configuration was built, or assigned since."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, Section):
            yield from written_keys(value, f"{prefix}{name}.")
        elif name in config.model_fields_set:
            yield f"{prefix}{name}"


def asks_for_nothing(config: Section, key: str) -> bool:
    """Whether the key has its default, and that is off: null, false, 0 or empty."""
    *sections, name = key.split(".")
    for section in sections:
        config = getattr(config, section)
    value = getattr(config, name)
    return not value and bool(value == type(config).model_fields[name].get_default(call_default_factory=True))


def _fits(key: str, patterns: tuple[str, ...]) -> bool:
    return _any_of(patterns).match(key) is not None


@cache
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)) or "(?!)")


def value_at(config: Any, key: str) -> Any:
    """The value of a dotted key."""
    for name in key.split("."):
        config = getattr(config, name)
    return config


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
