"""The one conversation that a graph's model and its tools share (see `langgraph_agent`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from agentrl.agent_loops.conversation import Conversation
from agentrl.errors import InfrastructureError, PluginError
from agentrl.interfaces import LoopContext
from agentrl.types import AgentLoopOutput, JsonDict, Message, ParsedTurn, StopReason, ToolCall


class ConversationOver(Exception):
    """Unwinds a graph whose conversation has ended; a graph that catches it gets it again at its next turn."""


class GraphTalk:
    """The state that a graph's model and tools share: one conversation, and how much of it the model has seen.

    Args:
        context: the services of this trajectory.
        sampling_params: as `AgentLoopBase.run` gets them.
        index: the row's number.
    """

    def __init__(self, context: LoopContext, sampling_params: JsonDict, index: int | None) -> None:
        self._context = context
        self._sampling_params = sampling_params
        self._index = index
        self._talk: Conversation | None = None
        self._tools: list[JsonDict] = []
        self._shown: list[Message] = []
        self._turns = 0
        self._errors: list[str] = []
        self._calls: dict[str, ToolCall] = {}
        self._answers: dict[str, str] | None = None
        self._lock = asyncio.Lock()
        self._failure: InfrastructureError | None = None

    async def answer(self, messages: list[Message], tools: list[JsonDict], stop: Sequence[str]) -> Message:
        """Show the model what the graph added, and sample a turn that is not just a malformed call.

        Args:
            messages: the whole conversation in the graph's state.
            tools: schemas that the graph offers.
            stop: strings that end the turn, besides the run's.

        Raises:
            PluginError: the graph changed messages that the model has already seen.
            ConversationOver: a limit or the engine ended the conversation.
            InfrastructureError: the engine failed now, or an earlier failure was hidden by the graph.
        """
        if self._lock.locked():
            raise PluginError(
                "langgraph_agent: the graph calls its model twice at the same time, but it has only one conversation"
            )
        async with self._turn_of_its_own():
            talk = self._start(messages, tools) if self._talk is None else self._go_on(self._talk, messages, tools)
            turn = await self._sample(talk, stop)
            self._turns += 1
            self._calls = {f"call_{self._turns}_{i}": call for i, call in enumerate(turn.tool_calls)}
            self._answers, self._errors = None, turn.errors
            reply: Message = {"role": "assistant", "content": turn.content}
            if self._calls:
                reply["tool_calls"] = [_as_openai(call_id, call) for call_id, call in self._calls.items()]
            self._shown = [*messages, reply]
            return reply

    async def call(self, call_id: str, name: str, arguments: JsonDict) -> str:
        """The answer to a call. The first one that the graph asks for runs all calls of the turn, within the limits.

        Raises:
            ConversationOver: a limit or a stop tool ended the conversation.
            InfrastructureError: a tool failed.
        """
        async with self._turn_of_its_own():
            asked, written = ToolCall(name, arguments), self._calls.get(call_id)
            if written is None or (written.name, written.arguments) != (name, arguments):  # the graph's own idea
                return (await self._run({call_id: asked})).get(call_id, "")
            if self._answers is None:
                known = {tool["function"]["name"] for tool in self._context.tools.schemas}
                self._answers = await self._run({i: call for i, call in self._calls.items() if call.name in known})
            return self._answers.get(call_id, "")

    def end(self, reason: StopReason) -> None:
        """End the conversation, unless it has ended already."""
        if self._talk is not None and self._talk.stop_reason is None:
            self._talk.stop_reason = reason

    async def finish(self) -> AgentLoopOutput:
        """The finished trajectory.

        Raises:
            InfrastructureError: an earlier failure was hidden by the graph.
        """
        if self._failure is not None:
            raise self._failure
        if self._talk is None:
            raise PluginError("langgraph_agent: the graph ended without calling its model")
        return await self._talk.finish()

    @asynccontextmanager
    async def _turn_of_its_own(self) -> AsyncIterator[None]:
        """Allow one step at a time and none after the end, and raise failures again that the graph has hidden."""
        async with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._talk is not None and self._talk.stop_reason is not None:
                raise ConversationOver
            try:
                yield
            except InfrastructureError as error:
                self._failure = error
                raise
            if self._talk is not None and self._talk.stop_reason is not None:
                raise ConversationOver

    def _start(self, messages: list[Message], tools: list[JsonDict]) -> Conversation:
        self._tools = tools
        self._talk = Conversation(self._context, messages, self._sampling_params, tools or None, index=self._index)
        return self._talk

    def _go_on(self, talk: Conversation, messages: list[Message], tools: list[JsonDict]) -> Conversation:
        """Append what the graph added since the last turn."""
        if tools != self._tools:
            raise PluginError("langgraph_agent: the graph offers other tools than at first; the prompt cannot change")
        for place, (before, now) in enumerate(zip(self._shown, messages, strict=False)):
            if before != now:
                raise PluginError(
                    f"langgraph_agent: message {place} was {_short(before)} when the model saw it and is {_short(now)} "
                    "now. A graph may only append to the conversation: do not trim, summarise or rewrite it"
                )
        new = messages[len(self._shown) :]
        if not new or any(message["role"] not in ("tool", "user") for message in new):
            roles = ", ".join(message["role"] for message in new) or "nothing"
            raise PluginError(f"langgraph_agent: the graph added ({roles}) to the conversation, wanted tool or user")
        talk.count_mistakes(len(self._errors))
        errors = [{"role": "tool", "name": "error", "content": error} for error in self._errors]
        talk.observe([*map(self._with_its_own_id, new), *errors])
        return talk

    def _with_its_own_id(self, message: Message) -> Message:
        """A tool message with the id that the model wrote; the graph's own id is unique in the trajectory."""
        call = self._calls.get(message.get("tool_call_id", ""))
        return message if call is None else {**message, "tool_call_id": call.id}

    async def _sample(self, talk: Conversation, stop: Sequence[str]) -> ParsedTurn:
        """The next turn. A turn of malformed calls only is answered here: to a graph it would look like an answer."""
        turn = ParsedTurn("")
        while talk.stop_reason is None:
            text = await talk.generate(stop)
            if talk.stop_reason is not None:
                break
            turn = self._context.tool_parser.parse(text, self._tools) if self._tools else ParsedTurn(text)
            if turn.tool_calls and talk.out_of_turns:
                talk.stop_reason = StopReason.MAX_TURNS
            elif turn.tool_calls or not turn.errors:
                break
            else:
                answers = await talk.call_tools(turn)
                if answers:
                    talk.observe(answers)
        return turn

    async def _run(self, calls: dict[str, ToolCall]) -> dict[str, str]:
        if self._talk is None:
            raise PluginError("langgraph_agent: the graph called a tool before its model")
        answers = await self._talk.call_tools(ParsedTurn("", list(calls.values())))
        return {call_id: str(answer["content"]) for call_id, answer in zip(calls, answers, strict=False)}


def _as_openai(call_id: str, call: ToolCall) -> JsonDict:
    return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _short(message: Message) -> str:
    text = repr(message)
    return text if len(text) <= 200 else f"{text[:200]}…"
