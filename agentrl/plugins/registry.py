"""Find a plug-in by its registered name, its entry point, its dotted path or its file.

::

    @register("weather")                                   # the kind follows from the base class
    class Weather(BaseTool): ...

    resolve("tools", "weather")                            # registered name or entry point
    resolve("tools", "my_package.tools.Weather")           # dotted path
    resolve("tools", "my_tools/weather.py:Weather")        # file

A package offers names to every run with the entry-point groups `agentrl.agent_loops`, `agentrl.tools`,
`agentrl.interactions`, `agentrl.rewards`, `agentrl.tool_parsers`, `agentrl.advantages` and `agentrl.policy_losses`.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar, get_args

from agentrl.errors import PluginError, suggest
from agentrl.interfaces import AgentLoopBase, BaseInteraction, BaseTool, RewardManager, ToolParser
from agentrl.plugins.plugin_files import IMPORT_ERRORS, import_problem, load_file
from agentrl.plugins.verl import import_hook
from agentrl.plugins.verl.loops import is_verl_loop

logger = logging.getLogger(__name__)

Kind = Literal["agent_loops", "tools", "interactions", "rewards", "tool_parsers", "advantages", "policy_losses"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_BASES: tuple[tuple[type, Kind], ...] = (
    (AgentLoopBase, "agent_loops"),
    (BaseTool, "tools"),
    (BaseInteraction, "interactions"),
    (RewardManager, "rewards"),
    (ToolParser, "tool_parsers"),
)
_LABELS: dict[Kind, str] = {
    "agent_loops": "agent loop",
    "tools": "tool",
    "interactions": "interaction",
    "rewards": "reward manager or score function",
    "tool_parsers": "tool parser (`multi_turn.format`)",
    "advantages": "advantage estimator (`algorithm.adv_estimator`)",
    "policy_losses": "policy loss (`actor.policy_loss`)",
}
_registry: dict[Kind, dict[str, Any]] = {kind: {} for kind in KINDS}
T = TypeVar("T")


def register(name: str, kind: Kind | None = None) -> Callable[[T], T]:
    """Register a class or function under a name.

    Args:
        name: the name in YAML and in dataset rows.
        kind: its kind; None: that of the base class (required for a function).

    Raises:
        PluginError: the kind cannot be recognised, or another object has the name.
    """

    def decorate(plugin: T) -> T:
        found = kind if kind is not None else _kind_of(plugin, name)
        if found not in KINDS:
            raise PluginError(f"@register({name!r}): unknown kind '{found}'.{suggest(found, KINDS)}")
        taken = _registry[found].get(name)
        if taken is not None and _identity(taken) != _identity(plugin):
            raise PluginError(f"two plug-ins register the {_LABELS[found]} '{name}': {taken!r} and {plugin!r}")
        _registry[found][name] = plugin
        return plugin

    return decorate


def resolve(kind: Kind, name: str) -> Any:
    """The class or function with a name.

    Args:
        kind: one of `KINDS`.
        name: registered name, entry point, `dotted.path.Name` or `path/to/file.py:Name`.

    Raises:
        PluginError: nothing has that name (the message gives the nearest one), or its module cannot be imported.
    """
    if name in _registry[kind]:
        return _registry[kind][name]
    points = _entry_points(kind).get(name, [])
    if len(points) > 1:
        offers = "; ".join(f"{point.value} of {_origin(point)}" for point in points)
        raise PluginError(f"several packages offer the {_LABELS[kind]} '{name}': {offers}. Name one by its path.")
    if points:
        return _attribute(_import(points[0].module, name), points[0].attr, name)
    own = import_hook.built_in(name)
    if own is not None:
        logger.info("'%s': verl is not installed; agentrl's own '%s' takes its place", name, own)
        return resolve(kind, own)
    file, colon, attribute = name.rpartition(":")
    if colon and file.endswith(".py"):
        return _attribute(load_file(Path(file).expanduser()), attribute, name)
    module, dot, attribute = name.replace(":", ".").rpartition(".")
    if dot and not module.startswith("."):
        return _attribute(_import(module, name), attribute, name)
    raise PluginError(f"no {_LABELS[kind]} is named '{name}'.{suggest(name, known(kind))}")


def known(kind: Kind) -> list[str]:
    """Every registered name and entry point of a kind."""
    return sorted({*_registry[kind], *_entry_points(kind)})


def registered_name(kind: Kind, plugin: Any) -> str | None:
    """The name under which a class or function is registered."""
    return next((name for name, known in _registry[kind].items() if known is plugin), None)


def registered_in(module: str) -> list[str]:
    """Labels of what a module registered, such as `tool 'weather'`."""
    return [
        f"{_LABELS[kind]} '{name}'"
        for kind in KINDS
        for name, plugin in _registry[kind].items()
        if getattr(plugin, "__module__", None) == module
    ]


def load_registrations(names: Iterable[str]) -> None:
    """Import modules and files that `@register` plug-ins (`plugins` in a run's YAML).

    Args:
        names: dotted modules, or paths of Python files.

    Raises:
        PluginError: one of them cannot be imported.
    """
    for name in names:
        if name.endswith(".py"):
            load_file(Path(name).expanduser())
        else:
            _import(name, name)


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One named plug-in."""

    kind: Kind
    name: str
    origin: str
    """The distribution that provides it, or `@register`."""
    target: str
    """`module:attribute`."""
    file: str | None
    """The file of its code; None if it cannot be loaded."""
    problem: str | None
    """Why it cannot be used; None if it can."""


def catalogue() -> list[PluginInfo]:
    """Every named plug-in. One that cannot be loaded is listed with the reason and does not affect the others."""
    found = []
    for kind in KINDS:
        points = [(point.name, point) for point in _points(kind)]
        for name, point in sorted(points, key=lambda pair: pair[0]):
            problem = _problem(kind, name)
            found.append(PluginInfo(kind, name, _origin(point), point.value, _file(point.module), problem))
        for name, plugin in sorted(_registry[kind].items()):
            module = getattr(plugin, "__module__", "?")
            file = _file(module)
            # A file that a YAML names is a module only inside this process, so it is named as a YAML does.
            home = Path(file).name if file is not None and module.startswith("agentrl_plugin_") else module
            target = f"{home}:{getattr(plugin, '__qualname__', plugin)}"
            found.append(PluginInfo(kind, name, "@register", target, file, None))
    return found


def _file(module: str) -> str | None:
    return getattr(sys.modules.get(module), "__file__", None)


def _problem(kind: Kind, name: str) -> str | None:
    try:
        resolve(kind, name)
    except PluginError as error:
        return str(error)
    return None


@lru_cache(maxsize=len(KINDS))
def _entry_points(kind: Kind) -> dict[str, list[EntryPoint]]:
    """Entry points by name: more than one if packages offer different objects under one name.

    A name of agentrl's own gives way to that of another package.
    """
    by_name: dict[str, dict[str, EntryPoint]] = {}
    for point in _points(kind):
        by_name.setdefault(point.name, {})[point.value] = point
    found = {}
    for name, points in by_name.items():
        others = [point for point in points.values() if point.dist is None or point.dist.name != "agentrl"]
        if 0 < len(others) < len(points):
            logger.info("the %s '%s' of %s takes the place of agentrl's own", _LABELS[kind], name, _origin(others[0]))
        found[name] = others or list(points.values())
    return found


def _points(kind: Kind) -> list[EntryPoint]:
    return list(entry_points(group=f"agentrl.{kind}"))


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown package"


def kind_of(plugin: Any) -> Kind | None:
    """The kind of a class by its base class; None if that does not tell."""
    for base, kind in _BASES if isinstance(plugin, type) else ():
        if issubclass(plugin, base):
            return kind
    return "agent_loops" if is_verl_loop(plugin) else None


def _kind_of(plugin: Any, name: str) -> Kind:
    found = kind_of(plugin)
    if found is not None:
        return found
    raise PluginError(f'@register({name!r}): say what it is, for example @register({name!r}, kind="tools")')


def _identity(plugin: Any) -> tuple[Any, Any]:
    """A key that is equal for the same class imported twice: a reloaded module, or a script that is also a plug-in."""
    module = getattr(plugin, "__module__", None)
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return (Path(file).resolve() if file else module), getattr(plugin, "__qualname__", id(plugin))


def _import(module: str, name: str) -> ModuleType:
    import_hook.install()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if module == missing or module.startswith(f"{missing}."):
            raise PluginError(f"'{name}': there is no module '{missing}'{import_hook.missing(name)}") from error
        needs = f"'{name}': module '{module}' needs '{missing}', which is not installed"
        raise PluginError(needs + import_hook.hint(error)) from error
    except IMPORT_ERRORS as error:
        raise PluginError(f"'{name}': module '{module}' cannot be imported: {import_problem(error)}") from error


def _attribute(module: ModuleType, attribute: str, name: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [key for key in vars(found) if not key.startswith("_")]
            raise PluginError(f"'{name}': {module.__name__} has no '{attribute}'.{suggest(attribute, public)}")
        found = getattr(found, part)
    return found
