"""Ids to text: a whole answer, a growing answer, and the search for stop strings in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

CONTEXT = 4
UNFINISHED = "\ufffd"


class DecodeIds(Protocol):
    """A function from ids to text."""

    def __call__(self, ids: list[int], skip_special_tokens: bool) -> str:
        """Text of the ids."""


class Tokenizer:
    """The tokenizer of a model folder. Decoding uses the fast library; transformers is loaded only for templates."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._fast: Any = None
        self._full: Any = None
        if (self.folder / "tokenizer.json").is_file():
            from tokenizers import Tokenizer as FastTokenizer

            self._fast = FastTokenizer.from_file(str(self.folder / "tokenizer.json"))

    @property
    def available(self) -> bool:
        """Whether the folder has a tokenizer."""
        return self._fast is not None or (self.folder / "tokenizer_config.json").is_file()

    @property
    def full(self) -> Any:
        """The transformers tokenizer, with the chat template."""
        if self._full is None:
            from agentrl.chat.loading import load_tokenizer

            self._full = load_tokenizer(str(self.folder))
        return self._full

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Text of the ids; empty if the folder has no tokenizer."""
        if self._fast is not None:
            return str(self._fast.decode(ids, skip_special_tokens=skip_special_tokens))
        return str(self.full.decode(ids, skip_special_tokens=skip_special_tokens)) if self.available else ""

    def encode(self, text: str) -> list[int]:
        """Ids of a text prompt."""
        return [int(i) for i in self.full.encode(text)]


class GrowingText:
    """Text of a growing list of ids; each id is decoded only a few times, however long the list gets."""

    def __init__(self, decode: DecodeIds, skip_special_tokens: bool) -> None:
        self.text = ""
        self._decode, self._skip = decode, skip_special_tokens
        self._done = 0

    def push(self, ids: list[int]) -> str:
        """Take the list with its new ids; return all text that is final (an unfinished character is held back)."""
        # Decode the new ids together with the last 4 old ones and take what is added, because a tokenizer may decode an
        # id differently at the start of a text: "▁Paris" alone gives "Paris", after "▁in" it gives " Paris". Text that
        # ends in U+FFFD waits for the ids that finish the character: half of "é" is held back until the other half.
        start = max(0, self._done - CONTEXT)
        before = self._decode(ids[start : self._done], self._skip)
        after = self._decode(ids[start:], self._skip)
        if not after.endswith(UNFINISHED) and after.startswith(before):
            self.text += after[len(before) :]
            self._done = len(ids)
        elif not after.endswith(UNFINISHED):
            self.text = self._decode(ids, self._skip)
            self._done = len(ids)
        return self.text


class TextTail:
    """Finds the first stop string in a growing list of ids. Special tokens count as text."""

    def __init__(self, decode: DecodeIds, stops: tuple[str, ...]) -> None:
        self._growing = GrowingText(decode, skip_special_tokens=False)
        self._stops = stops
        self._reach = max(len(stop) for stop in stops)
        self._searched = 0

    def push(self, ids: list[int]) -> str | None:
        """Take the list with its new ids; return the stop string that its text now holds, if any."""
        # A stop string may begin in text that was searched already: "Obser" before, "vation:" now.
        text = self._growing.push(ids)
        start = max(0, self._searched - self._reach + 1)
        self._searched = len(text)
        found = [(place, stop) for stop in self._stops if (place := text.find(stop, start)) >= 0]
        return min(found)[1] if found else None


def trim(text: str, matched: int | str | None) -> str:
    """Cut the text before the stop string that ended it."""
    if isinstance(matched, str) and (place := text.find(matched)) >= 0:
        return text[:place]
    return text
