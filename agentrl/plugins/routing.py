"""Refuses rows that name a loop, tool or interaction that the run does not have, before the run starts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from agentrl.errors import PluginError, suggest
from agentrl.plugins.registry import known
from agentrl.plugins.specs import LoopSpec, registered_loop
from agentrl.types import Sample

_ASKS_FOR_TOOLS = ("available_tools", "max_tool_calls", "timeout")


def check_routing(
    samples: Iterable[Sample],
    *,
    default_loop: str,
    loops: Mapping[str, LoopSpec],
    tools: Collection[str],
    interactions: Collection[str],
) -> None:
    """Refuse rows that name a loop, tool or interaction that the run does not have, or that their loop ignores.

    Raises:
        PluginError: names the first such row and the nearest name.
    """
    for sample in samples:
        loop = sample.agent_name or default_loop
        if loop not in loops:
            raise PluginError(f"row {sample.index}: {_no_loop(loop, loops)}")
        _check_use(sample, loops[loop], default_loop)
        offered = sample.tool_config.get("available_tools") or []
        for tool in [*sample.tools_kwargs, *offered]:
            if tool not in tools:
                hint = suggest(tool, tools) if tools else " The run has no tools: set `multi_turn.tool_config_path`."
                raise PluginError(f"row {sample.index}: no tool is named '{tool}'.{hint}")
        if sample.interaction_kwargs:
            _check_interaction(sample, interactions)


def _no_loop(name: str, loops: Collection[str]) -> str:
    if name in known("agent_loops"):
        return f"the agent loop '{name}' cannot be loaded: {registered_loop(name)[1]}"
    return f"no agent loop is named '{name}'.{suggest(name, loops)}"


def _check_use(sample: Sample, loop: LoopSpec, default_loop: str) -> None:
    origin = "names" if sample.agent_name else "has no `agent_name` and gets"
    for given, what, used in (
        (
            sample.tools_kwargs or sample.tool_env_name or any(map(sample.tool_config.get, _ASKS_FOR_TOOLS)),
            "tools",
            loop.cls.uses_tools,
        ),
        (sample.interaction_kwargs, "an interaction", loop.cls.uses_interaction),
    ):
        if given and not used:
            raise PluginError(
                f"row {sample.index} gives {what} but {origin} the agent loop '{loop.name}', which ignores that: set "
                f"`agent_name` to tool_agent, or `agent.default_agent_loop` (now {default_loop})"
            )


def _check_interaction(sample: Sample, interactions: Collection[str]) -> None:
    name = sample.interaction_kwargs.get("name")
    if not name:
        raise PluginError(f"row {sample.index}: `interaction_kwargs` has no `name`.{suggest('', interactions)}")
    if name not in interactions:
        unset = " The run has no interactions: set `multi_turn.interaction_config_path`."
        hint = suggest(name, interactions) if interactions else unset
        raise PluginError(f"row {sample.index}: no interaction is named '{name}'.{hint}")
