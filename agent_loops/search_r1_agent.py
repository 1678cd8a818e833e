"""Question answering with search between tags, in the protocol of Search-R1 (Jin et al., 2025, arXiv:2503.09516).

The model thinks, writes `<search>query</search>`, reads `<information>documents</information>` and ends with
`<answer>text</answer>`, all within one assistant turn. The row's prompt explains the tags.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from agentrl.agent_loops.conversation import Conversation
from agentrl.chat.tool_parsers.search_r1 import SearchR1ToolParser
from agentrl.errors import PluginError, suggest
from agentrl.interfaces import AgentLoopBase, LoopContext, Renderer, ToolParser
from agentrl.types import IS_ERROR, AgentLoopOutput, JsonDict, Message, ParsedTurn, Sample, StopReason

MAX_TURNS = 10
MARKERS = ("<information>", "</information>")
STOPS = ("</search>", "</answer>")
_END = re.compile("</search>|</answer>")
_CORRECTION = (
    "That was neither a search nor an answer. To look something up, write a query between <search> and </search>. "
    "To finish, write the answer between <answer> and </answer>."
)


class SearchR1Agent(AgentLoopBase):
    """Up to `max_turns` searches, then one last generation without; documents and corrections have mask 0.

    Args:
        context: the services of this trajectory.
        max_turns: most searches; at most the same number of turns without an action are corrected.
        markers: what stands before and after documents.
    """

    uses_interaction: ClassVar[bool] = False
    uses_format: ClassVar[bool] = False
    shows_tools: ClassVar[bool] = False

    def __init__(self, context: LoopContext, *, max_turns: int = MAX_TURNS, markers: Sequence[str] = MARKERS) -> None:
        super().__init__(context)
        self._max_turns, self._markers = max_turns, tuple(markers)

    @classmethod
    def render_prompt(
        cls, renderer: Renderer, messages: Sequence[Message], tools: Sequence[JsonDict], **options: Any
    ) -> list[int]:
        """The row's prompt alone: it explains the tags.

        Raises:
            PluginError: the row does not offer the search tool, or `max_turns` is not a whole number of at least 0.
        """
        names = [tool["function"]["name"] for tool in tools]
        if "search" not in names:
            raise PluginError(f"search_r1_agent needs a tool named 'search'.{suggest('', names)}")
        turns = options.get("max_turns", MAX_TURNS)
        if not isinstance(turns, int) or turns < 0:
            raise PluginError(f"search_r1_agent: `max_turns`: got {turns!r}, wanted a whole number of at least 0")
        markers = options.get("markers", MARKERS)
        if isinstance(markers, str) or len(markers) != 2 or not all(isinstance(marker, str) for marker in markers):
            raise PluginError(
                f"search_r1_agent: `markers`: got {markers!r}, wanted two texts, before and after documents"
            )
        return renderer.render_prompt(messages)

    @property
    def parser(self) -> ToolParser:
        """The parser of the tags."""
        return SearchR1Turns()

    async def run(self, sampling_params: JsonDict, sample: Sample) -> AgentLoopOutput:
        """Play the conversation to its answer or a limit."""
        params = {**sampling_params, "stop": [*(sampling_params.get("stop") or ()), *STOPS]}
        talk = Conversation(self.context, sample.prompt, params, index=sample.index)
        parser, searches, corrections = self.parser, 0, 0
        while talk.stop_reason is None:
            text = await talk.generate()
            if talk.stop_reason is not None:
                break
            turn = parser.parse(text, self.context.tools.schemas)
            if not turn.wants_tools:
                talk.stop_reason = StopReason.COMPLETED
                break
            if searches >= self._max_turns or (turn.errors and corrections >= self._max_turns):
                talk.stop_reason = StopReason.MAX_TURNS
                break
            searches += bool(turn.tool_calls)
            corrections += bool(turn.errors)
            for answer in await talk.call_tools(turn):
                _show(talk, answer, self._markers if turn.tool_calls else ("", ""))
        return await talk.finish(num_searches=searches)


class SearchR1Turns(ToolParser):
    """The action of a turn: the first `</search>` or `</answer>` decides."""

    def parse(self, text: str, tools: Sequence[JsonDict] | None = None) -> ParsedTurn:
        """A search is a call, an answer is content, anything else an error."""
        end = _END.search(text)
        start = text.rfind(end[0].replace("/", ""), 0, end.start()) if end else -1
        if end is None or start < 0:
            return ParsedTurn(text, errors=[_CORRECTION])
        if end[0] == "</answer>":
            return ParsedTurn(text[start : end.end()])
        calls = [
            replace(call, arguments_span=(start + len("<search>"), end.start()))
            for call in SearchR1ToolParser().parse(text[start : end.end()], tools).tool_calls
        ]
        return ParsedTurn(text, calls, [] if calls else [_CORRECTION])


def _show(talk: Conversation, answer: Message, markers: Sequence[str]) -> None:
    """Put documents (in markers) or a correction after the action, in the model's turn unless the model ended it."""
    text = f"{markers[0]}{answer['content'].strip()}{markers[1]}"
    if talk.ended_its_turn:
        talk.observe([{"role": "user", "content": text, IS_ERROR: answer[IS_ERROR]}])
    else:
        talk.observe_text(f"\n\n{text}\n\n", {**answer, "content": text})
