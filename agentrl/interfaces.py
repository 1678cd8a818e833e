"""Every extension point of agentrl on one page.

A user writes one of these and names it in YAML, by entry point, with `@register` or by path; agentrl finds it through
`agentrl.plugins`. Each instance of a tool, interaction or loop lives exactly as long as one trajectory, so instance
attributes are the trajectory's state and nothing needs a dictionary by id.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from agentrl.clients import (
    CodeTest,
    RunResult,
    SandboxClient,
    ServiceClient,
    TestOutcome,
    WorkerScope,
    judge_tests,
    last_code_block,
    read_tests,
    run_tests,
    without_fence,
)
from agentrl.errors import suggest
from agentrl.timeline import trace_headers
from agentrl.types import (
    ROW_FIELDS,
    AgentLoopOutput,
    GenerationOutput,
    InteractionResponse,
    JsonDict,
    LoopLimits,
    Message,
    ParsedTurn,
    Sample,
    ToolCall,
    ToolResponse,
    TrajectoryFacts,
)

if TYPE_CHECKING:
    from agentrl.trajectory import Trajectory

__all__ = [
    "AgentLoopBase",
    "BaseInteraction",
    "BaseTool",
    "CodeTest",
    "GenerateFn",
    "LoopContext",
    "Renderer",
    "RewardInput",
    "RewardManager",
    "RewardResult",
    "RunResult",
    "Sample",
    "SandboxClient",
    "ServiceClient",
    "TestOutcome",
    "ToolParser",
    "ToolRunner",
    "TrajectoryFacts",
    "WorkerScope",
    "check_config",
    "judge_tests",
    "last_code_block",
    "read_tests",
    "run_tests",
    "trace_headers",
    "without_fence",
]

GenerateFn = Callable[[list[int], JsonDict], Awaitable[GenerationOutput]]
"""`await generate(prompt_ids, sampling_params)`: token ids in, token ids and log-probs out. Bound to one trajectory.

It adds what the run decides for every loop: the token budget of the turn, the ids that end it, and its deadline."""
TOOL_CONFIG = ("type", "timeout_s", "max_concurrency", "rate_limit_per_s", "limits_per")
"""Keys of a tool's `config` that agentrl itself reads."""


def check_config(config: JsonDict, known: Iterable[str]) -> None:
    """Refuse a `config` key that a plug-in does not read. Call it in `__init__`.

    Raises:
        ValueError: names the unknown key and the nearest known one.
    """
    known = [*known]
    for key in config:
        if key not in known:
            raise ValueError(f"unknown key 'config.{key}'.{suggest(key, known)}")


class BaseTool(ABC):
    """A tool that the model may call. The model's errors are returned; a service's errors are raised.

    Args:
        config: the tool's `config` mapping from the tool YAML.
        tool_schema: the OpenAI function schema from the YAML; None if the class supplies its own.
    """

    config_aliases: ClassVar[Mapping[str, str]] = {}
    """Other spellings of `config` keys; they are renamed when the tool YAML is read."""
    scope: WorkerScope | None = None
    """Connections and server processes that all trajectories of this worker share; set before `create`."""

    def __init__(self, config: JsonDict, tool_schema: JsonDict | None = None) -> None:
        self.config = config
        self.tool_schema = tool_schema if tool_schema is not None else self.default_schema()
        self.name: str = self.tool_schema["function"]["name"]

    @classmethod
    def default_schema(cls) -> JsonDict:
        """The schema to use if the YAML gives none."""
        raise NotImplementedError(f"{cls.__name__} has no schema of its own: give `tool_schema` in the tool YAML")

    @classmethod
    def schema_from_config(cls, config: JsonDict) -> JsonDict:
        """The same for a tool whose schema depends on its `config`."""
        return cls.default_schema()

    async def create(self, **create_kwargs: Any) -> None:
        """Called once before the first turn with the row's `tools_kwargs[name].create_kwargs`."""

    @abstractmethod
    async def execute(self, arguments: JsonDict, **execute_kwargs: Any) -> ToolResponse:
        """Run one call. `arguments` is what the model wrote, checked against the schema.

        A tool that declares one more parameter, `context`, gets an `agentrl.types.ToolContext` there: the
        conversation so far, the row, and a scratch dict that the trajectory's tools share.

        Returns:
            The result for the model. Set `is_error` if the model made a mistake.

        Raises:
            ToolServiceError: the service behind the tool failed after its retries; the trajectory is left out.
        """

    async def calc_reward(self, **kwargs: Any) -> float:
        """The tool's own reward for the whole trajectory, called once at its end."""
        return 0.0

    async def release(self, **kwargs: Any) -> None:
        """Release the tool's resources. Always called, however the trajectory ended."""


class BaseInteraction(ABC):
    """The other side of the conversation: reads the assistant's turns and answers as the user.

    Args:
        config: the interaction's `config` mapping from the interaction YAML.
    """

    scope: WorkerScope | None = None
    """Connections that all trajectories of this worker share; set before `start_interaction`."""

    def __init__(self, config: JsonDict) -> None:
        self.config = config

    async def start_interaction(self, **interaction_kwargs: Any) -> None:
        """Called once before the first turn with the row's `interaction_kwargs` (without `name`)."""

    @abstractmethod
    async def generate_response(self, messages: list[Message]) -> InteractionResponse:
        """Answer the conversation so far, which ends with an assistant message."""

    async def calculate_score(self) -> float:
        """The score of the whole conversation."""
        return 0.0

    async def finalize_interaction(self) -> None:
        """Release the interaction's resources. Always called, however the trajectory ended."""


class ToolParser(ABC):
    """Finds tool calls in the text of one assistant turn. Never raises on any text."""

    @abstractmethod
    def parse(self, text: str, tools: Sequence[JsonDict] | None = None) -> ParsedTurn:
        """Split `text` into content, calls and errors.

        Args:
            text: the turn, special tokens included, without the stop id that ended it.
            tools: schemas of the tools that the row offers. Formats that write every value as text take its type from
                there. Your own parser may omit the parameter.
        """


class Renderer(Protocol):
    """Messages to token ids and back. Implemented by `agentrl.chat.renderer.ChatRenderer`."""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Ids that end a turn."""

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[JsonDict] | None = None) -> list[int]:
        """Ids of a conversation followed by the generation prompt."""

    def delta(
        self, messages: Sequence[Message], *, sampled_ids: Sequence[int], tools: Sequence[JsonDict] | None = None
    ) -> list[int]:
        """Ids that follow a sampled turn: its missing end-of-turn scaffold, `messages`, the generation prompt."""

    def encode_text(self, text: str, *, starts: bool = False) -> list[int]:
        """Ids of plain text; look-alikes of special tokens stay plain text.

        Args:
            text: any text.
            starts: begin with the token that the tokenizer puts at the start of every text, if there is one.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids without the stop id at the end; other special tokens are kept."""


class ToolRunner(Protocol):
    """The tools of one trajectory. Implemented by `agentrl.rollout.tools.toolset.ToolSet`."""

    @property
    def schemas(self) -> list[JsonDict]:
        """Schemas of the tools that this row offers, in YAML order."""

    async def execute(
        self, calls: Sequence[ToolCall], *, messages: Sequence[Message] = (), turn: int = 0
    ) -> list[ToolResponse]:
        """Run calls concurrently, each with its own timeout; one response per call, in order.

        `messages`, the conversation that ends with the calls, and the number of its assistant turn are for tools that
        take a `context`.

        Mistakes of the model are returned as responses with `is_error`. A service failure or a timeout of a tool raises
        `ToolServiceError`. Calls beyond `max_parallel_calls` are not run, and their responses say so.
        """

    async def calc_rewards(self) -> dict[str, float]:
        """`calc_reward` of every tool that was called, by tool name."""


@dataclass(frozen=True, slots=True)
class LoopContext:
    """The services of one trajectory's loop, built by the worker."""

    generate: GenerateFn
    renderer: Renderer
    tool_parser: ToolParser
    tools: ToolRunner
    """Started; the worker releases them."""
    interaction: BaseInteraction | None
    """Started; the worker finalizes it. Each of its calls has a deadline (`tool_timeout_s`)."""
    limits: LoopLimits
    new_trajectory: Callable[[list[int]], Trajectory]
    """`new_trajectory(prompt_ids)` with the run's response budget and the row's pictures; kept to report a failure."""
    run_config: Any = None
    """The run's configuration, for loops written for verl; None outside a run."""


class AgentLoopBase(ABC):
    """One conversation between the model, its tools and its user.

    Args:
        context: the services of this trajectory.
        **kwargs: the options of the agent-loop YAML entry, without `name` and `_target_`.
    """

    uses_tools: ClassVar[bool] = True
    """False: rows that give this loop tools are refused at the start, not silently ignored."""
    uses_interaction: ClassVar[bool] = True
    """False: rows that give this loop an interaction are refused at the start."""
    shows_tools: ClassVar[bool] = True
    """True: a chat template that omits the tools is refused at the start. False: prompts need not name the tools."""
    sees_pictures: ClassVar[bool] = False
    """True: the loop shows pictures to the model; False: rows with pictures are refused at the start."""
    uses_format: ClassVar[bool] = True
    """False: the loop reads its calls itself, and `multi_turn.format` does not act on it."""
    ends_alone: ClassVar[bool] = False
    """True: where a row has neither tools nor an interaction, the loop ends after its first generation."""
    object_options: ClassVar[tuple[str, ...]] = ()
    """Options that name a Python object (`module.path:name` or `file.py:name`); the loop gets the object."""

    def __init__(self, context: LoopContext, **kwargs: Any) -> None:
        self.context = context
        if kwargs:
            raise TypeError(f"{type(self).__name__} takes no options, got {sorted(kwargs)}")

    @classmethod
    def render_prompt(
        cls, renderer: Renderer, messages: Sequence[Message], tools: Sequence[JsonDict], **options: Any
    ) -> list[int]:
        """Ids of the first request. Also called before the run starts, to measure each row.

        Args:
            renderer: the model's renderer.
            messages: the row's prompt.
            tools: schemas of the tools that the row offers.
            **options: the loop's own options.
        """
        return renderer.render_prompt(messages, tools or None)

    @property
    def parser(self) -> ToolParser | None:
        """The parser that finds calls for `multi_turn.trainable_turns`; None: the loop's turns hold no calls."""
        return self.context.tool_parser if self.uses_tools and self.context.tools.schemas else None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let `run` be called with a sample or with the row's fields, whichever of the two it takes."""
        super().__init_subclass__(**kwargs)
        if not hasattr(cls.run, "takes_sample"):
            cls.run = _for_either_call(cls.run)  # type: ignore[method-assign, assignment]

    @abstractmethod
    async def run(self, sampling_params: JsonDict, sample: Sample) -> AgentLoopOutput:
        """Play the conversation to its end.

        A loop may take the row's fields as keywords instead, all or some of them::

            async def run(self, sampling_params, **row_fields): ...
            async def run(self, sampling_params, messages, extra_info): ...

        It gets `messages` (the prompt) and the others of `ROW_FIELDS`; its parameters say which: a `sample`, or none.

        Args:
            sampling_params: as in SGLang's `/generate`. A loop passes them to `context.generate`, which adds the token
                budget, stop ids and deadline of a turn; for shorter turns it sets a smaller `max_new_tokens`.
            sample: the row. It belongs to this trajectory; nobody else sees what the loop does to it.

        Returns:
            The tokens, and in `extra_fields` what rewards read, by the names of `agentrl.types.TrajectoryFacts`.
        """


def _for_either_call(run: Callable[..., Awaitable[AgentLoopOutput]]) -> Callable[..., Awaitable[AgentLoopOutput]]:
    """A loop's `run` for both kinds of caller: the worker has the sample, a subclass or a test may have the fields.

    Its signature is read here, once for its class. `run(self, sampling_params, messages)` gets that field only.
    """
    parameters = inspect.signature(run).parameters
    takes_sample = "sample" in parameters
    by_place = takes_sample and parameters["sample"].kind is inspect.Parameter.POSITIONAL_ONLY
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())

    @functools.wraps(run)
    async def either(
        self: AgentLoopBase, sampling_params: JsonDict, sample: Sample | None = None, **row_fields: Any
    ) -> AgentLoopOutput:
        if takes_sample:
            row = Sample.of_row_fields(row_fields) if sample is None else sample
            return await (run(self, sampling_params, row) if by_place else run(self, sampling_params, sample=row))
        fields = row_fields if sample is None else sample.row_fields()
        if not takes_all:  # what is no field of a row stays, and is an error
            fields = {name: value for name, value in fields.items() if name in parameters or name not in ROW_FIELDS}
        return await run(self, sampling_params, **fields)

    either.takes_sample = takes_sample  # type: ignore[attr-defined]
    return either


@dataclass(frozen=True, slots=True)
class RewardInput:
    """The input of a score function."""

    data_source: str
    solution_str: str
    """The assistant's text of all turns, without tool and user messages."""
    ground_truth: Any
    extra_info: JsonDict = field(default_factory=dict)
    """The row's `extra_info`, `num_turns`, and of `agentrl.types.TrajectoryFacts` the `messages`, `turn_scores`,
    `tool_rewards`, `tool_scores` and `num_tool_calls`, and what else the loop gives."""
    sample: Sample | None = None
    output: AgentLoopOutput | None = None
    """The row and the trajectory's tokens; None where only an answer is known, as in `agentrl check --grader`."""


@dataclass(frozen=True, slots=True)
class RewardResult:
    """A trajectory's outcome score and the score function's other values (logged, and grouped in validation)."""

    score: float
    extra: dict[str, Any] = field(default_factory=dict)
    service_used: bool = True
    """False: no service was called for this score, so it does not show that the service is up."""
    placed: tuple[tuple[int, float], ...] = ()
    """The part of the score that is on response tokens other than the last sampled one: `((place, reward), ...)`."""
    metrics: dict[str, float] = field(default_factory=dict)  # each step reports `reward/NAME/{mean,max,min}` of them


class RewardManager(ABC):
    """Scores finished trajectories; `score` runs as soon as one ends, overlapped with those that still run."""

    @abstractmethod
    async def score(self, item: RewardInput) -> RewardResult:
        """Score one trajectory.

        Raises:
            RewardError: the score function failed; the trajectory is left out of training, never scored 0.
        """
