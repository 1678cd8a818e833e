"""A small agent that works through a problem one expression at a time; an example to copy.

The model writes `<expr>48/2</expr>`; generation stops there, a tool evaluates it, and the model reads its value. A turn
without an expression is the answer::

    user        Natalia sold 48 clips in April and half as many in May. How many in all?
    assistant   In May: <expr>48/2</expr>
    user        48/2 = 24
    assistant   In all: <expr>48+24</expr>
    user        48+24 = 72
    assistant   #### 72
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentrl.agent_loops.conversation import Conversation
from agentrl.errors import PluginError, suggest
from agentrl.interfaces import AgentLoopBase, LoopContext, Renderer, ToolParser
from agentrl.types import AgentLoopOutput, JsonDict, Message, ParsedTurn, Sample, StopReason, ToolCall

_CLOSE = "</expr>"
_EXPRESSION = re.compile(r"<expr>(.*?)</expr>", re.DOTALL)
_INSTRUCTIONS = """\
Work step by step. To compute something, write one expression as <expr>48/2</expr> and stop: you are then shown its
value. When you know the answer, write it without an expression."""


class MathExpression(AgentLoopBase):
    """Generate up to an expression, evaluate it, show its value, repeat; a turn without one ends the conversation.

    Args:
        context: the services of this trajectory.
        tool: the tool that evaluates expressions; it takes `expression`.
    """

    uses_interaction = False
    shows_tools = False  # the instructions explain the tags instead

    def __init__(self, context: LoopContext, *, tool: str = "calculator") -> None:
        super().__init__(context)
        self._tool = tool

    @classmethod
    def render_prompt(
        cls, renderer: Renderer, messages: Sequence[Message], tools: Sequence[JsonDict], **options: Any
    ) -> list[int]:
        """The row's prompt with the instructions. This runs before the run starts, so a missing tool is told there.

        Raises:
            PluginError: the row does not offer the tool.
        """
        tool, offered = options.get("tool", "calculator"), [schema["function"]["name"] for schema in tools]
        if tool not in offered:
            hint = suggest(tool, offered) if offered else " Set `multi_turn.tool_config_path=tools/calculator.yaml`."
            raise PluginError(
                f"math_expression evaluates expressions with the tool '{tool}', which is not offered.{hint}"
            )
        return renderer.render_prompt(_with_instructions(messages))

    @property
    def parser(self) -> ToolParser:
        """Reads expressions."""
        return ExpressionParser(self._tool)

    async def run(self, sampling_params: JsonDict, sample: Sample) -> AgentLoopOutput:
        """Play the conversation to its answer or a limit."""
        talk = Conversation(self.context, _with_instructions(sample.prompt), sampling_params, index=sample.index)
        while talk.stop_reason is None:
            text = await talk.generate(stop=[_CLOSE])
            if talk.stop_reason is not None:
                break
            turn = self.parser.parse(text)
            if not turn.wants_tools:
                talk.stop_reason = StopReason.COMPLETED
                break
            answers = await talk.call_tools(turn)
            if answers:
                expression = turn.tool_calls[0].arguments["expression"]
                talk.observe([{"role": "user", "content": f"{expression} = {answers[0]['content']}"}])
        return await talk.finish()


class ExpressionParser(ToolParser):
    """Finds the expression of a turn.

    Args:
        tool: the tool to call with it.
    """

    def __init__(self, tool: str) -> None:
        self._tool = tool

    def parse(self, text: str, tools: Sequence[JsonDict] | None = None) -> ParsedTurn:
        """The first expression as a call; a turn stops at it, so there is no second one."""
        found = _EXPRESSION.search(text)
        if found is None:
            return ParsedTurn(text)
        return ParsedTurn(text, [ToolCall(self._tool, {"expression": found[1].strip()}, arguments_span=found.span(1))])


def _with_instructions(messages: Sequence[Message]) -> list[Message]:
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{_INSTRUCTIONS}"}, *messages[1:]]
    return [{"role": "system", "content": _INSTRUCTIONS}, *messages]
