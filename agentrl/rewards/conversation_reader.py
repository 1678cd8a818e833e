"""Conversations as a reward model reads them: rendered anew with its own chat template and tokenizer.

The messages are those that the agent loop recorded; the policy's tokens are not decoded for it, and nothing of this
rendering is ever trained on. A template that cannot show a part of a conversation gets it as text::

    what it cannot show       what it gets instead
    system message            its text in front of the first user message
    calls of a message        `<tool_call>{"name": …, "arguments": …}</tool_call>` behind the message's text; also in a
                              conversation with several calls in a message, if it can show only one
    result of a call          a user message `<tool_response>…</tool_response>`; results that follow each other are one
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

from agentrl.chat.renderer import ChatRenderer
from agentrl.errors import RewardError, TemplateError, repr_of
from agentrl.types import Message

_SHOWN = "NeutralTextOfTheProbe"
_ASKED: Message = {"role": "user", "content": "NeutralQuestion"}
_ANSWERED: Message = {"role": "assistant", "content": "NeutralAnswer"}
_CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"x": _SHOWN}}}],
}
_OTHER = {"id": "abcdefghj", "type": "function", "function": {"name": "g", "arguments": {"x": "NeutralValue"}}}


class ConversationReader:
    """Renders conversations for a reward model.

    Args:
        renderer: its tokenizer and chat template.
    """

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self._system = self._shows([{"role": "system", "content": _SHOWN}, _ASKED, _ANSWERED])
        self._results = self._shows([_ASKED, _ANSWERED, {"role": "tool", "content": _SHOWN}, _ANSWERED])
        self._calls = self._shows([_ASKED, _CALL])
        # Llama's template refuses two calls in a message, and others show the first alone.
        self._several_calls = self._shows([_ASKED, {**_CALL, "tool_calls": [_OTHER, *_CALL["tool_calls"]]}])

    @property
    def as_text(self) -> list[str]:
        """The parts of conversations that the template cannot show and gets as text."""
        shown = {"system messages": self._system, "tool calls": self._calls, "tool results": self._results}
        return [part for part, can in shown.items() if not can]

    def read(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a whole conversation.

        Raises:
            RewardError: a message holds more than text, or the template refuses the conversation.
        """
        several = any(len(message.get("tool_calls") or ()) > 1 for message in messages)
        steps: tuple[tuple[bool, Callable[[list[Message]], list[Message]]], ...] = (
            (self._system, _system_in_question),
            (self._several_calls if several else self._calls, _calls_as_text),
            (self._results, _results_as_questions),
        )
        shown = [{**message, "content": _text(message)} for message in messages]
        for can, in_other_words in steps:
            shown = shown if can else in_other_words(shown)
        try:
            return self._renderer.render(shown)
        except TemplateError as error:
            raise RewardError(f"the reward model cannot read the conversation: {error}") from error

    def _shows(self, messages: list[Message]) -> bool:
        """Whether the template renders messages, and the text of the probe among them."""
        try:
            ids = self._renderer.render(messages)
        except TemplateError:
            return False
        return _SHOWN in self._renderer.encoder.decode(ids)


def cut(ids: list[int], most: int | None, side: Literal["left", "right"], bos_id: int | None = None) -> list[int]:
    """At most `most` ids of a conversation.

    Args:
        ids: `[BOS, 5, 6, 7]`.
        most: 3; None: no limit.
        side: the side that is cut: left gives `[BOS, 6, 7]`, right `[BOS, 5, 6]`.
        bos_id: id that begins every text; it stays where it is the first.
    """
    if most is None or len(ids) <= most:
        return ids
    if side == "right":
        return ids[:most]
    first = ids[:1] if bos_id is not None and ids[0] == bos_id and most > 1 else []
    return [*first, *ids[len(ids) - most + len(first) :]]


def _text(message: Message) -> str:
    """The text of a message; of one in parts, the texts of all.

    Raises:
        RewardError: a part is something else, for example an image.
    """
    content = message.get("content") or ""
    texts: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
        if not isinstance(text, str):
            raise RewardError(
                f"the reward model reads text only, but a message of the role {message.get('role')} holds "
                f"{repr_of(part)}"
            )
        texts.append(text)
    return "".join(texts)


def _system_in_question(messages: list[Message]) -> list[Message]:
    """System messages in front of the user message that follows them."""
    out: list[Message] = []
    texts: list[str] = []
    for message in messages:
        if message["role"] == "system":
            texts.append(message["content"])
        elif message["role"] == "user" and texts:
            out.append({**message, "content": "\n\n".join([*texts, message["content"]])})
            texts = []
        else:
            out.append(message)
    return out if not texts else [*out, {"role": "user", "content": "\n\n".join(texts)}]


def _calls_as_text(messages: list[Message]) -> list[Message]:
    """Calls behind the text of their message."""
    return [_without_calls(message) if message.get("tool_calls") else message for message in messages]


def _without_calls(message: Message) -> Message:
    written = [f"<tool_call>\n{_call_text(call)}\n</tool_call>" for call in message["tool_calls"]]
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**kept, "content": "\n".join([*([message["content"]] if message["content"] else []), *written])}


def _call_text(call: dict[str, Any]) -> str:
    function = call.get("function", call)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        return f'{{"name": {json.dumps(function.get("name"))}, "arguments": {arguments}}}'
    return json.dumps({"name": function.get("name"), "arguments": arguments}, ensure_ascii=False, default=str)


def _results_as_questions(messages: list[Message]) -> list[Message]:
    """Results of tools as user messages."""
    out: list[Message] = []
    before = ""
    for message in messages:
        role = str(message["role"])
        if role != "tool":
            out.append(message)
        else:
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if before == "tool":
                out[-1] = {"role": "user", "content": f"{out[-1]['content']}\n{text}"}
            else:
                out.append({"role": "user", "content": text})
        before = role
    return out
