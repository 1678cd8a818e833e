"""Messages to token ids: whole prompts, and the ids between a sampled turn and the next one (docs/token_rules.md)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from jinja2 import TemplateError as JinjaError

from agentrl.chat.encoding import TextEncoder
from agentrl.chat.turns import TurnTails
from agentrl.chat.vision import Vision
from agentrl.errors import PictureError, TemplateError
from agentrl.pictures import Picture, pictures_in
from agentrl.types import JsonDict, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")
_KEPT_PROMPTS = 256
_KEPT_TAILS = 1024
_KEPT_TAIL = 4096
"""In tokens. Longer tool results rarely repeat and would fill the memory."""
_TEMPLATE_FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""Errors that Python raises inside a template that expects messages of another shape."""


class ChatRenderer:
    """Renders conversations with one tokenizer and one chat template.

    Args:
        tokenizer: a fast tokenizer.
        chat_template: Jinja text; None: the tokenizer's own.
        chat_template_kwargs: variables for the template, for example `enable_thinking`.
        stop_token_ids: ids that end a turn, besides the tokenizer's end-of-sequence id.
        vocab_size: number of ids that the model knows; None: those of the tokenizer.
        vision: how the model sees pictures; None: it reads text only.

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
        vision: Vision | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.vision = vision
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
        self._prompts: dict[bytes, array[int]] = {}
        self._tails: dict[bytes, tuple[array[int], tuple[int, ...]]] = {}
        self._schemas: dict[bytes, tuple[list[JsonDict], list[str]]] = {}
        self.tails = TurnTails(self._apply, self.encoder, self._stop_ids, self.name)

    def with_variables(self, **variables: object) -> ChatRenderer:
        """The same renderer with other values of template variables, for example `enable_thinking`."""
        return ChatRenderer(
            self.tokenizer,
            chat_template=self._template,
            chat_template_kwargs={**self._kwargs, **variables},
            stop_token_ids=self._stop_ids,
            vocab_size=self.vocab_size,
            vision=self.vision,
        )

    @property
    def turn_end_ids(self) -> list[int]:
        """Ids up to the token that ends every assistant turn; empty where the next role's marker does that."""
        return list(self.tails.turn_end_ids)

    @property
    def template(self) -> str:
        """The Jinja text; of several named ones, that for conversations with tools."""
        if isinstance(self._template, str):
            return self._template
        return str(self._template.get("tool_use") or self._template.get("default", ""))

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Ids that end a turn."""
        return self._stop_ids

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[JsonDict] | None = None) -> list[int]:
        """Ids of a conversation followed by the generation prompt. The rollouts of a group render theirs once."""
        key = _key(messages, tools)
        ids = self._prompts.get(key) if key else None
        if ids is None:
            ids = array("I", self.render(messages, tools, add_generation_prompt=True))
            if key:
                _keep(self._prompts, key, ids, _KEPT_PROMPTS)
        return ids.tolist()

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonDict] | None = None,
        *,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """Canonical ids of a whole conversation; each picture has as many placeholders as the model reads of it.

        Raises:
            TemplateError: the template refuses the conversation, or shows other pictures than it has.
            PictureError: a picture cannot be read, or the model reads text only.
        """
        hidden_tools, vault = self._protect_tools(tools)
        text = self._apply(self._protect(messages, vault), hidden_tools, add_generation_prompt)
        return self._expand(self.encoder.encode(text, vault), pictures_in(messages))

    def delta(
        self, messages: Sequence[Message], *, sampled_ids: Sequence[int], tools: Sequence[JsonDict] | None = None
    ) -> list[int]:
        r"""Ids that follow a sampled turn: its missing end-of-turn scaffold, `messages`, the generation prompt.

        Example (ChatML): the turn ends in `<|im_end|>`, a tool answers `42`. The result is the ids of
        `\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n`: the newline after `<|im_end|>` is the template's.
        A turn that was stopped before `<|im_end|>` gets that id too.
        """
        # The tail depends on the messages alone, and the rollouts of a group often read the same ones (the feedback of
        # an interaction, the result of a call). Only how much of it was sampled depends on the turn.
        key = _key(messages, tools)
        kept = self._tails.get(key) if key else None
        if kept is None:
            kept = self._tail(messages, tools)
            if key and len(kept[0]) <= _KEPT_TAIL:
                _keep(self._tails, key, kept, _KEPT_TAILS)
        tail, end = kept[0].tolist(), kept[1]
        return tail[self._already_sampled(tail, sampled_ids, end) :]

    def encode_text(self, text: str, *, starts: bool = False) -> list[int]:
        """Ids of plain text, look-alikes of special tokens included; `starts`: after the token that begins a text."""
        ids, bos = self.encoder.encode_plain(text), self.tokenizer.bos_token_id
        return [bos, *ids] if starts and bos is not None and self.tokenizer("").input_ids[:1] == [bos] else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids without the stop id at the end; other special tokens are kept."""
        kept = list(ids)
        if kept and kept[-1] in self._stop_ids:
            kept.pop()
        return self.encoder.decode(kept if self.vision is None else self.vision.tokens.collapse(kept))

    def _tail(
        self, messages: Sequence[Message], tools: Sequence[JsonDict] | None
    ) -> tuple[array[int], tuple[int, ...]]:
        """Ids after the content of a turn that `messages` answer, and those among them that end the turn."""
        hidden_tools, vault = self._protect_tools(tools)
        text, follows = self.tails.render(self._protect(messages, vault), hidden_tools)
        ids = self._expand(self.encoder.encode(text, vault), pictures_in(messages))
        return array("I", ids), follows.end_ids

    def _expand(self, ids: list[int], pictures: Sequence[Picture]) -> list[int]:
        """Replace the one placeholder that the template writes for each picture by those that the model reads."""
        if self.vision is None:
            if pictures:
                raise PictureError(f"{self.name} reads text only, but the messages show {len(pictures)} pictures")
            return ids
        if pictures and len(self.vision.tokens.runs(ids)) != len(pictures):
            shown = len(self.vision.tokens.runs(ids))
            raise TemplateError(
                f"the chat template of {self.name} shows {shown} of {len(pictures)} pictures: set "
                "actor_rollout_ref.model.chat_template to one that shows them (templates/chatml_tools.jinja does)"
            )
        return self.vision.tokens.expand(ids, [self.vision.count(picture) for picture in pictures]) if pictures else ids

    def _protect_tools(self, tools: Sequence[JsonDict] | None) -> tuple[list[JsonDict] | None, list[str]]:
        """Schemas without look-alikes, and a vault that begins with those look-alikes; the same in every turn."""
        if not tools:
            return None, []
        key = orjson.dumps(tools)
        if key not in self._schemas:
            vault: list[str] = []
            self._schemas[key] = self.encoder.protect(tools, vault), vault
        hidden, vault = self._schemas[key]
        return hidden, list(vault)

    def _protect(self, messages: Sequence[Message], vault: list[str]) -> list[Message]:
        return [
            {key: self._protect_field(message, key, value, vault) for key, value in message.items()}
            for message in messages
        ]

    def _protect_field(self, message: Message, key: str, value: Any, vault: list[str]) -> Any:
        if key == "role":
            return value
        if key == "content" and isinstance(value, list):
            return [self._protect_part(part, vault) for part in value]
        if key == "content" and message["role"] == "assistant" and isinstance(value, str):
            return self.encoder.protect_turn(value, vault)
        return self.encoder.protect(value, vault)

    def _protect_part(self, part: JsonDict, vault: list[str]) -> JsonDict:
        """A part of a content list as templates read it: a picture without its bytes, and text."""
        return {"type": "image"} if part.get("type") == "image" else self.encoder.protect(part, vault)

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
        except (JinjaError, *_TEMPLATE_FAULTS) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise TemplateError(
                f"the chat template of {self.name} refuses a conversation of ({roles}): {error}"
            ) from error

    def _already_sampled(self, tail: list[int], sampled: Sequence[int], end: tuple[int, ...]) -> int:
        """How many ids at the front of `tail` the sampled turn already ends with."""
        # With tail = [END, NL, START, ...]:
        #   sampled [..., END]      -> 1: the template's END was sampled, append from NL on
        #   sampled [..., END, NL]  -> 2 where the model also sampled the newline and no stop id ended the turn at END
        #   sampled [..., OTHER]    -> 1 if OTHER is a stop id: the engine stopped there, so it takes END's place
        #   sampled [..., x]        -> 0: the turn was cut, END is missing and comes with the tail
        if not sampled:
            return 0
        last = sampled[-1]
        if end and (last in self._stop_ids or last == end[-1]) and tuple(tail[: len(end)]) == end:
            return len(end)
        for length in range(min(len(tail), len(sampled)), 0, -1):
            if tail[length - 1] == last and tail[:length] == list(sampled[-length:]):
                return length
        return 0


def _key(messages: Sequence[Message], tools: Sequence[JsonDict] | None) -> bytes | None:
    """The cache key of messages and tools; None when they hold values that neither JSON nor a digest stands for."""
    try:
        return blake2b(orjson.dumps([messages, tools], default=_digest), digest_size=16).digest()
    except TypeError:
        return None


def _digest(value: Any) -> str:
    if isinstance(value, Picture):
        return value.digest
    raise TypeError


def _keep(kept: dict[bytes, T], key: bytes, value: T, most: int) -> None:
    if len(kept) >= most:
        kept.clear()
    kept[key] = value
