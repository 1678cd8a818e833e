"""Rewrites what was written for verl: names of keys, spellings of values, and keys that agentrl does not have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from fnmatch import fnmatchcase
from typing import Any

from agentrl.config.base import Section
from agentrl.config.problems import show_value
from agentrl.config.schema import find_field, is_free, list_item
from agentrl.config.value_tree import leaves, set_value
from agentrl.config.verl_keys import MISPLACED, SPELLINGS, VERL_KEYS, Fallback, Foreign, Harmless, Only, Renamed
from agentrl.yaml_reader import parse_flow, parse_scalar

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
                refused.setdefault((given.where, answer.reason), []).append(given)
    return used, idle, list(_refusals(refused))


def _refusals(refused: Mapping[tuple[str, str], list[Foreign]]) -> Iterator[str]:
    """One sentence per reason: `actor.lora.enable and actor.lora.r: got true and 16, but LoRA is not supported`."""
    for (where, reason), keys in refused.items():
        names = " and ".join(given.written or given.key for given in keys)
        values = " and ".join(show_value(given.value) for given in keys)
        yield f"{where}{': ' if where else ''}{names}: got {values}, but {reason}"


def _answer(model: type[Section], key: str) -> tuple[str, Fallback | Harmless | Only | None]:
    """The key's name here or in `VERL_KEYS`, and the answer for the user if agentrl has no such key."""
    while not (find_field(model, key) is not None or is_free(model, key)):
        pattern = _pattern_for(key)
        if pattern is None:
            break
        answer = VERL_KEYS[pattern]
        if not isinstance(answer, Renamed):
            return key, answer
        key = _renamed(key, pattern, answer.to)
    return key, None


def _spelt(model: type[Section], key: str, value: Any) -> Any:
    """A value as agentrl spells it; a list that was written as text (`logger: '["wandb"]'`) is a list."""
    for pattern, spellings in SPELLINGS.items():
        if fnmatchcase(key, pattern):
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


def _pattern_for(key: str) -> str | None:
    if key in VERL_KEYS:
        return key
    return next((pattern for pattern in VERL_KEYS if fnmatchcase(key, pattern)), None)


def _renamed(key: str, pattern: str, to: str) -> str:
    """The new key; a `*` at the same end of both patterns stands for the same text."""
    if to.startswith("*"):
        return key.removesuffix(pattern[1:]) + to[1:]
    return to[:-1] + key.removeprefix(pattern[:-1]) if to.endswith("*") else to
