"""The agent loop `math_expression`: the model writes expressions, and a tool evaluates them."""

from __future__ import annotations

import re
from typing import Any

from agentrl.agent_loops.conversation import Conversation
from agentrl.interfaces import AgentLoopBase, LoopContext
from agentrl.types import AgentLoopOutput, JsonDict, ParsedTurn, StopReason, ToolCall

_EXPRESSION = re.compile(r"<expr>(.*?)</expr>", re.DOTALL)


class MathExpression(AgentLoopBase):
    """Generate, evaluate the text between `<expr>` and `</expr>`, show its value, repeat. A turn without one ends it.

    Args:
        context: the services of this trajectory.
        tool: the tool that evaluates expressions; it takes `expression`.
    """

    shows_tools = False  # the prompt of a row explains the tags

    def __init__(self, context: LoopContext, tool: str = "evaluate") -> None:
        super().__init__(context)
        self._tool = tool

    @classmethod
    def render_prompt(cls, renderer: Any, messages: Any, tools: Any, **options: Any) -> list[int]:
        """The row's messages alone: this loop does not use the chat template's tool format."""
        return renderer.render_prompt(messages)

    async def run(self, sampling_params: JsonDict, **row_fields: Any) -> AgentLoopOutput:
        """Play the conversation to its end."""
        talk = Conversation(self.context, row_fields["messages"], sampling_params, index=row_fields.get("index"))
        while talk.stop_reason is None:
            text = await talk.generate()
            if talk.stop_reason is not None:
                break
            found = _EXPRESSION.search(text)
            if found is None:
                await self._answer(talk)
                continue
            call = ToolCall(self._tool, {"expression": found[1].strip()})
            answers = await talk.call_tools(ParsedTurn(text, [call]))
            if answers:
                talk.observe([{"role": "user", "content": f"value: {answers[0]['content']}"}])
        return await talk.finish()

    async def _answer(self, talk: Conversation) -> None:
        """After a turn without an expression: ask the row's interaction, if it has one."""
        reply = await talk.ask_interaction()
        if reply is None:
            talk.stop_reason = StopReason.COMPLETED
        elif reply.should_terminate:
            talk.stop_reason = StopReason.INTERACTION_DONE
        elif talk.out_of_turns:
            talk.stop_reason = StopReason.MAX_TURNS
        else:
            talk.observe([{"role": "user", "content": reply.content}])
