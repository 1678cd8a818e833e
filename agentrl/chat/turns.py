"""What a chat template puts after the content of an assistant turn, found by rendering neutral conversations.

A template may write a turn that a tool message answers in its own way: gpt-oss ends it differently, Gemma lets the
result continue it, others refuse a result without its call. `TurnTails` therefore finds out, for each role that may
speak next, which form of assistant turn can stand in for the sampled one (`TurnForm`), and where in the rendering the
end-of-turn scaffold begins (`Following`). Nothing here knows a model family. The rules: docs/token_rules.md.
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.chat.encoding import TextEncoder
from agentrl.errors import TemplateError
from agentrl.types import JsonDict, Message

NEUTRAL = f"NeutralTurnOfTheAssistant{secrets.token_hex(8)}"
"""Stands in for the sampled turn, whose own text never enters a rendering. Random, so no tool or user can guess it."""
SHOWN = "NeutralAnswerToTheAssistant"
_ALSO_SHOWN = "NeutralSecondAnswer"
USER: Message = {"role": "user", "content": "NeutralQuestionOfTheUser"}
ANY_TOOL: JsonDict = {
    "type": "function",
    "function": {
        "name": "neutral_tool",
        "description": "Stands in for a tool.",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "string", "description": "Any text."}},
            "required": ["x"],
        },
    },
}

Apply = Callable[[Sequence[Message], Sequence[JsonDict] | None, bool], str]
"""Messages, tools and whether to add the generation prompt -> rendered text."""


@dataclass(frozen=True, slots=True)
class TurnForm:
    """How the turn that stands in for the sampled one is written down."""

    has_calls: bool = False
    as_text: bool = False
    """The arguments of its calls are a JSON string, not an object."""
    single: bool = False
    """It has one call, however many results follow."""

    def turn(self, answers: Sequence[Message], *, empty: bool = False) -> Message:
        """An assistant turn that the leading tool messages of `answers` answer; `empty`: without arguments."""
        if not self.has_calls:
            return {"role": "assistant", "content": NEUTRAL}
        arguments: Any = {} if empty else {"x": NEUTRAL}
        if self.as_text:
            arguments = json.dumps(arguments)
        results = itertools.takewhile(lambda message: message["role"] == "tool", answers)
        calls = [
            {
                "id": result.get("tool_call_id") or _call_id(index),
                "type": "function",
                "function": {"name": result.get("name") or "neutral_tool", "arguments": arguments},
            }
            for index, result in enumerate(results)
        ]
        return {"role": "assistant", "content": "", "tool_calls": calls[:1] if self.single else calls}


_PLAIN = TurnForm()
_WITH_CALLS = [TurnForm(has_calls=True), TurnForm(has_calls=True, as_text=True)]


@dataclass(frozen=True, slots=True)
class Following:
    """How a message of one role follows an assistant turn."""

    form: TurnForm
    closer: str = ""
    """The text that closes the neutral call's arguments."""
    cut: str = ""
    """The text with which the end-of-turn scaffold begins after that; empty: immediately."""
    end_ids: tuple[int, ...] = ()
    """Ids that end the turn; empty where the next message's own marker ends it (GLM)."""
    tools_matter: bool = False
    """Whether what follows a turn depends on the offered tools."""

    def tail_of(self, rendered: str) -> str:
        """What follows the content of the neutral turn; what closes a call's own syntax is left out."""
        # gpt-oss renders a call and its result as `..."NEUTRAL"}<|call|><|start|>functions.f ... 42<|end|>...`. With
        # closer `"` and cut `<|call|>` the tail is `<|call|><|start|>functions.f ...`: the model has sampled the `"}`.
        tail = rendered.rpartition(NEUTRAL)[2].removeprefix(self.closer)
        return tail[max(tail.find(self.cut), 0) :]


class TurnTails:
    """What one template puts after an assistant turn.

    Args:
        apply: renders a conversation.
        encoder: text to ids.
        stop_ids: ids that end a turn.
        name: of the template's model, for error messages.

    Raises:
        TemplateError: the template cannot render a question, an answer and a question.
    """

    def __init__(self, apply: Apply, encoder: TextEncoder, stop_ids: frozenset[int], name: str) -> None:
        self._apply = apply
        self._encoder = encoder
        self._stop_ids = stop_ids
        self._name = name
        self._found: dict[tuple[str, bool], Following] = {}
        self.separator = ""
        """The text between the end of a turn and whatever follows it."""
        self.turn_end_ids, self._turn_end = self._find_turn_end()

    def render(self, messages: Sequence[Message], tools: Sequence[JsonDict] | None) -> tuple[str, Following]:
        """Text between the content of a turn that `messages` answer and the next generation, prompt included.

        Raises:
            TemplateError: the template cannot show the messages there.
        """
        if not messages:
            return self._plain_tail([], True), Following(_PLAIN, end_ids=tuple(self.turn_end_ids))
        follows = self.following(str(messages[0]["role"]), bool(tools))
        offered = tools if follows.tools_matter else None
        try:
            return self._render(follows, messages, offered), follows
        except TemplateError:
            if messages[0]["role"] != "tool":
                raise
        # A template that refuses results often wants more than an environment gives: first a name and a call id for
        # each (Mistral), then a turn with one call instead of one call per result (Llama 3 allows one call a turn).
        named = self._with_call_ids(follows, messages, offered)
        try:
            return self._render(follows, named, offered), follows
        except TemplateError:
            return self._render(replace(follows, form=replace(follows.form, single=True)), named, offered), follows

    def following(self, role: str, with_tools: bool = False) -> Following:
        """How messages of this role follow a turn.

        Raises:
            TemplateError: the template cannot show them, so the model could never read them.
        """
        key = (role, with_tools)
        if key not in self._found:
            self._found[key] = self._find(role, [ANY_TOOL] if with_tools else None)
        return self._found[key]

    def _render(self, follows: Following, messages: Sequence[Message], tools: Sequence[JsonDict] | None) -> str:
        return follows.tail_of(self._apply([USER, follows.form.turn(messages), *messages], tools, True))

    def _with_call_ids(
        self, follows: Following, messages: Sequence[Message], tools: Sequence[JsonDict] | None
    ) -> list[Message]:
        """The same messages; each that the template refuses on its own gets a name and a call id (Mistral)."""
        named = []
        for index, message in enumerate(messages):
            extra = {"name": message.get("name") or "neutral_tool", "tool_call_id": _call_id(index)}
            if message["role"] == "tool":
                try:
                    self._render(follows, [message], tools)
                except TemplateError:
                    message = {**message, **extra}
            named.append(message)
        return named

    def _find(self, role: str, tools: Sequence[JsonDict] | None) -> Following:
        # Try the simplest stand-in first: a turn of plain text, then one with calls. `plain` and `calls` keep what each
        # form renders to, if the template accepts the form and the answer (SHOWN) appears after the turn.
        answers = [_answer(role, SHOWN, 0)]
        plain = calls = None
        refusal, form = "it leaves the message out", _PLAIN
        for candidate in [_PLAIN, *(_WITH_CALLS if role == "tool" else [])]:
            try:
                text = self._apply([USER, candidate.turn(answers), *answers], tools, True)
            except TemplateError as error:
                refusal = str(error)
                continue
            _, found, tail = text.rpartition(NEUTRAL)
            if not found or SHOWN not in tail:
                continue
            if candidate is _PLAIN:
                plain = tail
            elif calls is None:
                calls, form = text, candidate
        # Where both forms render to the same tail, the form does not matter and plain text is the safer one: it has no
        # call syntax to cut away. They differ in gpt-oss, which ends a call with <|call|> and text with <|end|>.
        if calls is not None and (plain is None or not calls.endswith(plain)):
            return self._after_calls(form, answers, calls, tools)
        if plain is None:
            raise TemplateError(
                f"the chat template of {self._name} cannot show a {role} message after an assistant turn: {refusal}"
            )
        before = plain[: plain.index(SHOWN)]
        first = self._encoder.first_special(before)
        end = tuple(self.turn_end_ids)
        if not end or not before.startswith(self._turn_end):
            whole = first is not None and before.startswith(first[0])
            end = self._end(first[0], first[1], before, _PLAIN, role, tools) if first and whole else ()
        return Following(_PLAIN, end_ids=end, tools_matter=self._tools_matter(_PLAIN, answers, tools, plain))

    def _after_calls(
        self, form: TurnForm, answers: list[Message], text: str, tools: Sequence[JsonDict] | None
    ) -> Following:
        """Find where a turn with calls ends: at the usual end of turn, a stop id, or else its first special token."""
        tail = text.rpartition(NEUTRAL)[2]
        closer = self._closer(form, answers, text, tools)
        before = tail[len(closer) : tail.index(SHOWN)]
        end: tuple[int, ...] = ()
        if self._turn_end and self._turn_end in before:
            cut, end = self._turn_end, tuple(self.turn_end_ids)
        elif (stop := self._encoder.first_special(before, self._stop_ids)) is not None:
            cut, token = stop
            end = self._end(cut, token, before, form, str(answers[0]["role"]), tools)
        else:
            first = self._encoder.first_special(before)
            cut = first[0] if first else ""
        matter = self._tools_matter(form, answers, tools, tail)
        return Following(form, closer, cut, end, matter)

    def _closer(self, form: TurnForm, answers: list[Message], text: str, tools: Sequence[JsonDict] | None) -> str:
        """The text that closes the arguments of a call: what a call without arguments does not have there."""
        # gpt-oss: tail `"}<|call|>...`, and without arguments `...{}<|call|>...`. The longest common ending is
        # `}<|call|>...`, so the closer is `"`: it belongs to the arguments and not to the scaffold.
        tail = text.rpartition(NEUTRAL)[2]
        try:
            bare = self._apply([USER, form.turn(answers, empty=True), *answers], tools, True)
        except TemplateError:
            return ""
        pairs = zip(reversed(tail), reversed(bare), strict=False)
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        closer = tail[: len(tail) - shared]
        return "" if SHOWN in closer else closer

    def _end(
        self, cut: str, token: int, before: str, form: TurnForm, role: str, tools: Sequence[JsonDict] | None
    ) -> tuple[int, ...]:
        """The stop id that ends a turn before such a message; empty where that id is the message's own opening marker.

        A marker opens each of several messages, and may be the only special token before the content (Gemma, GLM).
        """
        # A sampled stop id counts as the turn's end and is not repeated. A marker that opens a message must not count:
        # GLM's <|observation|> between two results would then be taken for the end of the sampled turn. The test is
        # whether the token appears again between two answers of this role.
        if token not in self._stop_ids or not self.turn_end_ids:
            return ()
        if self._encoder.first_special(before.partition(cut)[2]) is None:
            return ()
        answers = [_answer(role, SHOWN, 0), _answer(role, _ALSO_SHOWN, 1)]
        try:
            text = self._apply([USER, form.turn(answers), *answers], tools, True)
        except TemplateError:
            return (token,)
        between = text.rpartition(SHOWN)[2].partition(_ALSO_SHOWN)[0]
        return () if cut in between else (token,)

    def _tools_matter(
        self, form: TurnForm, answers: list[Message], tools: Sequence[JsonDict] | None, tail: str
    ) -> bool:
        if not tools:
            return False
        try:
            text = self._apply([USER, form.turn(answers), *answers], None, True)
        except TemplateError:
            return True
        return text.rpartition(NEUTRAL)[2] != tail

    def _find_turn_end(self) -> tuple[list[int], str]:
        """Ids and text up to the token that ends every assistant turn; empty where the next role's marker does (GLM).

        The ids that follow a turn whoever speaks next, up to the generation prompt, are the end-of-turn scaffold. Its
        first stop id ends the turn, or its first special token if it holds no stop id (gpt-oss). A template may write
        nothing after the last turn; then the end is a stop id that precedes both a user's and a tool's message. Or it
        ends the last turn differently from earlier ones; then the end is what precedes the next role's marker.
        """
        # ChatML: before a user message `<|im_end|>\n<|im_start|>user\n...`, after the last turn `<|im_end|>\n`. They
        # share `<|im_end|>\n`; <|im_end|> is a stop id and ends the turn, and `\n` is the separator.
        user, last = self._plain_tail([USER], True), self._last_tail()
        scaffold, special = self._encoder.encode(user, []), self._encoder.special_id_set
        shared = _common(scaffold, self._encoder.encode(last, []))
        for candidates, ends in ((shared, self._stop_ids), (shared, special), (self._before_tool(), self._stop_ids)):
            both = _common(scaffold, candidates)
            place = next((place for place, token in enumerate(both) if token in ends), None)
            if place is not None:
                name = self._encoder.token_text(both[place])
                before, found, _ = user.partition(name)
                rest = itertools.takewhile(lambda token: token not in special, shared[place + 1 :])
                self.separator = self._encoder.decode(list(rest))
                return both[: place + 1], before + found
        first, other = self._encoder.first_special(user), self._encoder.first_special(last, self._stop_ids)
        opening = user.partition(USER["content"])[0]
        if first and other and self._encoder.first_special(opening.partition(first[0])[2]):
            before = user[: user.index(first[0]) + len(first[0])]
            return self._encoder.encode(before, []), before
        return [], ""

    def _before_tool(self) -> list[int]:
        """Ids before the content of a tool message that follows a plain turn; empty where the template refuses one."""
        answers = [_answer("tool", SHOWN, 0)]
        try:
            tail = self._plain_tail(answers, True)
        except TemplateError:
            return []
        return self._encoder.encode(tail.partition(SHOWN)[0], []) if SHOWN in tail else []

    def _last_tail(self) -> str:
        """The text after the last turn of a conversation, without a generation prompt."""
        try:
            tail = self._plain_tail([], True)
        except TemplateError:  # the template refuses a generation prompt after an assistant turn
            return self._plain_tail([], False)
        question = self._apply([USER], None, False)
        return tail.removesuffix(self._apply([USER], None, True).removeprefix(question))

    def _plain_tail(self, messages: Sequence[Message], generation_prompt: bool) -> str:
        _, found, tail = self._apply([USER, _PLAIN.turn([]), *messages], None, generation_prompt).rpartition(NEUTRAL)
        if not found:
            raise TemplateError(f"the chat template of {self._name} drops the text of an assistant turn")
        return tail


def _answer(role: str, content: str, index: int) -> Message:
    extra = {"name": "neutral_tool", "tool_call_id": _call_id(index)} if role == "tool" else {}
    return {"role": role, "content": content, **extra}


def _call_id(index: int) -> str:
    """Nine letters and digits: the form that the strictest templates (Mistral) accept."""
    return f"call{index:05d}"


def _common(left: Sequence[int], right: Sequence[int]) -> list[int]:
    """The longest common prefix."""
    return [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))]
