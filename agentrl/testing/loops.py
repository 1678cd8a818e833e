"""Run agent loops without an engine: scripted generations, and a check that each request continues the one before."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentrl.errors import EngineTimeout
from agentrl.interfaces import BaseInteraction, GenerateFn, LoopContext, Renderer, ToolParser, ToolRunner
from agentrl.rollout.turn_params import TurnParams
from agentrl.trajectory import Trajectory
from agentrl.types import GenerationOutput, JsonDict, LoopLimits, Message, ToolCall, ToolResponse

WIDE = LoopLimits(prompt_length=4096, response_length=4096)
"""Limits that a short test never reaches."""


class ScriptedReplies:
    """Answers the k-th request with the k-th reply; a request after the last reply raises `AssertionError`.

    Args:
        replies: sampled ids, or whole outputs.
    """

    def __init__(self, replies: Sequence[list[int] | GenerationOutput]) -> None:
        self.requests: list[tuple[list[int], JsonDict]] = []
        self.replies = [reply if isinstance(reply, GenerationOutput) else sampled(reply) for reply in replies]

    async def __call__(self, prompt_ids: list[int], sampling_params: JsonDict) -> GenerationOutput:
        """Answer one request, which must begin with the ids of the last request and its reply, unchanged."""
        turn = len(self.requests)
        if turn:
            seen = self.requests[-1][0] + self.replies[turn - 1].token_ids
            assert prompt_ids[: len(seen)] == seen, (
                f"request {turn} does not begin with the ids of request {turn - 1} and its reply"
            )
        assert turn < len(self.replies), (
            f"the loop asked for generation {turn + 1}, but the test gives only {len(self.replies)} replies"
        )
        assert sampling_params["max_new_tokens"] >= 1
        self.requests.append((prompt_ids, sampling_params))
        return self.replies[turn]


class NoTools:
    """A row that offers no tools."""

    schemas: list[JsonDict] = []  # noqa: RUF012 - never written

    async def execute(
        self, calls: Sequence[ToolCall], *, messages: Sequence[Message] = (), turn: int = 0
    ) -> list[ToolResponse]:
        """Refuses every call."""
        assert not calls, f"the row offers no tools, got {calls}"
        return []

    async def calc_rewards(self) -> dict[str, float]:
        """Empty: without tools there are no rewards."""
        return {}


def sampled(ids: list[int], finish_reason: str = "stop", version: int = 0) -> GenerationOutput:
    """A generation of these ids, each with log-prob -0.5."""
    return GenerationOutput(ids, [-0.5] * len(ids), [version] * len(ids), finish_reason)


def make_context(
    renderer: Renderer,
    engine: GenerateFn,
    *,
    tool_parser: ToolParser,
    tools: ToolRunner | None = None,
    interaction: BaseInteraction | None = None,
    limits: LoopLimits = WIDE,
) -> LoopContext:
    """The context of one trajectory. Tools and interaction must be started by the caller.

    As in a run, `engine` is asked with the turn's token budget and the stop ids, and within the turn's deadline.
    """
    params = TurnParams(limits, renderer.stop_token_ids)

    async def generate(prompt_ids: list[int], sampling_params: JsonDict) -> GenerationOutput:
        try:
            async with asyncio.timeout(limits.turn_timeout_s):
                return await engine(prompt_ids, params.complete(prompt_ids, sampling_params))
        except TimeoutError:
            raise EngineTimeout(f"the engine gave no answer within {limits.turn_timeout_s:g} s") from None

    def new_trajectory(prompt_ids: list[int]) -> Trajectory:
        params.start(len(prompt_ids))
        return Trajectory(prompt_ids, limits.response_length)

    return LoopContext(
        generate=generate,
        renderer=renderer,
        tool_parser=tool_parser,
        tools=tools if tools is not None else NoTools(),
        interaction=interaction,
        limits=limits,
        new_trajectory=new_trajectory,
    )
