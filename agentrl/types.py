"""Plain data that modules exchange: messages, tool calls, samples, generations and loop outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
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
    """The model sampled no token in a turn. Scored like any other answer; what it sampled before is trained on."""
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

    `image` holds pictures, which the model sees before the text: bytes, data URIs, arrays or PIL images. A model
    that sees none fails the trajectory instead of silently losing them, and so does `video`.
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
    image: list[Any] = field(default_factory=list)
    """Pictures that the model sees before the text, as in `ToolResponse`."""


FUNCTION_CALLING = "function_calling"
"""A `tool_format` that says that tools are called as the model's chat template shows them."""


@dataclass(slots=True)
class Sample:
    """One checked dataset row, as docs/data.md describes it. Each trajectory has a copy of its own."""

    index: int
    """Its number in the dataset, from 0."""
    prompt: list[Message]
    """The conversation so far."""
    data_source: str
    """Picks the score function, and the breakdown in validation."""
    ability: str = ""
    """A free label."""
    reward_model: JsonDict = field(default_factory=dict)
    """`{"style", "ground_truth"}`: what the score function compares with."""
    agent_name: str | None = None
    """The agent loop; None: `rollout.agent.default_agent_loop`."""
    tools_kwargs: dict[str, JsonDict] = field(default_factory=dict)
    """`{tool: {"create_kwargs", "execute_kwargs", "calc_reward_kwargs", "release_kwargs"}}`, each optional."""
    interaction_kwargs: JsonDict = field(default_factory=dict)
    """`{"name", ...}`: the interaction, and what it is started with; empty: the row has none."""
    tool_config: JsonDict = field(default_factory=dict)
    """`{"available_tools": [names], "tool_format", "max_tool_calls", "timeout"}`, each optional: offers fewer tools,
    reads calls otherwise, limits the calls and the seconds of each. `tools`: the row's own descriptions, by name."""
    extra_info: JsonDict = field(default_factory=dict)
    """Whatever else the row holds; the score function gets it."""

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
        """The row's own tool parser; None: `multi_turn.format`. `function_calling` names no syntax: it is the run's."""
        named = self.tool_config.get("tool_format")
        return None if named == FUNCTION_CALLING else named

    def row_fields(self) -> JsonDict:
        """The row as keywords, for a loop whose `run` has no parameter `sample`; the prompt is `messages` there."""
        return {name: self.prompt if name == "messages" else getattr(self, name) for name in ROW_FIELDS}

    @classmethod
    def of_row_fields(cls, row_fields: Mapping[str, Any]) -> Sample:
        """The other way round; all but `messages` may be missing.

        Raises:
            TypeError: `messages` is missing.
        """
        if "messages" not in row_fields:
            raise TypeError(f"a row needs `messages`, got {sorted(row_fields)}")
        known = {each.name: row_fields[each.name] for each in fields(cls) if each.name in row_fields}
        return cls(**{"index": 0, "data_source": "", **known, "prompt": row_fields["messages"]})


ROW_FIELDS = ("messages", "index", "data_source", "reward_model", "extra_info", "tools_kwargs", "interaction_kwargs")


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
    response_logprobs: list[float] = field(default_factory=list)
    num_turns: int = 0
    stop_reason: StopReason = StopReason.COMPLETED
    weight_versions: list[int] = field(default_factory=list)
    reward_score: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    """Seconds and counts: `generate_sequences`, `tool_calls` (seconds), `num_tool_calls`, `num_tool_errors`."""
    extra_fields: JsonDict = field(default_factory=dict)
    """The values that rewards and logs read, named as in `TrajectoryFacts`, and any others that the loop reports."""
    loss_mask: list[int] | None = None
    """0 for sampled tokens that the loop does not want trained; None: all of `response_mask` are."""


@dataclass(slots=True)
class TrajectoryFacts:
    """A loop's report on a trajectory besides its tokens: the content of `AgentLoopOutput.extra_fields`, with types.

    All of it reaches the score function in `extra_info`. A field that a loop omits has its default.
    """

    messages: list[Message] = field(default_factory=list)
    """The whole conversation, the prompt included."""
    turn_scores: list[float] = field(default_factory=list)
    """The interaction's scores of turns."""
    turn_score_turns: list[int] | None = None
    """The assistant turn of each of `turn_scores`, counted from 0; None: not reported, or one score for every turn."""
    tool_rewards: list[float] = field(default_factory=list)
    """The tools' rewards of calls."""
    tool_reward_turns: list[int] | None = None
    """The assistant turn that made the call of each of `tool_rewards`, counted from 0; None: as above."""
    num_tool_calls: int = 0
    """Number of calls that ran."""
    tool_errors: list[int] | None = None
    """Places in `messages` of answers to a mistake of the model, counted from 0; None: not reported."""
    tool_scores: dict[str, float] = field(default_factory=dict)
    """`calc_reward` of each tool that was called, by name: its reward for the whole trajectory."""
    interaction_score: float | None = None
    """`calculate_score` of the interaction; None: the row has none."""
    stop_tool: JsonDict | None = None
    """`{"name", "arguments", "response"}` of the call of `multi_turn.stop_tools` that ended the trajectory."""
    error: str | None = None
    """Why the trajectory is left out, if its `stop_reason` is a failure."""
    other: JsonDict = field(default_factory=dict)
    """Other values that the loop reports."""

    def as_fields(self) -> JsonDict:
        """The dictionary for `extra_fields`, without values that are None."""
        names = (name for name in self.__slots__ if name != "other")
        return {name: value for name in names if (value := getattr(self, name)) is not None} | self.other


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """Limits of one conversation (`actor_rollout_ref.rollout.multi_turn.*`). None means no limit."""

    prompt_length: int
    """Most tokens of a prompt."""
    response_length: int
    """Most tokens of a response, observations included."""
    max_assistant_turns: int | None = None
    """Most generations."""
    max_user_turns: int | None = None
    """Most answers to the model; a round of tool messages counts as one."""
    max_parallel_calls: int | None = None
    """Most calls of one turn that are run; the others are answered with a message that says so."""
    max_tool_calls: int | None = None
    """Most calls of one trajectory."""
    max_tool_response_length: int | None = None
    """Most tokens of a tool's answer that the model reads."""
    tool_response_truncate_side: str = "middle"
    """What is kept of a longer one: `left` its head, `right` its tail, `middle` both."""
    max_images: int | None = None
    """Most pictures of one trajectory, those of its prompt included."""
    max_tokens_per_turn: int | None = None
    """Most tokens of one generation; None: what is left of the response."""
    stop_tools: tuple[str, ...] = ()
    """The trajectory ends once one of these tools has run."""
    turn_timeout_s: float | None = None
    """Deadline of one generation, retries included."""
    tool_timeout_s: float = 60.0
    """Deadline of each call of a tool or interaction; a tool's own `config.timeout_s` goes first."""
    trajectory_timeout_s: float | None = None
    """Deadline of everything."""


IS_ERROR = "is_error"
"""The key of a tool message that answers a mistake of the model. Dumps have it; no chat template sees it."""


def mark_errors(messages: Any, errors: Sequence[int] | None) -> Any:
    """The messages, each tool message with `is_error`, true at the places `errors`.

    Args:
        messages: of a conversation; what is no list stays as it is.
        errors: `tool_errors` of its facts; None: nobody knows, and no message is marked.
    """
    if errors is None or not isinstance(messages, Sequence):
        return messages
    return [
        {**message, IS_ERROR: place in errors} if place in errors or message.get("role") == "tool" else message
        for place, message in enumerate(messages)
    ]


def without_error_marks(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages without `is_error`, as templates, tools, interactions and score functions get them."""
    return [{name: value for name, value in message.items() if name != IS_ERROR} for message in messages]
