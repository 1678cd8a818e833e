"""Reads tool, interaction and agent-loop YAML into checked specs; every error names file, entry and nearest key."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from agentrl.errors import ConfigError, PluginError, suggest
from agentrl.files import find_file
from agentrl.interfaces import AgentLoopBase, BaseInteraction, BaseTool, LoopContext
from agentrl.plugins import mcp_entries
from agentrl.plugins.adapt import as_interaction, as_tool, schema_of, takes_context
from agentrl.plugins.described_tools import DESCRIPTION, plain_entry, schema_or_none, shipped_config
from agentrl.plugins.mcp_entries import Discover, ask_servers
from agentrl.plugins.plugin_files import IMPORT_ERRORS
from agentrl.plugins.registry import Kind, known, resolve
from agentrl.plugins.tool_schemas import checked_schema, described_schema
from agentrl.plugins.verl.loops import VerlLoop, VerlLoopBase, adapted, is_verl_loop, own_options
from agentrl.reported import number_of
from agentrl.types import JsonDict
from agentrl.yaml_reader import read_yaml

VERL_LOOPS = ("single_turn_agent", "tool_agent")
"""Loops that others know by these names with `_loop` at the end."""


@dataclass(frozen=True)
class ToolSpec:
    """One entry of the tool YAML; `build` makes the instance of one trajectory."""

    name: str
    cls: Any
    config: JsonDict
    schema: JsonDict
    timeout_s: float | None = None
    """`config.timeout_s`: deadline of one call; None: `multi_turn.tool_timeout_s`."""

    def build(self) -> BaseTool:
        """A new tool, adapted if the plug-in is a function or a verl class."""
        return as_tool(self.cls, copy.deepcopy(self.config), self.schema)

    def check_arguments(self, arguments: JsonDict) -> str | None:
        """What is wrong with a call's arguments, for the model to read; None if they fit the schema."""
        error = best_match(self._validator.iter_errors(arguments))
        if error is None:
            return None
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
        return f"arguments{where}: {error.message}" if len(error.message) < 500 else f"arguments{where}: wrong value"

    @cached_property
    def takes_context(self) -> bool:
        """Whether its calls get an `agentrl.types.ToolContext`."""
        return takes_context(self.cls, self.schema)

    @cached_property
    def _validator(self) -> Draft202012Validator:
        return Draft202012Validator(self.schema["function"].get("parameters", {}))


@dataclass(frozen=True)
class InteractionSpec:
    """One entry of the interaction YAML."""

    name: str
    cls: Any
    config: JsonDict = field(default_factory=dict)

    def build(self) -> BaseInteraction:
        """A new interaction, adapted if it was written for verl."""
        return as_interaction(self.cls, copy.deepcopy(self.config), self.name)


@dataclass(frozen=True)
class LoopSpec:
    """An agent loop and its options."""

    name: str
    cls: type[AgentLoopBase]
    kwargs: JsonDict = field(default_factory=dict)

    def build(self, context: LoopContext) -> AgentLoopBase:
        """A new loop for one trajectory.

        Raises:
            PluginError: the loop does not take one of its options.
        """
        try:
            loop = self.cls(context, **self.kwargs)
        except TypeError as error:
            raise PluginError(f"agent loop '{self.name}': {error}") from error
        if isinstance(loop, VerlLoop):
            loop.name = self.name
        return loop

    def check_options(self, where: str) -> None:
        """Refuse options that the loop does not take, and missing ones that it needs.

        Raises:
            PluginError: names the nearest option.
        """
        _check_options(self.cls, self.kwargs, where)


def load_tools(path: str | Path, near: Path | None = None, discover: Discover = ask_servers) -> list[ToolSpec]:
    """Tools of a YAML `tools: [{class_name, config, tool_schema, mcp}]`, in its order.

    An entry may also be `{name, description, parameters}`; without a `class_name`, `name` is that of a registered tool.

    Args:
        path: looked up as given, in `near`, then in agentrl's `configs/`.
        near: folder of the YAML that names `path`.
        discover: asks MCP servers what they offer.

    Raises:
        ConfigError: the file or an entry is malformed.
        PluginError: a class cannot be found or has no schema.
    """
    file, entries = _read_entries(path, near, "tools", ("tools",))
    specs: list[ToolSpec] = []
    for index, entry in enumerate(entries):
        where = f"{file}: tools[{index}]"
        entry = plain_entry(entry)
        _check_keys(entry, ("class_name", "config", "tool_schema", "mcp", *DESCRIPTION), (), where)
        for spec in _read_tools(entry, file, where, discover):
            if any(other.name == spec.name for other in specs):
                raise ConfigError(f"{where}: two tools are named '{spec.name}'")
            _try_build(spec, where)
            specs.append(spec)
    return specs


def _read_tools(entry: JsonDict, file: Path, where: str, discover: Discover) -> Iterator[ToolSpec]:
    """The tool of an entry, or the tools of its MCP servers."""
    config = _mapping(entry, "config", where)
    kind = config.get("type", "native")
    if kind not in ("native", "mcp"):
        raise ConfigError(f"{where}.config.type: got '{kind}'.{suggest(str(kind), ['native', 'mcp'])}")
    if kind == "native":
        described = {key: entry[key] for key in DESCRIPTION if entry.get(key) is not None}
        others = () if described else ("tool_schema",)
        _check_keys(entry, ("class_name", "config", *others, *DESCRIPTION), () if described else ("class_name",), where)
        cls = _resolve("tools", entry.get("class_name") or described.get("name"), file, where)
        if "class_name" not in entry and "config" not in entry:
            config = shipped_config(str(described.get("name")))
        config = _renamed(cls, config, where)
        if described:
            found = [(config, described_schema(described, schema_or_none(cls, config), where))]
        else:
            found = [(config, entry.get("tool_schema") or _own_schema(cls, config, where))]
    else:
        _check_keys(entry, ("class_name", "config", "mcp"), (), where)
        cls = _resolve("tools", mcp_entries.class_name(entry), file, where)
        config = _renamed(cls, config, where)
        servers, selected = mcp_entries.read_entry(entry, where)
        try:
            offered = discover(cls, mcp_entries.read_servers(find_file(servers, file.parent)), config)
        except PluginError as error:
            raise PluginError(f"{where}: {error}") from error
        found = mcp_entries.select(offered, selected, where)
    for own, schema in found:
        checked = checked_schema(schema, where)
        yield ToolSpec(checked["function"]["name"], cls, own, checked, _timeout(own, where))


def _renamed(cls: Any, config: JsonDict, where: str) -> JsonDict:
    """A `config` in agentrl's spelling; if a limit is given in two spellings, the lower one counts."""
    aliases: Mapping[str, str] = getattr(cls, "config_aliases", {})
    renamed = {key: value for key, value in config.items() if key not in aliases}
    for key, value in config.items():
        name = aliases.get(key)
        if name is None:
            continue
        if name in config and name != "max_concurrency":
            raise ConfigError(f"{where}.config: `{key}` is another name for `{name}`: give one of them")
        if name == "limits_per" and isinstance(value, bool):
            value = "run" if value else "worker"
        other = renamed.get(name)
        renamed[name] = min(value, other) if isinstance(value, int) and isinstance(other, int) else value
    return renamed


def load_interactions(path: str | Path, near: Path | None = None) -> dict[str, InteractionSpec]:
    """Interactions of a YAML `interaction: [{name?, class_name, config}]`, by name.

    Raises:
        ConfigError: the file or an entry is malformed, or two entries share a name.
        PluginError: a class cannot be found.
    """
    file, entries = _read_entries(path, near, "interaction", ("interaction", "interactions"))
    specs: dict[str, InteractionSpec] = {}
    for index, entry in enumerate(entries):
        where = f"{file}: interaction[{index}]"
        _check_keys(entry, ("name", "class_name", "config"), ("class_name",), where)
        cls = _resolve("interactions", entry["class_name"], file, where)
        name = str(entry.get("name") or getattr(cls, "__name__", "").removesuffix("Interaction").lower())
        if name in specs:
            raise ConfigError(f"{where}: two interactions are named '{name}'; give one of them another `name`")
        specs[name] = InteractionSpec(name, cls, _mapping(entry, "config", where))
        _try_build(specs[name], where)
    return specs


def load_agent_loops(path: str | Path | None = None, near: Path | None = None) -> dict[str, LoopSpec]:
    """Every registered agent loop, and those of a YAML list `[{name, _target_, **options}]`, which take precedence.

    A registered loop that cannot be loaded is omitted: only rows that name it are refused, with the reason.

    Raises:
        ConfigError: the file or an entry is malformed.
        PluginError: a class cannot be found or is not an agent loop.
    """
    specs = {name: LoopSpec(name, cls) for name in known("agent_loops") if (cls := registered_loop(name)[0])}
    specs = {f"{name}_loop": specs[name] for name in VERL_LOOPS if name in specs} | specs
    if path is None:
        return specs
    file, entries = _read_entries(path, near, "", ())
    named: set[str] = set()
    for index, entry in enumerate(entries):
        where = f"{file}: [{index}]"
        _check_keys(entry, None, ("name", "_target_"), where)
        name = str(entry["name"])
        if name in named:
            raise ConfigError(f"{where}: two agent loops are named '{name}'")
        named.add(name)
        cls = _loop_class(_resolve("agent_loops", entry["_target_"], file, where), where)
        options = {key: value for key, value in entry.items() if key not in ("name", "_target_")}
        for key in cls.object_options:
            if isinstance(options.get(key), str):
                options[key] = _resolve("agent_loops", options[key], file, f"{where}.{key}")
        specs[name] = LoopSpec(name, cls, options)
        specs[name].check_options(where)
        _check_plays(cls, where)
    return specs


def names_in_loop_file(path: str | Path) -> set[str]:
    """The names of the agent loops that a YAML list gives."""
    return {str(entry.get("name")) for entry in _read_entries(path, None, "", ())[1]}


def registered_loop(name: str) -> tuple[type[AgentLoopBase] | None, str]:
    """The class of a registered loop, or why it cannot be loaded."""
    try:
        return _loop_class(resolve("agent_loops", name), name), ""
    except PluginError as error:
        return None, str(error)


def _read_entries(
    path: str | Path, near: Path | None, what: str, keys: tuple[str, ...]
) -> tuple[Path, list[dict[str, Any]]]:
    """The list of mappings in a YAML, under one of `keys` (none: the top level)."""
    file = find_file(path, near)
    content = read_yaml(file)
    if keys:
        if not isinstance(content, dict):
            raise ConfigError(f"{file}: {_got(content)}, wanted a mapping with `{what}: [...]`")
        for key in content:
            if key not in keys:
                raise ConfigError(f"{file}: unknown key '{key}'.{suggest(str(key), [what])}")
        content = next((content[key] for key in keys if key in content), None)
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise ConfigError(f"{file}: {_got(content)}, wanted a list of mappings{f' under `{what}`' if what else ''}")
    return file, content


def _got(content: Any) -> str:
    return "found nothing" if content is None else f"got {type(content).__name__}"


def _check_keys(entry: Mapping[str, Any], allowed: tuple[str, ...] | None, needed: tuple[str, ...], where: str) -> None:
    for key in entry if allowed is not None else ():
        if key not in (allowed or ()):
            raise ConfigError(f"{where}: unknown key '{key}'.{suggest(str(key), allowed or ())}")
    for key in needed:
        if not entry.get(key):
            raise ConfigError(f"{where}: `{key}` is missing")


def _mapping(entry: Mapping[str, Any], key: str, where: str) -> JsonDict:
    value = entry.get(key)
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{where}.{key}: got {type(value).__name__}, wanted a mapping")
    return value or {}


def _timeout(config: JsonDict, where: str) -> float | None:
    value = config.get("timeout_s")
    if value is None:
        return None
    seconds = None if isinstance(value, bool) else number_of(value)
    if seconds is None or not seconds > 0:
        raise ConfigError(f"{where}.config.timeout_s: got {value!r}, wanted a positive number of seconds")
    return seconds


def _resolve(kind: Kind, name: Any, file: Path, where: str) -> Any:
    """Resolve a name; a file path is looked for as given and beside the YAML."""
    if not isinstance(name, str):
        raise ConfigError(f"{where}: got {name!r} as a class name, wanted a string")
    source, colon, attribute = name.rpartition(":")
    try:
        if colon and source.endswith(".py"):
            name = f"{find_file(source, file.parent)}:{attribute}"
        return resolve(kind, name)
    except (PluginError, ConfigError) as error:
        raise PluginError(f"{where}: {error}") from error


def _loop_class(cls: Any, where: str) -> type[AgentLoopBase]:
    if is_verl_loop(cls):
        return adapted(cls)
    if isinstance(cls, type) and issubclass(cls, AgentLoopBase):
        return cls
    raise PluginError(f"{where}: {cls!r} is not an agent loop: derive it from agentrl.interfaces.AgentLoopBase")


def _check_plays(cls: type[AgentLoopBase], where: str) -> None:
    """Refuse a class that only inherits `run`: every trajectory would fail."""
    run = (cls.verl_class if issubclass(cls, VerlLoop) else cls).run  # type: ignore[attr-defined]
    if run is VerlLoopBase.run or getattr(run, "__isabstractmethod__", False):
        raise PluginError(f"{where}: agent loop {cls.__name__} has no method `run`, which plays the conversation")


def _own_schema(cls: Any, config: JsonDict, where: str) -> JsonDict:
    try:
        return schema_of(cls, config)
    except PluginError as error:
        raise PluginError(f"{where}: {error}") from error


def _try_build(spec: ToolSpec | InteractionSpec, where: str) -> None:
    """Build one instance and drop it: a wrong `config` is then an error at the start, not in every trajectory."""
    try:
        spec.build()
    except PluginError as error:
        raise PluginError(f"{where}: {error}") from error
    except IMPORT_ERRORS as error:
        raise PluginError(f"{where}: {spec.cls!r} cannot be built: {type(error).__name__}: {error}") from error


def _check_options(cls: type[AgentLoopBase], options: Mapping[str, Any], where: str) -> None:
    """Refuse options that the loop does not take, and missing ones that it needs.

    Args:
        cls: the loop; its constructor takes the context and then options by name.
        options: those of the YAML.
        where: named in the error.

    Raises:
        PluginError: names the nearest option.
    """
    parameters = (
        own_options(cls) if issubclass(cls, VerlLoop) else [*inspect.signature(cls.__init__).parameters.values()][2:]
    )
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters) and cls.__init__ is not AgentLoopBase.__init__
    for option in options:
        if option not in named and not takes_any:
            raise PluginError(f"{where}: {cls.__name__} takes no option '{option}'.{suggest(option, named)}")
    missing = [p.name for p in named.values() if p.default is p.empty and p.name not in options]
    if missing:
        raise PluginError(f"{where}: {cls.__name__} needs the option {', '.join(f'`{name}`' for name in missing)}")
