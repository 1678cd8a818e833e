"""Text to ids without injection: text inside a message that looks like a special token stays ordinary text.

A chat template writes special tokens as text (`<|im_end|>`), and so may a user or a tool. `TextEncoder.protect` hides
the look-alikes in messages behind markers before the template runs. It also hides the beginning of one at the end of a
text (`<|im_`), which the next text could complete. Every special token that the rendered text still shows is the
template's own. `TextEncoder.encode` splits the text there, puts the hidden text back and encodes it as plain text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from agentrl.errors import TemplateError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CACHED_PIECE = 8192
_CACHED_PIECES = 1024
"""At most this many pieces of at most `_CACHED_PIECE` characters keep their ids: a template's scaffold repeats in every
turn, a system message with its tools in every row, a prompt in every rollout of its group."""

_TURN_TAGS = re.compile(r"(</?(?:think|tool_call)>)")
"""Tags that a model writes inside its turn. In some vocabularies they are special tokens."""


class TextEncoder:
    """Encodes rendered conversations and plain text with one tokenizer.

    Args:
        tokenizer: a fast tokenizer (one with a `tokenizers` backend).

    Raises:
        TemplateError: the tokenizer has no such backend.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise TemplateError(
                f"{type(tokenizer).__name__} of {tokenizer.name_or_path or 'this model'} is a slow tokenizer; "
                "agentrl needs a fast one (with a `tokenizer.json`)"
            )
        self._backend = backend
        self._lock = Lock()
        added = tokenizer.added_tokens_decoder
        self.special_ids = {str(token.content): i for i, token in added.items() if token.special}
        self._names = {token: name for name, token in self.special_ids.items()}
        self.special_id_set = frozenset(self.special_ids.values())
        names = sorted(self.special_ids, key=len, reverse=True)
        self._special = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else re.compile("(?!)()")
        # <|im_end|> -> "<", "<|", "<|i", ... A special token that begins with a letter or digit is left out: every text
        # that ends in that character would have to be hidden.
        self._beginnings = {name[:size] for name in names if not name[0].isalnum() for size in range(1, len(name))}
        self._first_chars = {beginning[0] for beginning in self._beginnings}
        self._longest = max(map(len, names), default=0)
        nonce = secrets.token_hex(8)
        self._marker = f"Hidden{nonce}N%dE"
        self._hidden = re.compile(f"Hidden{nonce}N([0-9]+)E")
        self._cached = lru_cache(maxsize=_CACHED_PIECES)(self._encode_whole)
        plain_flags = all(
            not (t.lstrip or t.rstrip or t.single_word or t.normalized) for t in added.values() if t.special
        )
        self._by_piece = plain_flags and self._pieces_are_exact()

    def protect_turn(self, text: str, vault: list[str]) -> str:
        """`protect` for an assistant's text: thinking and call tags stay, because templates look for them there."""
        pieces = _TURN_TAGS.split(text)
        return "".join(self.protect(piece, vault) if index % 2 == 0 else piece for index, piece in enumerate(pieces))

    def protect(self, value: Any, vault: list[str]) -> Any:
        """Copy messages or schemas with every look-alike of a special token replaced by a marker.

        Args:
            value: strings, mappings, lists of them; anything else is passed through.
            vault: receives the text that the markers stand for; `encode` needs it.
        """
        # "say <|im_end|> now <|im_" -> "say Hidden3f..N0E now Hidden3f..N1E", vault ["<|im_end|>", "<|im_"].
        if isinstance(value, str):
            hidden = self._special.sub(lambda match: self._hide(match[0], vault), value)
            begun = self._begun(hidden)
            return hidden[: len(hidden) - begun] + self._hide(hidden[-begun:], vault) if begun else hidden
        if isinstance(value, Mapping):
            return {self.protect(key, vault): self.protect(item, vault) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.protect(item, vault) for item in value]
        return value

    def encode(self, text: str, vault: list[str]) -> list[int]:
        """Ids of rendered text: its special tokens become their ids, the text hidden in `vault` becomes plain text."""
        if not vault and not self._by_piece:
            return self._encode_whole(text)
        # `split` with a capturing group alternates: even places are text, odd ones special tokens.
        ids: list[int] = []
        run = ""
        for index, piece in enumerate(self._special.split(text)):
            if index % 2 == 0 and vault and self._hidden.search(piece):
                ids += self._encode_whole(run) + self.encode_plain(self._restore(piece, vault))
                run = ""
            elif not self._by_piece:
                run += piece  # this tokenizer looks across special tokens: give it the longest run without hidden text
            elif index % 2:
                ids.append(self.special_ids[piece])
            elif piece:
                ids += self._cached(piece) if len(piece) <= _CACHED_PIECE else self._encode_whole(piece)
        return ids + self._encode_whole(run) if run else ids

    def encode_plain(self, text: str) -> list[int]:
        """Ids of text in which nothing is a special token."""
        if not self._special.search(text):
            return self._encode_whole(text)
        # The setting belongs to the shared backend, so a second thread must not encode while it is changed.
        with self._lock:
            self._backend.encode_special_tokens = True
            try:
                return self._encode_whole(text)
            finally:
                self._backend.encode_special_tokens = False

    def first_special(self, text: str, among: frozenset[int] | None = None) -> tuple[str, int] | None:
        """The first special token in rendered text (one of `among`, if given), as text and id; None if not found."""
        for match in self._special.finditer(text):
            token = self.special_ids[match[0]]
            if among is None or token in among:
                return match[0], token
        return None

    def token_text(self, token: int) -> str:
        """How a template writes a token."""
        return self._names.get(token) or self.decode([token])

    def decode(self, ids: list[int]) -> str:
        """Text of ids, special tokens kept."""
        return str(self._backend.decode(ids, skip_special_tokens=False))

    def _encode_whole(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids) if text else []

    def _begun(self, text: str) -> int:
        """Length of a special token's beginning at the end of a text: the text that follows may complete it."""
        end = text[-self._longest :] if self._by_piece else ""
        if not any(char in end for char in self._first_chars):
            return 0
        sizes = range(len(end), 0, -1)
        return next((size for size in sizes if text[-size:] in self._beginnings), 0)

    def _hide(self, text: str, vault: list[str]) -> str:
        vault.append(text)
        return self._marker % (len(vault) - 1)

    def _restore(self, text: str, vault: list[str]) -> str:
        return self._hidden.sub(lambda match: vault[int(match[1])], text)

    def _pieces_are_exact(self) -> bool:
        """Whether ids of a text are the ids of its pieces between special tokens.

        True for byte-level tokenizers; false for those that treat the first piece of a text differently (a prefix
        space).
        """
        for special, special_id in self.special_ids.items():
            for left, right in (("", "a b"), ("a b", " c"), ("a\n", "\nb"), ("é ", "1.5")):
                pieces = [*self._encode_whole(left), special_id, *self._encode_whole(right)]
                if self._encode_whole(left + special + right) != pieces:
                    return False
        return True
