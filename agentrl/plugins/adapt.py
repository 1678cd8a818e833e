"""Make plain functions and verl-style classes look like agentrl's own tools and interactions.

`as_tool` and `as_interaction` recognise a plug-in by its signature, so users' plug-ins work unchanged.
"""

from __future__ import annotations

import inspect
from typing import Any

from agentrl.errors import PluginError
from agentrl.interfaces import BaseInteraction, BaseTool
from agentrl.plugins.functions import FunctionTool, function_schema, refuse_generator
from agentrl.plugins.verl.adapters import VerlInteraction, VerlTool, has_parameter, verl_schema
from agentrl.types import JsonDict

__all__ = ["as_interaction", "as_tool", "schema_of", "takes_context"]

_NO_TOOL = "{!r} is not a tool: a class or a function is wanted"


def schema_of(plugin: Any, config: JsonDict) -> JsonDict:
    """The schema that a tool class or function provides.

    Raises:
        PluginError: it has no schema, or it is not a tool.
    """
    try:
        if not callable(plugin):
            raise PluginError(_NO_TOOL.format(plugin))
        if not isinstance(plugin, type):
            return function_schema(plugin)
        if issubclass(plugin, BaseTool):
            return plugin.schema_from_config(config)
        return verl_schema(plugin, config)
    except NotImplementedError as error:
        raise PluginError(str(error)) from error


def as_tool(plugin: Any, config: JsonDict, schema: JsonDict) -> BaseTool:
    """Build one tool instance for one trajectory.

    Raises:
        PluginError: `plugin` is neither a tool class nor a function, or it yields.
    """
    refuse_generator(getattr(plugin, "execute", plugin) if isinstance(plugin, type) else plugin)
    if isinstance(plugin, type):
        if issubclass(plugin, BaseTool):
            return plugin(config, schema)
        if has_parameter(plugin, "execute", "instance_id"):
            return VerlTool(plugin, config, schema)
        raise PluginError(
            f"{plugin.__qualname__} is not a tool: derive it from agentrl.interfaces.BaseTool "
            "(or give it verl's execute(instance_id, parameters))"
        )
    if callable(plugin):
        return FunctionTool(plugin, config, schema)
    raise PluginError(_NO_TOOL.format(plugin))


def takes_context(plugin: Any, schema: JsonDict) -> bool:
    """Whether a tool declares `context` (see `agentrl.types.ToolContext`), and not as an argument for the model."""
    function = getattr(plugin, "execute", plugin) if isinstance(plugin, type) else plugin
    own = schema["function"].get("parameters", {}).get("properties", {})
    return "context" in inspect.signature(function).parameters and (isinstance(plugin, type) or "context" not in own)


def as_interaction(plugin: Any, config: JsonDict, name: str | None = None) -> BaseInteraction:
    """Build one interaction instance for one trajectory.

    Args:
        plugin: the class.
        config: its configuration.
        name: its name in rows; a class written for verl finds it in its `config`, as in verl.

    Raises:
        PluginError: `plugin` is not an interaction class, or it yields.
    """
    if isinstance(plugin, type):
        refuse_generator(getattr(plugin, "generate_response", plugin))
        if issubclass(plugin, BaseInteraction):
            return plugin(config)
        if has_parameter(plugin, "generate_response", "instance_id"):
            return VerlInteraction(plugin, config if name is None else {"name": name, **config})
    raise PluginError(f"{plugin!r} is not an interaction: derive it from agentrl.interfaces.BaseInteraction")
