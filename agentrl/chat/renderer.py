"""Messages to token ids: whole prompts, and the ids between a sampled turn and the next one (rules R3, R4, R11)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from jinja2 import TemplateError as JinjaError

from agentrl.chat.encoding import TextEncoder
from agentrl.errors import TemplateError
from agentrl.types import JsonDict, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from agentrl.chat.probe import TemplateReport

_NEUTRAL = "NeutralTurnOfTheAssistant"
"""Stands in for the sampled turn: its text never enters a rendering (R4)."""
_SHOWN = "NeutralAnswerToTheAssistant"
_PLAIN_TURN: Message = {"role": "assistant", "content": _NEUTRAL}
_USER: Message = {"role": "user", "content": "NeutralQuestionOfTheUser"}
_ANY_TOOL: JsonDict = {
    "type": "function",
    "function": {
        "name": "neutral_tool",
        "description": "Stands in for a tool.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
    },
}


class ChatRenderer:
    """Renders conversations with one tokenizer and one chat template.

    Args:
        tokenizer: a fast tokenizer.
        chat_template: Jinja text; None: the tokenizer's own.
        chat_template_kwargs: variables for the template, for example `enable_thinking`.
        stop_token_ids: ids that end a turn, besides the tokenizer's end-of-sequence id.
        vocab_size: number of ids that the model knows; None: those of the tokenizer.

    Raises:
        TemplateError: no template, or one that cannot render a question, an answer and a question.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        chat_template: str | None = None,
        chat_template_kwargs: JsonDict | None = None,
        stop_token_ids: Iterable[int] = (),
        vocab_size: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.name = str(tokenizer.name_or_path or "this tokenizer")
        self.vocab_size = vocab_size or len(tokenizer)
        self.encoder = TextEncoder(tokenizer)
        self._template = chat_template if chat_template is not None else tokenizer.chat_template
        if not self._template:
            raise TemplateError(
                f"{self.name} has no chat template: set `actor_rollout_ref.model.chat_template` to a `.jinja` file"
            )
        self._kwargs = dict(chat_template_kwargs or {})
        eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self._stop_ids = frozenset([*stop_token_ids, *eos])
        self._after_call: dict[str, bool] = {}
        self._tail_needs_tools = self._tail([_USER], None) != self._tail([_USER], [_ANY_TOOL])
        self.turn_end_ids = self._find_turn_end()

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Ids that end a turn."""
        return self._stop_ids

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[JsonDict] | None = None) -> list[int]:
        """Ids of a conversation followed by the generation prompt."""
        return self.render(messages, tools, add_generation_prompt=True)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonDict] | None = None,
        *,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """Canonical ids of a whole conversation.

        Raises:
            TemplateError: the template refuses the conversation.
        """
        vault: list[str] = []
        text = self._apply(self._protect(messages, vault), self.encoder.protect(tools, vault), add_generation_prompt)
        return self.encoder.encode(text, vault)

    def delta(
        self, messages: Sequence[Message], *, sampled_ids: Sequence[int], tools: Sequence[JsonDict] | None = None
    ) -> list[int]:
        """Ids that follow a sampled turn: its missing end-of-turn scaffold, `messages`, the generation prompt (R4)."""
        vault: list[str] = []
        hidden_tools = self.encoder.protect(tools, vault) if tools and self._tail_needs_tools else None
        tail = self.encoder.encode(self._tail(self._protect(messages, vault), hidden_tools), vault)
        return tail[self._already_sampled(tail, sampled_ids) :]

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text; look-alikes of special tokens stay plain text."""
        return self.encoder.encode_plain(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids, without the stop id at its end; other special tokens are kept."""
        kept = list(ids)
        if kept and kept[-1] in self._stop_ids:
            kept.pop()
        return self.encoder.decode(kept)

    def probe(self, tools: Sequence[JsonDict] | None = None, after: Sequence[str] = ("tool", "user")) -> TemplateReport:
        """Render probe conversations both ways and compare (R11); `after` names the roles that answer the assistant."""
        from agentrl.chat.probe import probe_template

        return probe_template(self, tools, after)

    def needs_calls(self, message: Message) -> bool:
        """Whether the template shows messages of this role only after a turn that holds tool calls.

        Raises:
            TemplateError: it does not show them at all, so that the model could never read them.
        """
        role = str(message["role"])
        if role in self._after_call:
            return self._after_call[role]
        refusal = "it leaves the message out"
        shown = {**message, "content": _SHOWN}
        for turn in [_PLAIN_TURN, *([_turn_with_calls([message])] if role == "tool" else [])]:
            try:
                text = self._apply([_USER, turn, shown], None, generation_prompt=True)
            except TemplateError as error:
                refusal = str(error)
                continue
            if _SHOWN in text:
                self._after_call[role] = turn is not _PLAIN_TURN
                return self._after_call[role]
        raise TemplateError(
            f"the chat template of {self.name} cannot show a {role} message after an assistant turn: {refusal}"
        )

    def _protect(self, messages: Sequence[Message], vault: list[str]) -> list[Message]:
        return [
            {key: value if key == "role" else self.encoder.protect(value, vault) for key, value in message.items()}
            for message in messages
        ]

    def _apply(self, messages: Sequence[Message], tools: Sequence[JsonDict] | None, generation_prompt: bool) -> str:
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    list(messages),
                    tools=list(tools) if tools else None,
                    chat_template=self._template if isinstance(self._template, str) else None,
                    add_generation_prompt=generation_prompt,
                    tokenize=False,
                    **self._kwargs,
                )
            )
        except (JinjaError, TypeError, ValueError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise TemplateError(
                f"the chat template of {self.name} refuses a conversation of ({roles}): {error}"
            ) from error

    def _tail(self, messages: Sequence[Message], tools: Sequence[JsonDict] | None) -> str:
        """What the template puts after the content of an assistant turn that `messages` follow."""
        after_call = bool(messages) and self.needs_calls(messages[0])
        turn = _turn_with_calls(messages) if after_call else _PLAIN_TURN
        text = self._apply([_USER, turn, *messages], tools, generation_prompt=True)
        _, found, tail = text.rpartition(_NEUTRAL)
        if not found:
            raise TemplateError(f"the chat template of {self.name} drops the text of an assistant turn")
        return self._from_first_special(tail) if after_call else tail

    def _from_first_special(self, text: str) -> str:
        """Cut what closes a call's own syntax; the sampled turn wrote that itself."""
        found = self.encoder.find_special(text)
        return text[found:] if found >= 0 else text

    def _find_turn_end(self) -> list[int]:
        """Ids up to the token that ends every assistant turn; empty where the next role's marker does that (GLM).

        What follows a turn whoever speaks next, up to the generation prompt, is the end-of-turn scaffold. Its first
        stop id ends the turn, or its first special token where no stop id is in it (gpt-oss).
        """
        question = self._apply([_USER], None, generation_prompt=False)
        prompt = self._apply([_USER], None, generation_prompt=True).removeprefix(question)
        before_prompt = self.encoder.encode(self._tail([], None).removesuffix(prompt), [])
        pairs = zip(self.encoder.encode(self._tail([_USER], None), []), before_prompt, strict=False)
        shared = [left for left, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
        for ends in (self._stop_ids, self.encoder.special_id_set):
            for place, token in enumerate(shared):
                if token in ends:
                    return shared[: place + 1]
        return []

    def _already_sampled(self, tail: list[int], sampled: Sequence[int]) -> int:
        """How many ids at the front of `tail` the sampled turn holds at its end (R4)."""
        if not sampled:
            return 0
        last = sampled[-1]
        if self.turn_end_ids and last in self._stop_ids:  # any stop id stands for the template's own end of turn
            end = len(self.turn_end_ids)
            if tail[:end] == self.turn_end_ids:
                return end
            if tail and tail[0] in self._stop_ids:
                return 1
        for length in range(min(len(tail), len(sampled)), 0, -1):
            if tail[length - 1] == last and tail[:length] == list(sampled[-length:]):
                return length
        return 0


def _turn_with_calls(answers: Sequence[Message]) -> Message:
    """An assistant turn whose tool calls the leading tool messages of `answers` answer."""
    calls = [
        {
            "id": answer.get("tool_call_id") or "call000000",
            "type": "function",
            "function": {"name": answer.get("name") or "neutral_tool", "arguments": {"x": _NEUTRAL}},
        }
        for answer in itertools.takewhile(lambda message: message["role"] == "tool", answers)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}
