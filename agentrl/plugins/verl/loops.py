"""Runs an agent loop written for verl: its generations are recorded, and its output is proved against them.

Such a loop gets the run's configuration, a server manager and a tokenizer, and builds ids and mask itself. What it
returns is trained on only if every token with mask 1 is one that the engine sampled at that place; log-probs and weight
versions are the engine's.
"""

from __future__ import annotations

import asyncio
import inspect
import operator
import time
from collections.abc import Mapping
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar

from agentrl.errors import PluginError, TokenStreamError, repr_of
from agentrl.interfaces import AgentLoopBase, LoopContext
from agentrl.plugins.verl.run_view import ConfigHolder, tokenizer_of, view_of
from agentrl.plugins.verl.running import RUNNING, Running
from agentrl.plugins.verl.sampled_stream import Proven, SampledStreams
from agentrl.reported import number_of
from agentrl.types import AgentLoopOutput, JsonDict, Message, Sample, StopReason

OFFERED = ("trainer_config", "server_manager", "tokenizer", "processor", "dataset_cls", "dataset_config", "data_config")
"""What a constructor may take; the rest are options of the agent-loop YAML."""
_NOT_FOR_THE_ENGINE = ("logprobs", "prompt_logprobs", "return_logprob", "detokenize", "include_stop_str_in_output")
"""Sampling parameters of other engines that ask for what every answer has here."""
_RENAMED = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}
_ROW_FIELDS = (
    *("index", "data_source", "ability", "reward_model", "agent_name", "extra_info"),
    *("tools_kwargs", "interaction_kwargs"),
)
_OF_VERL = {"server_manager", "trainer_config"}
_WANTED = "an AgentLoopOutput with prompt_ids, response_ids and response_mask"


class TokenOutput(list[int]):
    """One answer of the engine: the sampled ids as a list, as older loops read it, with the fields of newer ones.

    Args:
        token_ids: sampled ids.
        log_probs: of each of them.
        stop_reason: `completed`, or `aborted`.
    """

    def __init__(self, token_ids: list[int], log_probs: list[float], stop_reason: str = "completed") -> None:
        super().__init__(token_ids)
        self.token_ids = token_ids
        self.log_probs = log_probs
        self.stop_reason = stop_reason
        self.num_preempted = 0
        self.routed_experts = None
        self.extra_fields: JsonDict = {}


class ServerManager:
    """`self.server_manager` of a loop: asks this trajectory's engine, and keeps what it sampled.

    Args:
        context: of the trajectory.
    """

    def __init__(self, context: LoopContext) -> None:
        self._context = context
        self._last_is_empty = False
        self.streams = SampledStreams()
        self.seconds = 0.0
        """In requests."""

    async def generate(
        self, request_id: str = "", *, prompt_ids: Any, sampling_params: Mapping[str, Any], **media: Any
    ) -> TokenOutput:
        """Sample one turn.

        Args:
            request_id: names a conversation in verl; here the ids themselves say which one a request continues.
            prompt_ids: the whole context.
            sampling_params: `max_tokens` and `seed` are read as `max_new_tokens` and `sampling_seed`.
            **media: `image_data` and `video_data`, which must be empty.

        Raises:
            PluginError: the ids are no list of whole numbers, or there are images.
            EngineError: see `LoopContext.generate`.
        """
        for name, value in media.items():
            if name.endswith(("_data", "_datas")) and value is not None and len(value):
                raise PluginError(
                    f"server_manager.generate: {name}: got {repr_of(value)}, but loops written for verl see no "
                    "pictures here: use tool_agent or single_turn_agent"
                )
        ids = _ids("server_manager.generate: prompt_ids", prompt_ids)
        stream, follows = self.streams.of_request(ids)
        if not follows:
            self._context.new_trajectory(ids[: stream.prompt_length])
        started = time.perf_counter()
        output = await self._context.generate(list(ids), _engine_params(sampling_params))
        self.seconds += time.perf_counter() - started
        self._last_is_empty = not output.token_ids
        stream.add(ids, output)
        aborted = output.finish_reason == "abort"
        return TokenOutput(list(output.token_ids), list(output.log_probs), "aborted" if aborted else "completed")

    def stop_reason(self, proven: Proven) -> StopReason:
        """Why the trajectory ended, as far as the engine's answers say."""
        if "abort" in proven.finish_reasons:
            return StopReason.ABORTED
        if self._last_is_empty:
            return StopReason.EMPTY
        return StopReason.LENGTH if proven.finish_reasons[-1:] == ["length"] else StopReason.COMPLETED


class VerlLoop(AgentLoopBase):
    """A verl loop of one trajectory; `adapted` makes a subclass for each of the user's classes.

    Args:
        context: of the trajectory.
        **options: of the agent-loop YAML.
    """

    shows_tools = False
    verl_class: ClassVar[type]
    name = ""
    """Its name in the run."""

    def __init__(self, context: LoopContext, **options: Any) -> None:
        self.context = context
        self._server = ServerManager(context)
        self._options = options

    async def run(self, sampling_params: JsonDict, sample: Sample) -> AgentLoopOutput:
        """Play the conversation and prove the tokens.

        Raises:
            PluginError: the loop returned something else, or lists of different lengths.
            TokenStreamError: its mask marks a token that no engine sampled.
        """
        trajectory = Running(self.context)
        token = RUNNING.set(trajectory)
        try:
            loop = self.verl_class(**self._arguments())
            returned = loop.run(**_run_arguments(type(loop).run, sampling_params, sample))
            output = await returned if inspect.isawaitable(returned) else returned
            return self._proved(output, trajectory, sample)
        except (PluginError, TokenStreamError) as error:
            raise type(error)(f"agent loop '{self.name or self.verl_class.__qualname__}': {error}") from error
        finally:
            RUNNING.reset(token)

    def _arguments(self) -> JsonDict:
        """Keywords for the constructor, those that it takes."""
        config = self.context.run_config
        offered: JsonDict = {
            "trainer_config": ConfigHolder(view_of(config, self.context.limits)),
            "server_manager": self._server,
            "tokenizer": tokenizer_of(self.context.renderer),
            "processor": None,
        }
        takes = inspect.signature(self.verl_class).parameters
        own = {name: value for name, value in offered.items() if name in takes or _takes_any(takes)}
        for name in ("dataset_config", "data_config"):  # newer ones; an older base class knows no such keyword
            if name in takes:
                own[name] = ConfigHolder(offered["trainer_config"].config.data)
        return {**own, **({"dataset_cls": None} if "dataset_cls" in takes else {}), **self._options}

    def _proved(self, output: Any, trajectory: Running, sample: Sample) -> AgentLoopOutput:
        """The loop's output with the engine's own log-probs and versions, cut after its last sampled token."""
        if isinstance(output, type) or not all(
            hasattr(output, name) for name in ("prompt_ids", "response_ids", "response_mask")
        ):
            raise PluginError(f"run returned {repr_of(output)}, wanted {_WANTED}")
        prompt, response = _ids("prompt_ids", output.prompt_ids), _ids("response_ids", output.response_ids)
        mask = _mask(output.response_mask)
        for name, given in (("response_mask", mask), ("response_logprobs", getattr(output, "response_logprobs", None))):
            if given is not None and len(given) != len(response) and (len(given) or name == "response_mask"):
                raise PluginError(f"{name} has {len(given)} entries, but response_ids has {len(response)}")
        if _holds_media(getattr(output, "multi_modal_data", None)):
            raise PluginError(
                "multi_modal_data holds images or videos, but loops written for verl see none here: use tool_agent"
            )
        proven = self._server.streams.prove(prompt, response, mask)
        count = max((place + 1 for place, sampled in enumerate(proven.mask) if sampled), default=0)
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=response[:count],
            response_mask=proven.mask[:count],
            response_logprobs=proven.log_probs[:count],
            weight_versions=proven.versions[:count],
            loss_mask=mask[:count] if mask[:count] != proven.mask[:count] else None,
            num_turns=getattr(output, "num_turns", 0) or 0,
            stop_reason=self._server.stop_reason(proven),
            reward_score=getattr(output, "reward_score", None),
            metrics={**self._measured(trajectory), **_metrics(getattr(output, "metrics", None))},
            extra_fields={
                "messages": [*sample.prompt, *self._said(response[:count], proven.mask[:count])],
                "num_tool_calls": trajectory.calls,
                "turn_scores": [],
                "tool_rewards": trajectory.rewards,
                **(getattr(output, "extra_fields", None) or {}),
            },
        )

    def _measured(self, trajectory: Running) -> dict[str, float]:
        calls = {"num_tool_calls": trajectory.calls, "num_tool_errors": trajectory.errors}
        return {"generate_sequences": self._server.seconds, "tool_calls": trajectory.seconds, **calls}

    def _said(self, response: list[int], mask: list[int]) -> list[Message]:
        """The assistant's turns; what is between them belongs to the loop, which may report `messages` itself."""
        turns = [
            [ids for ids, _ in run] for one, run in groupby(zip(response, mask, strict=True), itemgetter(1)) if one
        ]
        return [{"role": "assistant", "content": self.context.renderer.decode(ids)} for ids in turns]


def is_verl_loop(cls: Any) -> bool:
    """Whether a class is a loop written for verl: its constructor takes a server manager, or its methods use one."""
    if not isinstance(cls, type) or not callable(getattr(cls, "run", None)) or issubclass(cls, VerlLoop):
        return False
    methods = [vars(base) for base in cls.__mro__ if base not in (object, AgentLoopBase)]
    if any(not _OF_VERL.isdisjoint(_parameters(own["__init__"])) for own in methods if "__init__" in own):
        return True
    if not issubclass(cls, AgentLoopBase) or cls.__init__ is not AgentLoopBase.__init__:
        return False
    return any("server_manager" in _names_in(method) for own in methods for method in own.values())


@lru_cache(maxsize=256)
def adapted(cls: type) -> type[VerlLoop]:
    """A loop of agentrl around a class written for verl."""
    verl_class = cls
    if issubclass(cls, AgentLoopBase):  # `super().__init__(trainer_config, …)` must find verl's constructor
        verl_class = type(cls.__name__, (cls, _OwnVerlLoopBase), {"__module__": cls.__module__})
    fields = {"verl_class": verl_class, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (VerlLoop,), {**fields, "__doc__": cls.__doc__})


class VerlLoopBase:
    """verl's `AgentLoopBase`, for loops on machines without verl.

    Args:
        trainer_config: has the run's configuration as `config`.
        server_manager: `await server_manager.generate(request_id=, prompt_ids=, sampling_params=)`.
        tokenizer: of the model; its `apply_chat_template` returns ids.
        processor: None: the model reads text only.
        **kwargs: the loop's options.
    """

    def __init__(
        self, trainer_config: Any, server_manager: Any, tokenizer: Any, processor: Any = None, **kwargs: Any
    ) -> None:
        self.config = trainer_config.config
        self.server_manager = server_manager
        self.tokenizer = tokenizer
        self.processor = processor
        self.loop = asyncio.get_running_loop()
        self.init_class(config=self.config, tokenizer=tokenizer, processor=processor, **kwargs)

    _class_initialized = False
    """For loops whose `init_class` does its work once."""

    @classmethod
    def init_class(cls, config: Any, tokenizer: Any, processor: Any = None, **kwargs: Any) -> None:
        """Set-up that all trajectories share; a loop may override it."""

    async def process_vision_info(self, messages: list[JsonDict]) -> JsonDict:
        """The images and videos of messages: none, the model reads text only."""
        return {}

    async def apply_chat_template(
        self,
        messages: list[JsonDict],
        tools: list[JsonDict] | None = None,
        images: Any = None,
        videos: Any = None,
        remove_system_prompt: bool = False,
    ) -> list[int]:
        """Ids of messages and the generation prompt.

        Args:
            messages: to render.
            tools: schemas that the template shows.
            images: must be empty, like `videos`.
            videos: see `images`.
            remove_system_prompt: leave out what the template puts before the first message.

        Raises:
            PluginError: there are images or videos.
        """
        if images or videos:
            raise PluginError(
                "apply_chat_template: got images or videos, but loops written for verl see none here: use tool_agent"
            )
        render = self.tokenizer.apply_chat_template
        ids: list[int] = list(render(messages, tools=tools, add_generation_prompt=True, tokenize=True))
        if not remove_system_prompt:
            return ids
        # The template's own start: [S, U] for one empty user message, [S, U, U] for two, so S is U shorter than [S, U].
        one, two = (list(render([{"role": "user", "content": ""}] * count, tokenize=True)) for count in (1, 2))
        return ids[2 * len(one) - len(two) :]

    async def run(self, sampling_params: JsonDict, **kwargs: Any) -> Any:
        """Play the conversation."""
        raise NotImplementedError(f"{type(self).__name__} has no run")


class _OwnVerlLoopBase(VerlLoopBase, AgentLoopBase):
    """The same below a loop that derives from agentrl's `AgentLoopBase` but has verl's constructor."""

    run = VerlLoopBase.run  # type: ignore[assignment]


def own_options(cls: type[VerlLoop]) -> list[inspect.Parameter]:
    """The constructor's parameters that the agent-loop YAML may give."""
    parameters = inspect.signature(cls.verl_class).parameters.values()
    return [parameter for parameter in parameters if parameter.name not in OFFERED]


def _run_arguments(run: Any, sampling_params: JsonDict, sample: Sample) -> JsonDict:
    """Keywords for `run`, under verl's names; all of them if it takes any."""
    params = {**sampling_params, "logprobs": True}
    row = {name: getattr(sample, name) for name in _ROW_FIELDS}
    usual = {"sampling_params": params, "raw_prompt": sample.prompt, "multi_modal_data": {}, **row}
    takes = inspect.signature(run).parameters
    named = {"messages": sample.prompt, "sample": sample, **usual}
    return {name: value for name, value in named.items() if name in takes or (_takes_any(takes) and name in usual)}


def _engine_params(given: Mapping[str, Any]) -> JsonDict:
    """Sampling parameters under the names of the engine."""
    params = {_RENAMED.get(name, name): value for name, value in given.items() if name not in _NOT_FOR_THE_ENGINE}
    if params.get("n", 1) in (None, 1):
        params.pop("n", None)
    return {name: value for name, value in params.items() if value is not None}


def _ids(what: str, value: Any) -> list[int]:
    try:
        return list(map(operator.index, value.tolist() if hasattr(value, "tolist") else value))
    except TypeError:
        raise PluginError(f"{what}: got {repr_of(value)}, wanted a list of token ids") from None


def _mask(value: Any) -> list[int]:
    values = [number_of(item) for item in (value.tolist() if hasattr(value, "tolist") else value or ())]
    for place, number in enumerate(values):
        if number not in (0.0, 1.0):
            raise PluginError(f"response_mask holds {repr_of(value[place])} at token {place}, wanted 0 or 1")
    return [int(number or 0) for number in values]


def _metrics(given: Any) -> dict[str, float]:
    """Numbers by name, without those that verl fills in: no seconds, no preemptions."""
    if not isinstance(given, Mapping):
        given = given.model_dump() if hasattr(given, "model_dump") else vars(given) if given is not None else {}
    return {name: value for name, value in given.items() if value is not None and value != 0 and value != -1}


def _holds_media(value: Any) -> bool:
    items = value.values() if isinstance(value, Mapping) else [value]
    return any(item is not None and (not hasattr(item, "__len__") or len(item) > 0) for item in items)


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def _parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)


def _names_in(method: Any) -> tuple[str, ...]:
    code = getattr(inspect.unwrap(getattr(method, "__func__", method)), "__code__", None) if callable(method) else None
    return code.co_names if code is not None else ()
