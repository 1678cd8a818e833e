"""What loops written for verl import besides their base class, on machines without verl.

Tools and interactions are the trajectory's own, already created by the worker, under verl's methods: calls pass the
same checks, deadlines and limits as those of agentrl's loops.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agentrl.errors import PluginError
from agentrl.plugins import registry
from agentrl.plugins.specs import load_interactions, load_tools
from agentrl.plugins.verl.base_classes import Schema, ToolResponse, rollout_trace_op
from agentrl.plugins.verl.loops import ServerManager, TokenOutput, VerlLoopBase
from agentrl.plugins.verl.run_view import ConfigHolder
from agentrl.plugins.verl.running import running
from agentrl.types import JsonDict, ToolCall

__all__ = ["ConfigHolder", "ServerManager", "TokenOutput", "VerlLoopBase", "rollout_trace_op"]
T = TypeVar("T")


class AgentLoopMetrics:
    """Seconds of a trajectory, and other numbers by name.

    Args:
        **values: `generate_sequences`, `tool_calls` and so on.
    """

    def __init__(self, **values: float) -> None:
        vars(self).update({"generate_sequences": 0.0, "tool_calls": 0.0, **values})


@dataclass
class AgentLoopOutput:
    """A trajectory as verl's loops return it."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None = None
    routed_experts: Any = None
    multi_modal_data: JsonDict | None = None
    reward_score: float | None = None
    num_turns: int = 0
    metrics: AgentLoopMetrics | JsonDict = field(default_factory=AgentLoopMetrics)
    extra_fields: JsonDict = field(default_factory=dict)


@dataclass
class FunctionCall:
    """A tool call; `arguments` is JSON text."""

    arguments: str
    name: str


def register(agent_name: str) -> Callable[[T], T]:
    """As `@register("name")` in verl, for agent loops."""
    return registry.register(agent_name, "agent_loops")


@contextmanager
def simple_timer(name: str, timing_raw: MutableMapping[str, float]) -> Iterator[None]:
    """Add the seconds of a block to `timing_raw[name]`."""
    started = time.perf_counter()
    yield
    timing_raw[name] = timing_raw.get(name, 0.0) + time.perf_counter() - started


@contextmanager
def rollout_trace_attr(*_: Any, **__: Any) -> Iterator[None]:
    """Tracing, without effect."""
    yield


class ToolParser:
    """Finds tool calls in sampled ids.

    Args:
        name: of a parser, as `multi_turn.format` names it.
        tokenizer: decodes the ids.
    """

    def __init__(self, name: str, tokenizer: Any) -> None:
        self._parser = registry.resolve("tool_parsers", name)()
        self._tokenizer = tokenizer

    @classmethod
    def get_tool_parser(cls, name: str, tokenizer: Any) -> ToolParser:
        """The parser of a name."""
        return cls(name, tokenizer)

    async def extract_tool_calls(self, responses_ids: Sequence[int], *_: Any) -> tuple[str, list[FunctionCall]]:
        """The text outside calls, and the calls; those that cannot be parsed are left out, as in verl."""
        turn = self._parser.parse(running("extract_tool_calls").context.renderer.decode(responses_ids))
        return turn.content, [FunctionCall(json.dumps(call.arguments), call.name) for call in turn.tool_calls]


class RunningTool:
    """A tool of the trajectory that is running, under verl's methods.

    Args:
        schema: its schema.
    """

    def __init__(self, schema: JsonDict) -> None:
        self.tool_schema = Schema(schema)
        self.name: str = schema["function"]["name"]

    def get_openai_tool_schema(self) -> Schema:
        """The schema that the model sees."""
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **_: Any) -> tuple[str, ToolResponse]:
        """Nothing: the worker has created it with the row's `create_kwargs`."""
        return instance_id or self.name, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: JsonDict, **_: Any
    ) -> tuple[ToolResponse, float | None, JsonDict]:
        """Run one call.

        Raises:
            PluginError: the row does not offer the tool.
            ToolServiceError: its service failed.
        """
        trajectory = running(f"tool '{self.name}'")
        tools = trajectory.context.tools
        if all(schema["function"]["name"] != self.name for schema in tools.schemas):
            raise PluginError(f"the run offers no tool '{self.name}' here: name it in multi_turn.tool_config_path")
        started = time.perf_counter()
        (response,) = await tools.execute([ToolCall(self.name, parameters)])
        trajectory.seconds += time.perf_counter() - started
        trajectory.calls += 1
        trajectory.errors += response.is_error
        if response.reward is not None:
            trajectory.rewards.append(response.reward)
        return ToolResponse(text=response.text), response.reward or 0.0, dict(response.metrics)

    async def calc_reward(self, instance_id: str, **_: Any) -> float:
        """The tool's reward for the trajectory."""
        return (await running(f"tool '{self.name}'").context.tools.calc_rewards()).get(self.name, 0.0)

    async def release(self, instance_id: str, **_: Any) -> None:
        """Nothing: the worker releases it."""


class RunningInteraction:
    """The interaction of the trajectory that is running, under verl's methods.

    Args:
        name: its name in rows.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    async def start_interaction(self, instance_id: str | None = None, **_: Any) -> str:
        """Nothing: the worker has started it with the row's `interaction_kwargs`."""
        return instance_id or self.name

    async def generate_response(
        self, instance_id: str, messages: list[JsonDict], **_: Any
    ) -> tuple[bool, str, float | None, JsonDict]:
        """The user's next message.

        Raises:
            PluginError: the row has no interaction.
        """
        interaction = running(f"interaction '{self.name}'").context.interaction
        if interaction is None:
            raise PluginError(
                f"the row names no interaction, so '{self.name}' cannot answer: give `interaction_kwargs`"
            )
        reply = await interaction.generate_response(messages)
        return reply.should_terminate, reply.content, reply.score, reply.metadata

    async def calculate_score(self, instance_id: str | None = None, **_: Any) -> float:
        """Score of the conversation."""
        interaction = running(f"interaction '{self.name}'").context.interaction
        return 0.0 if interaction is None else await interaction.calculate_score()

    async def finalize_interaction(self, instance_id: str | None = None, **_: Any) -> None:
        """Nothing: the worker finalizes it."""


def initialize_tools_from_config(tools_config_file: str) -> list[RunningTool]:
    """The tools of a tool YAML."""
    return [RunningTool(spec.schema) for spec in load_tools(tools_config_file)]


def initialize_interactions_from_config(interaction_config_file: str) -> dict[str, RunningInteraction]:
    """The interactions of an interaction YAML, by name."""
    return {name: RunningInteraction(name) for name in load_interactions(interaction_config_file)}
