"""Plug-ins: found by name, read from YAML, adapted if needed, and built once per trajectory."""

from agentrl.plugins.plugin_files import load_file
from agentrl.plugins.registry import (
    KINDS,
    Kind,
    PluginInfo,
    catalogue,
    kind_of,
    known,
    load_registrations,
    register,
    registered_name,
    resolve,
)
from agentrl.plugins.routing import check_routing
from agentrl.plugins.specs import (
    InteractionSpec,
    LoopSpec,
    ToolSpec,
    load_agent_loops,
    load_interactions,
    load_tools,
)
from agentrl.plugins.tool_decorator import tool

__all__ = [
    "KINDS",
    "InteractionSpec",
    "Kind",
    "LoopSpec",
    "PluginInfo",
    "ToolSpec",
    "catalogue",
    "check_routing",
    "kind_of",
    "known",
    "load_agent_loops",
    "load_file",
    "load_interactions",
    "load_registrations",
    "load_tools",
    "register",
    "registered_name",
    "resolve",
    "tool",
]
