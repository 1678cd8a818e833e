"""Entries of a tool YAML that describe a tool, `{name, description, parameters}`, instead of naming a class."""

from __future__ import annotations

import logging
from typing import Any

from agentrl.errors import PluginError
from agentrl.files import CONFIGS
from agentrl.observability.said_once import say_once
from agentrl.plugins.adapt import schema_of
from agentrl.types import JsonDict
from agentrl.yaml_reader import read_yaml

logger = logging.getLogger(__name__)

DESCRIPTION = ("name", "description", "parameters")
"""Keys of an entry that describes a tool without the frame of a schema."""


def plain_entry(entry: JsonDict) -> JsonDict:
    """An entry in OpenAI's shape, `{type: function, function: {name, …}}`, as `{name, description, parameters}`."""
    function = entry.get("function")
    if entry.get("type") == "function" and isinstance(function, dict) and "class_name" not in entry:
        return {**{key: value for key, value in entry.items() if key not in ("type", "function")}, **function}
    return entry


def shipped_config(name: str) -> JsonDict:
    """The `config` of agentrl's own YAML for a tool that is only described: the address of its service, mostly."""
    file = CONFIGS / "tools" / f"{name}.yaml"
    entries = read_yaml(file)["tools"] if file.is_file() else []
    config = next((entry.get("config") or {} for entry in entries if entry.get("class_name") == name), {})
    if config:
        shown = ", ".join(f"{key} {value}" for key, value in config.items() if key.endswith("url"))
        say_once(logger, logging.INFO, f"tool '{name}' is given without `config`: as in tools/{name}.yaml ({shown})")
    return dict(config)


def schema_or_none(cls: Any, config: JsonDict) -> JsonDict | None:
    """The schema that a tool has of its own, if it has one."""
    try:
        return schema_of(cls, config)
    except PluginError:
        return None
