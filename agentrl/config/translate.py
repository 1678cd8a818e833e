"""Rewrites what was written for verl: names of keys, spellings of values, and keys that agentrl does not have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from agentrl.config import megatron
from agentrl.config.base import Section
from agentrl.config.problems import show_value
from agentrl.config.schema import find_field, is_free, list_item
from agentrl.config.value_tree import get_value, leaves, set_value
from agentrl.config.verl_keys import (
    MISPLACED,
    SPELLINGS,
    VERL_KEYS,
    VERL_VALUES,
    Answer,
    Fallback,
    Foreign,
    Harmless,
    Only,
    Renamed,
)
from agentrl.yaml_reader import parse_flow, parse_scalar

_EMPTY = Harmless("the section is empty")
_SECTIONS = {
    ".".join(parts[:end]) for pattern in VERL_KEYS for parts in [pattern.split(".")] for end in range(1, len(parts))
} - {"*"}
"""Patterns of the sections around verl's keys."""
_LIST = re.compile(r"\[.*\]", re.DOTALL)
_QUOTED_LIST = re.compile(r"""\[\s*(["'].*["']\s*,?\s*)?\]""", re.DOTALL)


def translate(
    tree: dict[str, Any], model: type[Section], where: str = ""
) -> tuple[dict[str, Any], dict[str, str], list[Foreign]]:
    """Rewrite the keys of verl in one file or override.

    Args:
        tree: plain values as they were written.
        model: what agentrl knows.
        where: the file, for errors; empty: an override.

    Returns:
        The values under agentrl's keys; new names by the user's; keys that agentrl lacks, for `settle_foreign`.
    """
    out: dict[str, Any] = {}
    renamed: dict[str, str] = {}
    foreign: list[Foreign] = []
    given: dict[str, tuple[str, Any]] = {}
    for key, value in leaves(tree):
        new, answer = _answer(model, key)
        if answer is None and new in MISPLACED and (number := _number(value)) is not None:
            value, answer = number, MISPLACED[new]
        if value in (None, {}) and answer is None and find_field(model, new) is None and _is_section(key):
            answer = _EMPTY  # `global_profiler: null`
        if answer is not None:
            foreign.append(Foreign(new, value, answer, where, key))
            continue
        value = _spelt(model, new, value)
        other, before = given.setdefault(new, (key, value))
        if other != key and before != value:  # {algorithm.group_size: 4, actor_rollout_ref.rollout.n: 8}
            twice = f"{other}, another name of it, is {show_value(before)}: give one of them"
            foreign.append(Foreign(key, value, Only((), twice), where))
            continue
        set_value(out, new, value)
        if new != key:
            renamed[key] = new
    return out, renamed, foreign


def translate_values(tree: dict[str, Any]) -> dict[str, str]:
    """Replace values of verl in a tree of agentrl's keys; returns a note by key, empty where the value stays."""
    notes: dict[str, str] = {}
    for key in VERL_VALUES.keys() & {key for key, _ in leaves(tree)}:
        value = get_value(tree, key)
        new, reason = VERL_VALUES[key].get(value, (value, "")) if isinstance(value, str) else (value, "")
        notes[key] = f"{key}: {value} is read as {new}: {reason}" if reason else ""
        set_value(tree, key, new)
    return notes


def settle_foreign(
    foreign: Mapping[str, Foreign], own: Set[str]
) -> tuple[dict[str, Foreign], dict[str, str], list[str]]:
    """What verl's keys without a place here mean, once every file and override is read.

    Args:
        foreign: by key, as each was given last.
        own: agentrl's keys that were given.

    Returns:
        By agentrl's key, the values that count there; for keys without effect their reasons; problems.
    """
    used: dict[str, Foreign] = {}
    idle: dict[str, str] = {}
    refused: dict[tuple[str, str], list[Foreign]] = {}
    for key, given in foreign.items():
        answer, value, name = given.answer, given.value, given.written or key
        if isinstance(answer, Harmless):
            idle[name] = answer.note
        elif isinstance(answer, Fallback):
            to = _renamed(key, _pattern_for(key) or key, answer.to)
            if to in own:
                idle[name] = f"{to} is given"
            else:
                used[to] = given
        elif (isinstance(value, str) and value.startswith("${")) or any(_same(value, told) for told in answer.told):
            idle[name] = answer.reason
        elif not any(_same(value, fine) for fine in answer.allowed):
            switch = foreign.get(answer.switch or "")
            if switch is not None and switch.value is False:
                idle[name] = f"{switch.written or switch.key} is false"
            else:
                reason = megatron.REASON if value == megatron.STRATEGY else answer.reason
                refused.setdefault((given.where, reason), []).append(given)
    return used, idle, list(_refusals(refused))


def _refusals(refused: Mapping[tuple[str, str], list[Foreign]]) -> Iterator[str]:
    """One sentence per reason: `actor.lora.enable and actor.lora.r: got true and 16, but LoRA is not supported`."""
    sections: dict[str, list[Foreign]] = {}
    for (_, reason), keys in refused.items():
        if reason != megatron.REASON:
            yield _refusal(keys, reason)
            continue
        for given in keys:  # wherever they stand: what to do instead depends on all of a section
            sections.setdefault(megatron.megatron_section(given.key), []).append(given)
    for section, keys in sections.items():
        yield _refusal(keys, megatron.instead(section, {given.key: given.value for given in keys}))


def _refusal(keys: list[Foreign], reason: str) -> str:
    where = keys[0].where
    names = " and ".join(given.written or given.key for given in keys)
    values = " and ".join(show_value(given.value) for given in keys)
    return f"{where}{': ' if where else ''}{names}: got {values}, but {reason}"


def _answer(model: type[Section], key: str) -> tuple[str, Fallback | Harmless | Only | None]:
    """The key's name here or in the table, and the answer for the user if agentrl has no such key."""
    table = answers_for(model)
    while not (find_field(model, key) is not None or is_free(model, key)):
        asked, pattern = key, _pattern_for(key, table)
        if pattern is None:
            asked = model.in_training(key)
            pattern = _pattern_for(asked, table)
        answer = table[pattern] if pattern is not None else None
        if answer is not None and not isinstance(answer, Renamed):
            return key, answer
        new = model.from_training(asked if pattern is None or answer is None else _renamed(asked, pattern, answer.to))
        if new == key:
            break
        key = new
    return key, None


def is_known(key: str, model: type[Section]) -> bool:
    """Whether a key, or a section with it, is agentrl's or verl's."""
    new, answer = _answer(model, key)
    return answer is not None or find_field(model, new) is not None or is_free(model, new) or _is_section(key)


def known_name(key: str, model: type[Section]) -> str:
    """A key under agentrl's name: `actor.ulysses_sequence_parallel_size` is `actor.fsdp_config.…`; else as it is."""
    return _answer(model, key)[0]


def _is_section(key: str) -> bool:
    """Whether verl has a section of this name that agentrl lacks."""
    return any(fnmatchcase(key, section) for section in _SECTIONS)


@cache
def answers_for(model: type[Section]) -> Mapping[str, Answer]:
    """The answers for a model: its own (`foreign_keys`) before those for every model."""
    return {**model.foreign_keys, **VERL_KEYS}


def _spelt(model: type[Section], key: str, value: Any) -> Any:
    """A value as agentrl spells it; a list that was written as text (`logger: '["wandb"]'`) is a list."""
    for pattern, spellings in SPELLINGS.items():
        if fnmatchcase(model.in_training(key), pattern):
            value = next((ours for theirs, ours in spellings if _same(value, theirs)), value)
    field = find_field(model, key)
    item = None if field is None else list_item(field)
    # `[END]` may be a stop string and `[ab]*.parquet` a glob: a list of texts has quotes.
    if item is None or not isinstance(value, str) or not (_QUOTED_LIST if item is str else _LIST).fullmatch(value):
        return value
    try:
        return parse_flow(value)
    except ValueError:
        return value


def _number(value: Any) -> float | None:
    """A number, also one in text: an override's value stays text where its key wants text."""
    plain = parse_scalar(value) if isinstance(value, str) else value
    return plain if isinstance(plain, int | float) and not isinstance(plain, bool) else None


def _same(value: Any, fine: Any) -> bool:
    """Whether two values are equal and both or neither are booleans: 1 equals 1.0, but not `true`."""
    if isinstance(fine, frozenset):
        return isinstance(value, list) and all(isinstance(item, str) for item in value) and frozenset(value) == fine
    return bool(value == fine) and isinstance(value, bool) == isinstance(fine, bool)


def _pattern_for(key: str, table: Mapping[str, Answer] = VERL_KEYS) -> str | None:
    if key in table:
        return key
    return next((pattern for pattern in table if fnmatchcase(key, pattern)), None)


def _renamed(key: str, pattern: str, to: str) -> str:
    """The new key; a `*` at the same end of both patterns stands for the same text."""
    if to.startswith("*"):
        return key.removesuffix(pattern[1:]) + to[1:]
    return to[:-1] + key.removeprefix(pattern[:-1]) if to.endswith("*") else to
