"""Base classes and schemas of verl's plug-ins, for machines without verl.

They do as little as verl's: `agentrl.plugins.verl.adapters` recognises plug-ins by their methods, so a plug-in that
derives from verl's own classes, or from none, works the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from agentrl.plugins.verl.adapters import SchemaView
from agentrl.types import JsonDict

F = TypeVar("F", bound=Callable[..., Any])


class Schema(SchemaView):
    """A JSON object with attributes; also used for the parts of a function schema."""

    @classmethod
    def model_validate(cls, value: Any) -> Schema:
        """From a mapping."""
        return cls(value)


@dataclass
class ToolResponse:
    """A tool's result."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None


class BaseTool:
    """A tool with instance ids.

    Args:
        config: the tool YAML's `config`.
        tool_schema: its schema; None: `get_openai_tool_schema` gives it.
    """

    def __init__(self, config: JsonDict, tool_schema: Any = None) -> None:
        self.config = config
        self.tool_schema = tool_schema
        if self.tool_schema is None:
            self.tool_schema = self.get_openai_tool_schema()
        self.name = Schema(self.tool_schema).function.name if self.tool_schema else type(self).__name__

    def get_openai_tool_schema(self) -> Any:
        """The schema that the model sees."""
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Begin a trajectory."""
        return instance_id or str(uuid.uuid4()), ToolResponse()

    async def execute(
        self, instance_id: str, parameters: JsonDict, **kwargs: Any
    ) -> tuple[ToolResponse, float, JsonDict]:
        """Run a call: response, reward, metrics."""
        return ToolResponse(), 0.0, {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """Reward of the trajectory."""
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """End a trajectory."""


class BaseInteraction:
    """An interaction with instance ids.

    Args:
        config: the interaction YAML's `config`.
    """

    def __init__(self, config: JsonDict) -> None:
        self.config = config
        self.name: str = config.get("name", "interaction_agent")

    async def start_interaction(self, instance_id: str | None = None, **kwargs: Any) -> str:
        """Begin a conversation."""
        return instance_id or str(uuid.uuid4())

    async def generate_response(
        self, instance_id: str, messages: list[JsonDict], **kwargs: Any
    ) -> tuple[bool, str, float, JsonDict]:
        """Whether the conversation is over, the next user message, the turn's score, and extra values."""
        raise NotImplementedError(f"{type(self).__name__} has no generate_response")

    async def calculate_score(self, instance_id: str | None = None, **kwargs: Any) -> float:
        """Score of the conversation."""
        return 0.0

    async def finalize_interaction(self, instance_id: str | None = None, **kwargs: Any) -> None:
        """End a conversation."""


def rollout_trace_op(function: F) -> F:
    """Verl's tracing, without effect: agentrl has its own record of each trajectory."""
    return function
