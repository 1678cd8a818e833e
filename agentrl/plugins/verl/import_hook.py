"""`from verl.tools.base_tool import BaseTool` in a user's plug-in, on a machine without verl.

Only the few modules in `MODULES` are replaced, and only if verl itself is not installed: they hold what tools,
interactions and score functions import. Any other import from verl stays an `ImportError`, and `hint` says what to do
about it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from agentrl.errors import suggest

_BASE = "agentrl.plugins.verl.base_classes"
_LOOPS = "agentrl.plugins.verl.loop_api"
_BATCH = "agentrl.plugins.verl.batch"
_MANAGERS = "agentrl.plugins.verl.reward_api"
_MANAGER_NAMES = {name: name for name in ("AbstractRewardManager", "RawRewardFn", "register")}
_LOOP_NAMES = {
    "AgentLoopBase": "VerlLoopBase",
    "AgentLoopOutput": "AgentLoopOutput",
    "AgentLoopMetrics": "AgentLoopMetrics",
    "AsyncLLMServerManager": "ServerManager",
    "DictConfigWrap": "ConfigHolder",
    "TokenOutput": "TokenOutput",
    "register": "register",
}
MODULES: dict[str, tuple[str, dict[str, str]]] = {
    "verl": (_BATCH, {"DataProto": "DataProto"}),
    "verl.protocol": (_BATCH, {"DataProto": "DataProto", "DataProtoItem": "DataProtoItem"}),
    "verl.tools": ("", {}),
    "verl.tools.base_tool": (
        _BASE,
        {"BaseTool": "BaseTool", "OpenAIFunctionToolSchema": "Schema", "ToolResponse": "ToolResponse"},
    ),
    "verl.tools.schemas": (
        _BASE,
        {
            "ToolResponse": "ToolResponse",
            "OpenAIFunctionToolSchema": "Schema",
            "OpenAIFunctionSchema": "Schema",
            "OpenAIFunctionParametersSchema": "Schema",
            "OpenAIFunctionPropertySchema": "Schema",
        },
    ),
    "verl.interactions": ("", {}),
    "verl.interactions.base": (_BASE, {"BaseInteraction": "BaseInteraction"}),
    "verl.interactions.utils": ("", {}),
    "verl.interactions.utils.interaction_registry": (
        _LOOPS,
        {"initialize_interactions_from_config": "initialize_interactions_from_config"},
    ),
    "verl.tools.utils": ("", {}),
    "verl.tools.utils.tool_registry": (
        _LOOPS,
        {"initialize_tools_from_config": "initialize_tools_from_config"},
    ),
    "verl.experimental": ("", {}),
    "verl.experimental.agent_loop": (_LOOPS, _LOOP_NAMES),
    "verl.experimental.agent_loop.agent_loop": (_LOOPS, _LOOP_NAMES),
    "verl.experimental.agent_loop.tool_parser": (
        _LOOPS,
        {"ToolParser": "ToolParser", "FunctionCall": "FunctionCall"},
    ),
    "verl.workers": ("", {}),
    "verl.workers.reward_manager": (_MANAGERS, _MANAGER_NAMES),
    "verl.workers.reward_manager.abstract": (_MANAGERS, _MANAGER_NAMES),
    "verl.workers.reward_manager.registry": (_MANAGERS, _MANAGER_NAMES),
    "verl.workers.rollout": ("", {}),
    "verl.workers.rollout.replica": (_LOOPS, {"TokenOutput": "TokenOutput"}),
    "verl.utils": ("", {}),
    "verl.utils.profiler": (_LOOPS, {"simple_timer": "simple_timer"}),
    "verl.utils.profiler.performance": (_LOOPS, {"simple_timer": "simple_timer"}),
    "verl.utils.rollout_trace": (
        _LOOPS,
        {"rollout_trace_op": "rollout_trace_op", "rollout_trace_attr": "rollout_trace_attr"},
    ),
    "verl.utils.reward_score": (
        "agentrl.rewards.dispatcher",
        {"default_compute_score": "default_compute_score", "_default_compute_score": "default_compute_score"},
    ),
    "verl.utils.reward_score.geo3k": ("agentrl.rewards.scores.geo3k", {"compute_score": "compute_score"}),
    "verl.utils.reward_score.gsm8k": ("agentrl.rewards.scores.gsm8k", {"compute_score": "compute_score"}),
    "verl.utils.reward_score.math_reward": ("agentrl.rewards.scores.math", {"compute_score": "compute_score"}),
    "verl.utils.reward_score.math_dapo": ("agentrl.rewards.scores.math_dapo", {"compute_score": "compute_score"}),
    "verl.utils.reward_score.math": ("agentrl.rewards.scores.math", {"compute_score": "compute_score"}),
}
"""verl's module -> agentrl's module that replaces it, and the names that it has."""

BUILT_INS: dict[str, str] = {
    "verl.tools.gsm8k_tool.Gsm8kTool": "calc_gsm8k_reward",
    "verl.tools.search_tool.SearchTool": "search",
    "verl.tools.sandbox_fusion_tools.SandboxFusionTool": "python",
    "verl.interactions.gsm8k_interaction.Gsm8kInteraction": "gsm8k",
    "verl.experimental.agent_loop.single_turn_agent_loop.SingleTurnAgentLoop": "single_turn_agent",
    "verl.experimental.agent_loop.tool_agent_loop.ToolAgentLoop": "tool_agent",
}
"""verl's own plug-ins, as its YAML names them -> agentrl's plug-ins for the same purpose."""


class _Finder(MetaPathFinder, Loader):
    """Makes the modules of `MODULES` when they are imported and not found elsewhere."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Asked first: a folder `verl` without code, where some keep their YAML, would be taken for a package."""
        if fullname not in MODULES or _is_installed():
            return None
        return ModuleSpec(fullname, self, origin="agentrl stands in for verl", is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module."""
        source, names = MODULES[module.__name__]
        module.__doc__ = "Stands in for verl's module of this name; see agentrl.plugins.verl.import_hook."
        for name, here in names.items():
            setattr(module, name, getattr(importlib.import_module(source), here))


def install() -> None:
    """Let plug-ins import verl's names from now on. Calling it again changes nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _is_installed() -> bool:
    """Whether verl itself can be imported."""
    module = sys.modules.get("verl")
    if module is not None:
        return getattr(module, "__file__", None) is not None
    others = (finder for finder in sys.meta_path if not isinstance(finder, _Finder))
    specs = (finder.find_spec("verl", None) for finder in others)
    return any(spec is not None and spec.origin is not None for spec in specs)


def built_in(name: str) -> str | None:
    """The plug-in of agentrl that replaces one of verl's; None: none does, or verl itself is installed."""
    return BUILT_INS[name] if name in BUILT_INS and not _is_installed() else None


def missing(name: str) -> str:
    """Advice if a YAML names something of verl's that agentrl does not have; empty for other names."""
    return f". verl is not installed.{suggest(name, BUILT_INS)}" if name.startswith("verl.") else ""


def hint(error: ImportError) -> str:
    """Advice if a plug-in imports something else of verl's; empty for other imports."""
    if (error.name or "").split(".")[0] != "verl":
        return ""
    offered = ", ".join(name for name, (source, _) in MODULES.items() if source)
    return (
        f". verl is not installed; for plug-ins agentrl stands in for {offered} and nothing else: take the import out, "
        "import the same from agentrl (docs/port_from_verl.md), or install verl"
    )
