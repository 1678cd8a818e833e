"""ReAct (Yao et al., 2022, arXiv:2210.03629): Thought, Action, Action Input, Observation, Final Answer, in plain text.

Three ways to show an observation, chosen with `style` in the agent-loop YAML:

* `chat`: as a user message of the chat template;
* `scratchpad`: as text within the model's single turn, which continues from there, after a prompt of the chat template;
* `text`: the same without a chat template, for base models.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from agentrl.agent_loops.conversation import Conversation
from agentrl.chat.tool_parsers.react import ReactToolParser
from agentrl.errors import PluginError, suggest
from agentrl.interfaces import AgentLoopBase, LoopContext, Renderer, ToolParser
from agentrl.types import IS_ERROR, AgentLoopOutput, JsonDict, Message, ParsedTurn, Sample, StopReason

STYLES = ("chat", "scratchpad", "text")
_STOP = "Observation:"
_FINAL = "Final Answer:"
_THOUGHT = "Thought:"
_QUESTION = "Question:"
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
    """Tools are described in the prompt and called in text; generation stops where an observation must follow.

    Args:
        context: the services of this trajectory.
        style: how observations are shown: `chat`, `scratchpad` or `text`.
    """

    uses_interaction: ClassVar[bool] = False
    uses_format: ClassVar[bool] = False

    def __init__(self, context: LoopContext, *, style: str = "chat") -> None:
        super().__init__(context)
        self._style = style

    @classmethod
    def render_prompt(
        cls, renderer: Renderer, messages: Sequence[Message], tools: Sequence[JsonDict], **options: Any
    ) -> list[int]:
        """The row's prompt with a description of the tools.

        Raises:
            PluginError: an unknown `style`.
        """
        style = options.get("style", "chat")
        if style not in STYLES:
            raise PluginError(f"react_agent: `style` is {style!r}.{suggest(str(style), STYLES)}")
        shown = _with_instructions(messages, tools)
        return renderer.encode_text(_as_text(shown), starts=True) if style == "text" else renderer.render_prompt(shown)

    @property
    def parser(self) -> ToolParser:
        """Reads actions."""
        return ReactTurns()

    async def run(self, sampling_params: JsonDict, sample: Sample) -> AgentLoopOutput:
        """Play the conversation to its final answer or a limit."""
        tools, prompt = self.context.tools.schemas, sample.prompt
        stops = [*(sampling_params.get("stop") or ()), _STOP, *([f"\n{_QUESTION}"] if self._style == "text" else ())]
        talk = Conversation(
            self.context,
            _with_instructions(prompt, tools),
            {**sampling_params, "stop": stops},
            index=sample.index,
            prompt_ids=self.render_prompt(self.context.renderer, prompt, tools, style=self._style),
        )
        parser = self.parser
        while talk.stop_reason is None:
            text = await talk.generate()
            if talk.stop_reason is not None:
                break
            turn = parser.parse(text, tools)
            if not turn.wants_tools:
                talk.stop_reason = StopReason.COMPLETED
                break
            answers = await talk.call_tools(turn)
            if answers:
                self._show(talk, text, answers)
        return await talk.finish()

    def _show(self, talk: Conversation, text: str, answers: Sequence[Message]) -> None:
        """Show observations: after the action in the model's own turn, or as a user message."""
        content = f"\n{_STOP} ".join(str(answer["content"]) for answer in answers)
        wrong = any(answer[IS_ERROR] for answer in answers)
        if self._style == "chat" or (self._style == "scratchpad" and talk.ended_its_turn):
            talk.observe([{"role": "user", "content": f"{_STOP} {content}", IS_ERROR: wrong}])
            return
        _, stop, tail = text.rpartition(_STOP)  # a stop string may end within a token: `tail` is what that token adds
        lead = ("" if tail else " ") if stop else f"\n{_STOP} "
        talk.observe_text(f"{lead}{content}\n{_THOUGHT}", {**answers[0], "content": content, IS_ERROR: wrong})


class ReactTurns(ReactToolParser):
    """The content of a turn: actions, or the final answer."""

    def parse(self, text: str, tools: Sequence[JsonDict] | None = None) -> ParsedTurn:
        """Calls and errors of the actions. A turn that holds neither an action nor a final answer is an error."""
        turn = super().parse(text, tools)
        if turn.wants_tools or _FINAL in text:
            return turn
        return ParsedTurn(text, errors=[f"write either 'Action:' and 'Action Input:', or '{_FINAL}'"])


def _with_instructions(messages: Sequence[Message], tools: Sequence[JsonDict]) -> list[Message]:
    if not tools:
        return list(messages)
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = _INSTRUCTIONS.format(tools=described, stop=_STOP, final=_FINAL)
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _as_text(messages: Sequence[Message]) -> str:
    """A conversation as text for a base model to continue."""
    heads = {"system": "", "developer": "", "user": f"{_QUESTION} "}
    shown = [f"{heads.get(message['role'], '')}{message['content']}" for message in messages]
    return "\n\n".join(shown) + f"\n{_THOUGHT}"
