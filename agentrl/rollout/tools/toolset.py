"""The tools of one trajectory: built for it, called by it, released with it.

This is the tool boundary: the model's mistakes become messages that it reads, failures of infrastructure end the
trajectory as errors (docs/token_rules.md).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentrl.errors import PluginError, suggest
from agentrl.interfaces import BaseTool, Renderer
from agentrl.plugins import ToolSpec
from agentrl.rollout.guarded_call import anything, guarded_call, guarded_release, number
from agentrl.rollout.service_gate import tool_service
from agentrl.rollout.tools.context import ToolContexts
from agentrl.rollout.tools.recording import NO_RECORDS, CallRecords, as_json
from agentrl.rollout.tools.responses import tool_response, truncate
from agentrl.rollout.tools.shared import WorkerTools
from agentrl.timeline import Timeline, note_wait
from agentrl.types import JsonDict, LoopLimits, Message, Sample, ToolCall, ToolResponse


@dataclass(frozen=True, slots=True)
class RowTools:
    """What a trajectory's row says about its tools, and the state that belongs to this trajectory alone."""

    kwargs: Mapping[str, JsonDict | None] = field(default_factory=dict)
    """The row's `tools_kwargs`: `{tool: {create_kwargs, execute_kwargs, calc_reward_kwargs, release_kwargs}}`."""
    timeout_s: float | None = None
    """The row's own deadline of each call (`tool_config.timeout`)."""
    available: Collection[str] | None = None
    """Names of the tools that this row offers; None: all."""
    contexts: ToolContexts = field(default_factory=lambda: ToolContexts(Sample(index=0, prompt=[], data_source="")))
    """Makes the `context` of tools that take one."""
    records: CallRecords = NO_RECORDS
    """Results of an earlier run to replay, or the place to record this run's."""
    timeline: Timeline = field(default_factory=Timeline)


class ToolSet:
    """One fresh instance of each tool that the row offers.

    Args:
        specs: the tools that rows may offer.
        limits: tool timeout, parallel calls, length of a response.
        renderer: counts the tokens of a response.
        row: of the trajectory; None: a row that offers all tools and sets nothing else.
        worker: shared by all trajectories of this worker; None: not shared, and closed by `release`.
        sees_pictures: whether the model sees the pictures of a response.

    Raises:
        PluginError: the row names a tool that the run does not have.
    """

    def __init__(
        self,
        specs: Sequence[ToolSpec],
        *,
        limits: LoopLimits,
        renderer: Renderer,
        row: RowTools | None = None,
        worker: WorkerTools | None = None,
        sees_pictures: bool = False,
    ) -> None:
        self._row = row or RowTools()
        names, available = [spec.name for spec in specs], self._row.available
        for name in [*(available or ()), *self._row.kwargs]:
            if name not in names:
                raise PluginError(f"no tool is named '{name}'.{suggest(name, names)}")
        self._specs = {spec.name: spec for spec in specs if available is None or spec.name in available}
        self._limits = limits
        self._renderer = renderer
        self._sees_pictures = sees_pictures
        self._worker = worker or WorkerTools()
        self._owns_worker = worker is None
        self._tools: dict[str, BaseTool] = {}
        self._called: set[str] = set()

    @property
    def schemas(self) -> list[JsonDict]:
        """Schemas of the tools that this row offers, in YAML order."""
        return [spec.schema for spec in self._specs.values()]

    async def start(self) -> None:
        """Build and create every tool.

        Raises:
            ToolServiceError: a tool cannot be created.
        """
        for name, spec in self._specs.items():
            tool = self._tools[name] = spec.build()
            tool.scope = self._worker.scope
            if self._row.records.replays or _inherits(tool, "create"):  # a tool that is never called needs no service
                continue
            with self._row.timeline.span("tool", f"{name}: create"):
                await guarded_call(
                    tool_service(name),
                    tool.create,
                    (),
                    self._kwargs(name, "create_kwargs"),
                    timeout_s=self._timeout(spec),
                    expect=anything,
                    gate=self._worker.gate,
                )

    async def execute(
        self, calls: Sequence[ToolCall], *, messages: Sequence[Message] = (), turn: int = 0
    ) -> list[ToolResponse]:
        """Run calls concurrently, each with its own timeout; one response per call, in order.

        Mistakes of the model are returned as responses with `is_error`.

        Raises:
            ToolServiceError: a service failed, a tool raised, or one took too long.
        """

        async def run(call: ToolCall) -> ToolResponse:
            # check the arguments -> replay or record -> wait for the tool's limits -> call -> cut
            spec = self._specs.get(call.name)
            if spec is None:
                return _refusal(f"There is no tool named '{call.name}'.{suggest(call.name, self._specs)}")
            problem = spec.check_arguments(call.arguments)
            if problem is not None:
                return _refusal(f"{call.name} was not run: {problem}")
            self._called.add(call.name)
            kwargs = self._kwargs(call.name, "execute_kwargs")
            with self._row.records.of(call.name, kwargs, arguments=call.arguments) as record:
                if record.found is not None:
                    response = self._response(f"the record of tool '{call.name}' holds", ToolResponse(**record.found))
                else:
                    if spec.takes_context and "context" not in kwargs:
                        kwargs = {**kwargs, "context": self._row.contexts.make(messages, turn)}
                    asked = time.perf_counter()
                    async with self._worker.limiter(spec).turn():  # the tool's deadline begins after this wait
                        note_wait(f"its turn at tool '{call.name}'", asked)
                        with self._row.timeline.span("tool", call.name):
                            response = await guarded_call(
                                tool_service(call.name),
                                self._tools[call.name].execute,
                                (call.arguments,),
                                kwargs,
                                timeout_s=self._timeout(spec),
                                expect=self._response,
                                gate=self._worker.gate,
                                answers=True,
                            )
                    record.keep(as_json(response))
            text = self._cut(response.text)
            return response if text is response.text else replace(response, text=text)

        most = self._limits.max_parallel_calls or len(calls)
        if len(calls) == 1 <= most:  # the common case needs no task of its own
            return [await run(calls[0])]
        results = await asyncio.gather(*map(run, calls[:most]), return_exceptions=True)
        responses: list[ToolResponse] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            responses.append(result)
        too_many = f"Not run: at most {most} tool calls may be made in one turn. Call again in the next turn."
        return responses + [_refusal(too_many) for _ in calls[most:]]

    async def calc_rewards(self) -> dict[str, float]:
        """`calc_reward` of every tool that was called, by tool name.

        Raises:
            ToolServiceError: a tool failed, or returned something that is not a number.
        """
        rewards = {}
        for name, spec in self._specs.items():
            if name not in self._called:
                continue
            kwargs = self._kwargs(name, "calc_reward_kwargs")
            with self._row.records.of(name, kwargs, calc_reward=True) as record:
                if record.found is not None:
                    rewards[name] = float(record.found["reward"])
                    continue
                with self._row.timeline.span("score", f"tool '{name}'"):
                    rewards[name] = await guarded_call(
                        tool_service(name),
                        self._tools[name].calc_reward,
                        (),
                        kwargs,
                        timeout_s=self._timeout(spec),
                        expect=number,
                        gate=self._worker.gate,
                    )
                record.keep({"reward": rewards[name]})
        return rewards

    async def release(self) -> None:
        """Release every tool that was built, whatever happened to it. Failures are logged: the trajectory is over."""
        tools, self._tools = self._tools, {}
        for name, tool in tools.items() if not self._row.records.replays else ():
            if not _inherits(tool, "release"):
                with self._row.timeline.span("tool", f"{name}: release"):
                    await guarded_release(tool_service(name), tool.release, self._kwargs(name, "release_kwargs"))
        if self._owns_worker:
            await self._worker.close()

    def _response(self, what: str, result: object) -> ToolResponse:
        """A tool's result, checked; its pictures only where the model sees them.

        Raises:
            ToolServiceError: it cannot be shown.
        """
        return tool_response(what, result, sees_pictures=self._sees_pictures)

    def _timeout(self, spec: ToolSpec) -> float:
        own = (self._row.timeout_s, spec.timeout_s)
        return next((seconds for seconds in own if seconds is not None), self._limits.tool_timeout_s)

    def _kwargs(self, name: str, kind: str) -> JsonDict:
        return dict((self._row.kwargs.get(name) or {}).get(kind) or {})

    def _cut(self, text: str) -> str:
        limit = self._limits.max_tool_response_length
        if limit is None or len(text.encode(errors="replace")) <= limit:
            return text  # no tokenizer makes more tokens than bytes
        return truncate(text, limit, self._limits.tool_response_truncate_side, self._renderer)


def _inherits(tool: BaseTool, method: str) -> bool:
    """Whether a tool has a method of `BaseTool` itself, which does nothing: most have neither create nor release."""
    return getattr(getattr(tool, method), "__func__", None) is getattr(BaseTool, method)


def _refusal(text: str) -> ToolResponse:
    return ToolResponse(text=text, is_error=True)
