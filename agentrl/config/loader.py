"""`load_config`: from recipe files and overrides to a checked `RunConfig`, or one error that lists all problems."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from agentrl.config.base import Section
from agentrl.config.checks import CHECKS
from agentrl.config.idle import Idle, asks_for_nothing, find_idle, written_keys
from agentrl.config.idle_keys import IDLE_KEYS
from agentrl.config.notes import idle_notes
from agentrl.config.problems import take_unknown, validate
from agentrl.config.recipe_files import DUMP_MARK, read_recipe
from agentrl.config.references import resolve_references
from agentrl.config.root import RunConfig
from agentrl.config.schema import field_key, find_field, section_of
from agentrl.config.value_tree import Tree, drop_value, get_value, leaves, set_value
from agentrl.errors import ConfigError

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Section)
Check = Callable[[M], Iterator[str]]


def load_config(recipe: str | Path | Mapping[str, Any] | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run recipe.

    Args:
        recipe: a YAML file, the name of a recipe in agentrl's `configs/`, or what such a file would hold as a mapping
            (also with dotted keys); None: only defaults and overrides.
        overrides: `section.key=value`, values by YAML's rules (`[a,b]`, null, true, 1e-6, quoted text); `+key=` means
            the same as `key=`.

    Returns:
        The checked configuration, with `${...}` replaced and paths resolved.

    Raises:
        ConfigError: lists every problem with its key, the given value, what is allowed and the nearest key.
    """
    config = load(recipe, overrides, RunConfig, CHECKS, IDLE_KEYS)
    _tell(config.choices)
    return config


def load(
    source: str | Path | Mapping[str, Any] | None,
    overrides: Sequence[str],
    model: type[M],
    checks: Sequence[Check[M]] = (),
    idle: Sequence[Idle[M]] = (),
) -> M:
    """As `load_config`, for any model and its checks."""
    if isinstance(overrides, str | Mapping):
        raise ConfigError(f"overrides: got {overrides!r:.200}, wanted a list such as ['trainer.seed=1']")
    recipe = read_recipe(source, list(overrides), model)
    problems = take_unknown(recipe.tree, model)
    given = list(dict.fromkeys(field_key(model, key) for key, _ in leaves(recipe.tree)))
    recipe.tree = _over_defaults(recipe.tree, given, model)
    resolve_references(recipe, model)
    config, wrong = _build(_written(recipe.tree, given, model), model)
    problems |= wrong
    told = tuple(line.partition(": ")[0] for line in recipe.problems)  # a reference that leads nowhere is no number too
    lines = recipe.problems + [line for key, line in problems.items() if key not in told]
    if config is not None:
        # A wrong value was replaced by its default. A check that complains about that default would only confuse.
        found = (line for check in checks for line in check(config))
        found = (line for line in found if line.partition(": ")[0] not in told)
        lines += [line for line in found if not any(key in line for key in problems)]
    reasons = dict(recipe.idle)
    if config is not None and not lines:
        own = [key for key in written_keys(config) if key in given and key not in recipe.shipped]
        idle_now = _idle(config, own, idle)
        reasons |= idle_now
        if isinstance(config, RunConfig):
            config.untold = [key for key in own if key not in idle_now]
    _tell([*recipe.told(), *idle_notes(reasons, [*given, *recipe.renamed, *recipe.foreign])])
    if lines or config is None:
        raise ConfigError(lines)
    return config


def check_run_config(config: RunConfig) -> None:
    """Check a configuration that was built in Python for impossible combinations; note keys that do nothing.

    Raises:
        ConfigError: lists all combinations.
    """
    config.choose()  # again: a key that decides may have been assigned since
    problems = [line for check in CHECKS for line in check(config)]
    if problems:
        raise ConfigError(problems)
    if config.untold is None:
        config.untold = list(written_keys(config))
        note_idle(config, IDLE_KEYS)
        _tell(config.choices)


def note_idle(config: RunConfig, table: Iterable[Idle[RunConfig]], parts: Mapping[str, str] | None = None) -> None:
    """Note the keys of a table that the user wrote, that cannot act and that no note has named.

    Args:
        config: the run.
        table: the conditions.
        parts: parts of keys that cannot act, with the reason.
    """
    untold = config.untold or []
    reasons = _idle(config, untold, table)
    own = {part: reason for part, reason in (parts or {}).items() if part.rpartition(".")[0] in untold}
    told = {*reasons, *(part.rpartition(".")[0] for part in own)}
    config.untold = [key for key in untold if key not in told]
    _tell(idle_notes(reasons | own, [*written_keys(config), *own]))


def dump_config(config: Section) -> str:
    """The whole configuration as YAML that `load_config` reads back."""
    return DUMP_MARK + yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)


def _idle(config: M, keys: Sequence[str], table: Iterable[Idle[M]]) -> dict[str, str]:
    """The keys that a user wrote, which ask for something, and that cannot act."""
    return find_idle(config, (key for key in keys if not asks_for_nothing(config, key)), table)


def _tell(notes: Sequence[str]) -> None:
    for note in dict.fromkeys(notes):
        logger.warning("%s", note)


def _written(tree: Tree, given: Sequence[str], model: type[Section]) -> Tree:
    """What the user gave of a resolved tree: only that counts as set. A default with `${...}` in it is given too."""
    written: Tree = {}
    for key in given:  # `critic.optim: ${actor_rollout_ref.actor.optim}` has become a section
        set_value(written, key, get_value(tree, key))
    for key, default in leaves(model.model_construct().model_dump(mode="json")):
        if isinstance(default, str) and "${" in default:
            set_value(written, key, get_value(tree, key))
    return written


def _over_defaults(tree: Tree, given: Sequence[str], model: type[Section]) -> Tree:
    """Merge the user's values over those of all other keys, so that `${...}` may name either."""
    plain: Tree = {}
    for key in given:
        value = get_value(tree, key)
        if "${" not in repr(value):
            set_value(plain, key, copy.deepcopy(value))
    draft, _ = _build(plain, model)
    # Not the plain defaults: `${actor_rollout_ref.rollout.n}` is 8 with grpo. `model_construct` returns defaults even
    # of a model whose required keys are still missing.
    merged: Tree = (draft or model.model_construct()).model_dump(mode="json")
    for key, value in leaves(tree):
        field = find_field(model, key)
        if field is None or section_of(field) is None or value != {}:  # `trainer: {}` says nothing
            set_value(merged, key, copy.deepcopy(value))
    return merged


def _build(tree: Tree, model: type[M]) -> tuple[M | None, dict[str, str]]:
    """Build the model, with defaults in place of wrong values, so that the checks can still look at the rest."""
    problems: dict[str, str] = {}
    while True:
        config, wrong = validate(tree, model)
        if config is not None or not wrong.keys() - problems.keys():
            return config, problems | wrong  # type: ignore[return-value]
        problems |= wrong
        for key in wrong:
            drop_value(tree, key)
