"""Plays scripted conversations through a loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.chat.renderer import ChatRenderer
from agentrl.chat.tool_parsers.hermes import HermesToolParser
from agentrl.interfaces import BaseInteraction, ToolParser
from agentrl.plugins import ToolSpec, resolve
from agentrl.plugins.adapt import schema_of
from agentrl.rollout.tools.toolset import ToolSet
from agentrl.testing.loops import WIDE, ScriptedReplies, make_context, sampled
from agentrl.types import AgentLoopOutput, LoopLimits

QUESTION = [{"role": "user", "content": "What is 6 * 7?"}]


@dataclass
class Player:
    """Plays scripted replies through a loop; `engine` keeps the requests of the last conversation."""

    renderer: ChatRenderer
    engine: ScriptedReplies = field(default_factory=lambda: ScriptedReplies([]))

    def reply(self, text: str, end: bool = True) -> list[int]:
        return self.renderer.encode_text(text) + ([self.renderer.turn_end_ids[-1]] if end else [])

    async def play(
        self,
        replies: Sequence[Any],
        *,
        agent: str = "tool_agent",
        tools: Sequence[Any] = (),
        interaction: BaseInteraction | None = None,
        limits: LoopLimits = WIDE,
        messages: Sequence[dict[str, Any]] = QUESTION,
        options: dict[str, Any] | None = None,
        parser: ToolParser | None = None,
        **sampling_params: Any,
    ) -> AgentLoopOutput:
        """Strings are whole turns, pairs are (text, finish reason), lists are sampled ids."""
        self.engine = ScriptedReplies([self._output(reply) for reply in replies])
        specs = [tool_spec(tool) for tool in tools]
        toolset = ToolSet(specs, limits=limits, renderer=self.renderer)
        await toolset.start()
        context = make_context(
            self.renderer,
            self.engine,
            tool_parser=parser or HermesToolParser(),
            tools=toolset,
            interaction=interaction,
            limits=limits,
        )
        try:
            return await resolve("agent_loops", agent)(context, **(options or {})).run(
                sampling_params, messages=list(messages)
            )
        finally:
            await toolset.release()

    def _output(self, reply: Any) -> Any:
        if isinstance(reply, tuple):
            text, finish = reply
            return sampled(self.reply(text, end=finish == "stop"), finish)
        return self.reply(reply) if isinstance(reply, str) else reply


def tool_spec(tool: Any) -> ToolSpec:
    schema = schema_of(tool, {})
    return ToolSpec(schema["function"]["name"], tool, {}, schema)
