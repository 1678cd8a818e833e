"""ReAct in plain text (Yao et al., 2022, arXiv:2210.03629): Thought, Action, Action Input, Final Answer."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from agentrl.agent_loops.conversation import Conversation
from agentrl.interfaces import AgentLoopBase
from agentrl.types import AgentLoopOutput, JsonDict, Message, ParsedTurn, StopReason, ToolCall

_STOP = "Observation:"
_FINAL = "Final Answer:"
_ACTION = re.compile(r"^Action:[ \t]*(.*?)[ \t]*$\s*^Action Input:[ \t]*(.*)", re.MULTILINE | re.DOTALL)
_INSTRUCTIONS = """\
You can use these tools:
{tools}

Write in this form:
Thought: what to do next
Action: the name of one tool
Action Input: its arguments as one JSON object
After that you are shown a line that starts with "{stop}". Think and act as often as you need, then end with:
Thought: I know the answer
{final} the answer"""


class ReactAgent(AgentLoopBase):
    """Tools are described in the system message and called in text; generation stops where an observation is due."""

    async def run(self, sampling_params: JsonDict, **row_fields: Any) -> AgentLoopOutput:
        """Play the conversation to its final answer or a limit."""
        tools = self.context.tools.schemas
        stops = [*(sampling_params.get("stop") or ()), _STOP]
        messages = _with_instructions(row_fields["messages"], tools)
        talk = Conversation(self.context, messages, {**sampling_params, "stop": stops}, index=row_fields.get("index"))
        while talk.stop_reason is None:
            text = await talk.generate()
            if talk.stop_reason is not None:
                break
            turn = parse_react(text, tools)
            if not turn.wants_tools:
                talk.stop_reason = StopReason.COMPLETED
                break
            answers = await talk.call_tools(turn)
            if answers:
                talk.observe([{"role": "user", "content": f"{_STOP} {answer['content']}"} for answer in answers])
        return await talk.finish()


def parse_react(text: str, tools: Sequence[JsonDict]) -> ParsedTurn:
    """The action of one turn. A turn that holds neither an action nor a final answer is a mistake (R10)."""
    written = text.removesuffix(_STOP)
    action = _ACTION.search(written)
    final = written.find(_FINAL)
    if final >= 0 and (action is None or final < action.start()):
        return ParsedTurn(written[final + len(_FINAL) :].strip())
    if action is None:
        return ParsedTurn(written, errors=[f"write either 'Action:' and 'Action Input:', or '{_FINAL}'"])
    name, given = action[1], action[2].strip()
    try:
        arguments, end = json.JSONDecoder(strict=False).raw_decode(given)
    except (ValueError, RecursionError):
        arguments, end = given, len(given)
    if isinstance(arguments, dict) and not given[end:].strip():
        return ParsedTurn(written, [ToolCall(name, arguments)])
    single = _only_text_argument(name, tools)
    if single is not None:
        return ParsedTurn(written, [ToolCall(name, {single: given})])
    return ParsedTurn(written, errors=[f"the action input of '{name}' is not one JSON object: {given[:100]}"])


def _only_text_argument(name: str, tools: Sequence[JsonDict]) -> str | None:
    """The argument of a tool that takes one text: its input may be written bare."""
    for tool in tools:
        function = tool["function"]
        properties = function.get("parameters", {}).get("properties", {})
        if function["name"] == name and len(properties) == 1:
            key, schema = next(iter(properties.items()))
            return str(key) if schema.get("type") == "string" else None
    return None


def _with_instructions(messages: Sequence[Message], tools: Sequence[JsonDict]) -> list[Message]:
    if not tools:
        return list(messages)
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = _INSTRUCTIONS.format(tools=described, stop=_STOP, final=_FINAL)
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
