"""Plain data that modules exchange: messages, tool calls, samples, generations and loop outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Message = dict[str, Any]
"""One chat message in the OpenAI shape: `{"role", "content", "tool_calls"?, "tool_call_id"?, "name"?}`."""

JsonDict = dict[str, Any]


class StopReason(StrEnum):
    """Why a trajectory ended."""

    COMPLETED = "completed"
    """The model answered without a tool call, and nothing follows."""
    INTERACTION_DONE = "interaction_done"
    """The interaction said that the conversation is over."""
    STOP_TOOL = "stop_tool"
    """A tool of `multi_turn.stop_tools` ran."""
    MAX_TURNS = "max_turns"
    """`max_assistant_turns` or `max_user_turns` was reached, or a limit of the loop's own."""
    MAX_TOOL_CALLS = "max_tool_calls"
    """`max_tool_calls` was used up."""
    LENGTH = "length"
    """The token budget ended: a turn was cut, or an observation did not fit."""
    EMPTY = "empty"
    """The engine returned no token for a turn."""
    ABORTED = "aborted"
    """The engine aborted the request (pause in abort mode, shutdown); partial tokens are kept, never trained on."""
    TIMEOUT = "timeout"
    """A deadline passed. The trajectory is left out of training."""
    ENV_ERROR = "env_error"
    """Infrastructure failed. The trajectory is left out of training."""

    @property
    def is_failure(self) -> bool:
        """True if the trajectory must be left out of the loss and of group statistics."""
        return self in (StopReason.TIMEOUT, StopReason.ENV_ERROR, StopReason.ABORTED)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that the model wrote. `arguments` is the parsed JSON object."""

    name: str
    arguments: JsonDict
    id: str = ""
    arguments_span: tuple[int, int] | None = field(default=None, compare=False)
    """Where the arguments are in the parsed text, as characters `[start, end)`; None: the parser does not say."""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """What a tool parser found in one assistant turn.

    `errors` holds one sentence per call that could not be parsed; the model gets it as a tool message.
    """

    content: str
    tool_calls: list[ToolCall] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def wants_tools(self) -> bool:
        """True if the turn holds a call, well formed or not."""
        return bool(self.tool_calls or self.errors)


@dataclass(slots=True)
class ToolResponse:
    """A tool's result. `text` goes to the model; `reward` and `metrics` go to the reward function and the log.

    Models see text only: a response with `image` or `video` fails its trajectory instead of silently losing them.
    `is_error` marks a mistake of the model: bad arguments, unknown tool, division by zero.
    """

    text: str = ""
    reward: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    image: list[Any] = field(default_factory=list)
    video: list[Any] = field(default_factory=list)
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may know about the conversation: passed to each call if `execute` has a parameter `context`."""

    messages: Sequence[Mapping[str, Any]]
    """The conversation up to the call, read-only; the last message holds the call."""
    turn: int
    """Number of the assistant turn that makes the call, counted from 1."""
    index: int | None
    """Number of the row in the dataset."""
    data_source: str
    ground_truth: Any
    extra_info: JsonDict
    """The row's `extra_info`; like `ground_truth`, it is this trajectory's own copy."""
    scratch: JsonDict
    """A dict that all tools of the trajectory share, for as long as it lives."""


@dataclass(slots=True)
class InteractionResponse:
    """One reply of an interaction. `score` is the turn's score; `content` is the next user message."""

    should_terminate: bool
    content: str
    score: float | None = None
    metadata: JsonDict = field(default_factory=dict)


@dataclass(slots=True)
class Sample:
    """One checked dataset row (reference: the row schema in docs/data.md)."""

    index: int
    prompt: list[Message]
    data_source: str
    ability: str = ""
    reward_model: JsonDict = field(default_factory=dict)
    agent_name: str | None = None
    tools_kwargs: dict[str, JsonDict] = field(default_factory=dict)
    interaction_kwargs: JsonDict = field(default_factory=dict)
    tool_config: JsonDict = field(default_factory=dict)
    extra_info: JsonDict = field(default_factory=dict)

    @property
    def ground_truth(self) -> Any:
        """`reward_model.ground_truth`; None if the row has none."""
        return self.reward_model.get("ground_truth")

    @property
    def tool_env_name(self) -> str | None:
        """The set of `multi_turn.tool_envs` that holds the row's tools; None: the run's `tool_config_path`."""
        return self.extra_info.get("tool_env_name")

    @property
    def tool_format(self) -> str | None:
        """The row's own tool parser; None: `multi_turn.format`."""
        return self.tool_config.get("tool_format")


@dataclass(slots=True)
class GenerationOutput:
    """One answer of an engine. All lists have one entry per sampled token, the end-of-turn token included."""

    token_ids: list[int]
    log_probs: list[float]
    weight_versions: list[int]
    finish_reason: str
    """`stop`, `length` or `abort`."""
    matched: int | str | None = None
    """The stop id or stop string that ended the generation."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    latency_s: float = 0.0


@dataclass(slots=True)
class AgentLoopOutput:
    """One finished trajectory: ids, mask, log-probs and weight versions of equal length."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float]
    num_turns: int
    stop_reason: StopReason
    weight_versions: list[int] = field(default_factory=list)
    reward_score: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    """Seconds and counts: `generate_sequences`, `tool_calls` (seconds), `num_tool_calls`, `num_tool_errors`."""
    extra_fields: JsonDict = field(default_factory=dict)
    """`messages`, `turn_scores`, `tool_rewards`, `num_tool_calls`, `error` (a failure's cause), and the loop's own."""


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """Limits of one conversation (`actor_rollout_ref.rollout.multi_turn.*`). None means no limit."""

    prompt_length: int
    """Most tokens of a prompt."""
    response_length: int
    """Most tokens of a response, observations included."""
    max_assistant_turns: int | None = None
    max_user_turns: int | None = None
    max_parallel_calls: int | None = None
    max_tool_calls: int | None = None
    max_tool_response_length: int | None = None
    tool_response_truncate_side: str = "middle"
    max_tokens_per_turn: int | None = None
    stop_tools: tuple[str, ...] = ()
    """The trajectory ends once one of these tools has run."""
    turn_timeout_s: float | None = None
    tool_timeout_s: float = 60.0
    trajectory_timeout_s: float | None = None
