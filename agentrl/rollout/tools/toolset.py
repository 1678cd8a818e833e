"""The tools of one trajectory: built for it, called by it, released with it. The tool boundary of rules R9 and R10."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from agentrl.errors import InfrastructureError, PluginError, ToolServiceError, suggest
from agentrl.interfaces import BaseTool, Renderer
from agentrl.plugins import ToolSpec
from agentrl.rollout.deadline import within
from agentrl.rollout.service_gate import ServiceGate, tool_service
from agentrl.rollout.tools.context import ToolContexts
from agentrl.rollout.tools.recording import CallCache, NoCache
from agentrl.rollout.tools.shared import ToolHost
from agentrl.types import JsonDict, LoopLimits, Message, Sample, ToolCall, ToolContext, ToolResponse

logger = logging.getLogger(__name__)

_CHARS_PER_TOKEN = 64
"""Longer texts are cut to this many characters per allowed token before they are encoded, so that megabytes of tool
output never hold up the event loop. Only runs of a single repeated character come near it."""
_RELEASE_TIMEOUT_S = 10.0


class ToolSet:
    """One fresh instance of each tool that the row offers.

    Args:
        specs: the run's tools.
        limits: tool timeout, parallel calls, length of a response.
        renderer: counts the tokens of a response.
        tools_kwargs: the row's `{tool: {create_kwargs, execute_kwargs, calc_reward_kwargs, release_kwargs}}`.
        available: names of the tools that this row offers; None: all.
        gate: is told which tools' services answer and which fail.
        host: what the tools of this worker share; None: they share it with nobody, and it ends with `release`.
        cache: recorded results; None: every call is made.
        contexts: what tools that take a `context` see; None: an empty row.

    Raises:
        PluginError: the row names a tool that the run does not have.
    """

    def __init__(
        self,
        specs: Sequence[ToolSpec],
        *,
        limits: LoopLimits,
        renderer: Renderer,
        tools_kwargs: Mapping[str, JsonDict | None] | None = None,
        available: Collection[str] | None = None,
        gate: ServiceGate | None = None,
        host: ToolHost | None = None,
        cache: CallCache | None = None,
        contexts: ToolContexts | None = None,
    ) -> None:
        names = [spec.name for spec in specs]
        for name in [*(available or ()), *(tools_kwargs or {})]:
            if name not in names:
                raise PluginError(f"no tool is named '{name}'.{suggest(name, names)}")
        self._specs = {spec.name: spec for spec in specs if available is None or spec.name in available}
        self._tools: dict[str, BaseTool] = {}
        self._limits = limits
        self._renderer = renderer
        self._kwargs = {name: kwargs or {} for name, kwargs in (tools_kwargs or {}).items()}
        self._called: set[str] = set()
        self._gate = gate
        self._host = host or ToolHost()
        self._owns_host = host is None
        self._cache = cache or NoCache()
        self._contexts = contexts or ToolContexts(Sample(index=0, prompt=[], data_source=""))

    @property
    def schemas(self) -> list[JsonDict]:
        """Schemas of the tools that this row offers, in YAML order."""
        return [spec.schema for spec in self._specs.values()]

    async def start(self) -> None:
        """Build and create every tool.

        Raises:
            ToolServiceError: a tool cannot be created (R9).
        """
        for name, spec in self._specs.items():
            tool = self._tools[name] = spec.build()
            tool.scope = self._host.scope
            if self._cache.replays:
                continue
            await self._guard(name, tool.create, self._timeout(spec), **self._row(name, "create_kwargs"))

    async def execute(
        self, calls: Sequence[ToolCall], *, messages: Sequence[Message] = (), turn: int = 0
    ) -> list[ToolResponse]:
        """Run calls concurrently, each with its own timeout; one response per call, in order.

        Mistakes of the model come back as responses with `is_error` (R10).

        Raises:
            ToolServiceError: a service failed, a tool raised, or one took too long (R9).
        """
        most = self._limits.max_parallel_calls or len(calls)
        started = [self._execute_one(call, lambda: self._contexts.make(messages, turn)) for call in calls[:most]]
        if len(started) == 1 == len(calls):  # the common case needs no task of its own
            return [await started[0]]
        results = await asyncio.gather(*started, return_exceptions=True)
        responses: list[ToolResponse] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            responses.append(result)
        refusal = f"Not run: at most {most} tool calls may be made in one turn. Call again in the next turn."
        return responses + [ToolResponse(text=refusal, is_error=True) for _ in calls[most:]]

    async def calc_rewards(self) -> dict[str, float]:
        """`calc_reward` of every tool that was called, by tool name."""
        rewards = {}
        for name in self._specs:
            if name in self._called:
                timeout, row = self._timeout(self._specs[name]), self._row(name, "calc_reward_kwargs")
                ask = partial(self._guard, name, self._tools[name].calc_reward, timeout, **row)
                rewards[name] = float(await self._cache.reward(name, row, ask))
        return rewards

    async def release(self) -> None:
        """Release every tool that was built, whatever happened to it. Failures are logged: the trajectory is over."""
        tools, self._tools = self._tools, {}
        for name, tool in tools.items() if not self._cache.replays else ():
            try:
                await self._guard(name, tool.release, _RELEASE_TIMEOUT_S, **self._row(name, "release_kwargs"))
            except ToolServiceError as error:
                logger.warning("%s", error)
        if self._owns_host:
            await self._host.close()

    async def _execute_one(self, call: ToolCall, context: Callable[[], ToolContext]) -> ToolResponse:
        spec = self._specs.get(call.name)
        if spec is None:
            text = f"There is no tool named '{call.name}'.{suggest(call.name, self._specs)}"
            return ToolResponse(text=text, is_error=True)
        problem = spec.check_arguments(call.arguments)
        if problem is not None:
            return ToolResponse(text=f"{call.name} was not run: {problem}", is_error=True)
        self._called.add(call.name)
        row = self._row(call.name, "execute_kwargs")
        given = {**row, "context": context()} if spec.takes_context and "context" not in row else row
        run = partial(self._run, spec, call.arguments, given)
        response = await self._cache.result(call.name, call.arguments, row, run)
        return replace(response, text=self._truncate(response.text))

    async def _run(self, spec: ToolSpec, arguments: JsonDict, kwargs: JsonDict) -> ToolResponse:
        """Make a call once the tool's limits let it begin; waiting for that is not the tool's time."""
        execute = self._tools[spec.name].execute
        async with self._host.limiter(spec).turn():
            response = await self._guard(spec.name, execute, self._timeout(spec), arguments, **kwargs)
        return _checked(response, f"tool '{spec.name}': execute returned")

    async def _guard(
        self, name: str, method: Callable[..., Awaitable[Any]], timeout_s: float, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Await a tool's method; whatever goes wrong in it is a failure of infrastructure (R9)."""
        what, started = method.__name__, time.monotonic()
        try:
            result = await within(timeout_s, method(*args, **kwargs))
        except InfrastructureError as error:
            self._report(name, started, str(error))
            raise
        except TimeoutError as error:
            text = f"tool '{name}': {what} took longer than {timeout_s:g} s"
            self._report(name, started, text)
            raise ToolServiceError(text) from error
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            logger.exception("tool '%s': %s raised", name, what)
            text = f"tool '{name}': {what} raised {type(error).__name__}: {error}"
            if isinstance(error, OSError):  # anything else is a bug, which no waiting mends
                self._report(name, started, text)
            raise ToolServiceError(text) from error
        if what == "execute" and self._gate is not None:
            self._gate.succeeded(tool_service(name))
        return result

    def _report(self, name: str, started: float, cause: str) -> None:
        if self._gate is not None:
            self._gate.failed(tool_service(name), started, cause)

    def _timeout(self, spec: ToolSpec) -> float:
        return spec.timeout_s if spec.timeout_s is not None else self._limits.tool_timeout_s

    def _row(self, name: str, kind: str) -> JsonDict:
        return dict(self._kwargs.get(name, {}).get(kind) or {})

    def _truncate(self, text: str) -> str:
        limit = self._limits.max_tool_response_length
        if limit is None or len(text.encode(errors="replace")) <= limit:
            return text  # no tokenizer makes more tokens than bytes
        return truncate(text, limit, self._limits.tool_response_truncate_side, self._renderer)


def _checked(response: Any, what: str) -> ToolResponse:
    """What a tool returned, if the model can read it and its numbers are numbers."""
    if not isinstance(response, ToolResponse) or not isinstance(response.text, str):
        raise ToolServiceError(f"{what} {response!r}, wanted a ToolResponse with text")
    if response.image or response.video:
        raise ToolServiceError(f"{what} images or videos, which the model would not see: only text is supported")
    reward = None if response.reward is None else _number(response.reward, f"{what} reward")
    metrics = {name: _number(value, f"{what} metrics.{name}") for name, value in response.metrics.items()}
    return replace(response, text=valid_text(response.text), reward=reward, metrics=metrics)


def _number(value: Any, what: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ToolServiceError(f"{what} {value!r}, wanted a number") from None


def valid_text(text: str) -> str:
    """The text with halves of surrogate pairs joined or replaced: no tokenizer and no file takes a single one."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def is_cancelled() -> bool:
    """Whether somebody cancels this task; else a `CancelledError` is a plug-in's own, from something that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def truncate(text: str, limit: int, side: str, renderer: Renderer) -> str:
    """Cut a text to `limit` tokens and mark the cut.

    Args:
        text: what a tool said.
        limit: most tokens that are kept; the mark comes on top.
        side: which side is kept: `left` the head, `right` the tail, `middle` both.
        renderer: counts the tokens.
    """
    size = max(4096, limit * _CHARS_PER_TOKEN)
    head_ids, tail_ids = renderer.encode_text(text[:size]), renderer.encode_text(text[-size:])
    if len(text) <= size and len(head_ids) <= limit:
        return text
    keep_head = {"left": limit, "right": 0, "middle": limit - limit // 2}[side]
    head = renderer.decode(head_ids[:keep_head]).rstrip("�")  # a cut inside a character leaves its first bytes
    tail = renderer.decode(tail_ids[len(tail_ids) - (limit - keep_head) :]).lstrip("�")
    mark = {"left": "...(truncated)", "right": "(truncated)...", "middle": "...(truncated)..."}[side]
    return head + mark + tail
