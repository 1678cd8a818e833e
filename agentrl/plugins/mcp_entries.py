"""Entries of a tool YAML that stand for tools of MCP servers: which servers, and which of their tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, PluginError, suggest
from agentrl.types import JsonDict
from agentrl.yaml_reader import read_json

Found = list[tuple[JsonDict, JsonDict]]
"""`config` and schema of each tool."""
Discover = Callable[[Any, JsonDict, JsonDict], Found]
"""`discover(cls, servers, config)`: the tools that the servers offer."""
CLASS_NAME = "mcp"
_KEYS = ("mcp_servers_config_path", "tool_selected_list")


def ask_servers(cls: Any, servers: JsonDict, config: JsonDict) -> Found:
    """The tools that the servers offer; each set of servers is asked once per process.

    Raises:
        PluginError: a server cannot be used.
    """
    return _ask(cls, json.dumps(servers), json.dumps(config))


@lru_cache(maxsize=32)
def _ask(cls: Any, servers: str, config: str) -> Found:
    found: Found = cls.discover(json.loads(servers), json.loads(config))
    return found


def class_name(entry: JsonDict) -> str:
    """The class of an entry: agentrl's if none is given, or verl's."""
    name = str(entry.get("class_name") or CLASS_NAME)
    return CLASS_NAME if name.startswith("verl.tools.mcp") else name


def read_entry(entry: JsonDict, where: str) -> tuple[str, list[str] | None]:
    """The servers file and the selected tools of an entry.

    Raises:
        ConfigError: the entry is malformed.
    """
    section = entry.get("mcp")
    if not isinstance(section, dict):
        raise ConfigError(f"{where}: config.type is mcp, wanted `mcp: {{{_KEYS[0]}, {_KEYS[1]}}}`")
    for key in section:
        if key not in _KEYS:
            raise ConfigError(f"{where}.mcp: unknown key '{key}'.{suggest(str(key), _KEYS)}")
    path, selected = section.get(_KEYS[0]), section.get(_KEYS[1])
    if not isinstance(path, str) or not path:
        raise ConfigError(f"{where}.mcp.{_KEYS[0]}: got {path!r}, wanted the path of a JSON file with `mcpServers`")
    if selected is not None and not (isinstance(selected, list) and all(isinstance(name, str) for name in selected)):
        raise ConfigError(f"{where}.mcp.{_KEYS[1]}: got {selected!r}, wanted a list of tool names")
    return path, selected or None


def read_servers(file: Path) -> JsonDict:
    """`mcpServers` of a servers file.

    Raises:
        ConfigError: the file cannot be read, or does not have this form.
    """
    content = read_json(file)
    servers = content.get("mcpServers") if isinstance(content, dict) else None
    if not isinstance(servers, dict) or not servers:
        raise ConfigError(f"{file}: wanted {{mcpServers: {{name: {{command, args}} or {{url}}}}}}")
    return servers


def select(found: Found, names: Sequence[str] | None, where: str) -> Found:
    """The tools that an entry selects, in its order; None: all.

    Raises:
        PluginError: no server has a selected tool.
    """
    if names is None:
        return found
    by_name = {schema["function"]["name"]: (config, schema) for config, schema in found}
    for name in names:
        if name not in by_name:
            raise PluginError(f"{where}.mcp.tool_selected_list: no MCP server offers '{name}'.{suggest(name, by_name)}")
    return [by_name[name] for name in names]
