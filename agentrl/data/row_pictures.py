"""Pictures of a row: a column of pictures and `<image>` in its messages become messages with parts.

::

    prompt  [{"role": "user", "content": "<image>Which?"}]       images  [{"bytes": b"...", "path": None}]
    ->      [{"role": "user", "content": [{"type": "image", "image": PICTURE}, {"type": "text", "text": "Which?"}]}]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import DataError, PictureError
from agentrl.pictures import Picture, read_picture
from agentrl.types import JsonDict, Message

MARKER = "<image>"
_MARKERS = re.compile(f"({MARKER})")
_PICTURE_PARTS = ("image", "image_url", "input_image")


@dataclass(frozen=True, slots=True)
class PictureColumns:
    """Where the rows of a model that sees pictures have them.

    Attributes:
        images: column of a row's pictures: a list of them, or one.
        videos: column of its videos, which must be empty.
    """

    images: str = "images"
    videos: str = "videos"


@dataclass(frozen=True, slots=True)
class RowPictures:
    """Puts the pictures of one row into its messages.

    Attributes:
        columns: names of the columns.
        row: the row's cells.
        file: of the row; relative paths of pictures begin in its folder.
        number: of the row in its file.
    """

    columns: PictureColumns
    row: JsonDict
    file: str
    number: int

    def shown(self, prompt_key: str, messages: Sequence[Message]) -> list[Message]:
        """The messages with their pictures as parts; text messages of a row without pictures stay as they are.

        Raises:
            DataError: a picture cannot be read, or messages and column show different numbers of them.
        """
        self._refuse_videos(messages, prompt_key)
        given = self._column()
        wanted = sum(self._places(message, marked=bool(given)) for message in messages)
        if wanted != len(given):
            need = f"as many as the prompt shows ({MARKER} in a text, or a part without its own picture): {wanted}"
            raise self._error(self.columns.images, f"{len(given)} pictures", need)
        left = iter(given)
        return [
            self._message(f"{prompt_key}[{number}]", message, left, marked=bool(given))
            for number, message in enumerate(messages)
        ]

    def _column(self) -> list[Picture]:
        cell = self.row.get(self.columns.images)
        if cell is None or cell == "":
            return []
        values = cell if isinstance(cell, list) else [cell]
        return [self._read(f"{self.columns.images}[{number}]", value) for number, value in enumerate(values)]

    def _read(self, column: str, value: Any) -> Picture:
        try:
            return read_picture(value, Path(self.file).parent)
        except PictureError as error:
            raise self._error(column, _kind_of(value), f"a picture: {error}") from error

    def _places(self, message: Message, *, marked: bool) -> int:
        """How many pictures of the column a message shows."""
        content = message["content"]
        if isinstance(content, str):
            return content.count(MARKER) if marked else 0
        own = sum(part["type"] in _PICTURE_PARTS and _held(part) is None for part in content)
        return own + (sum(part.get("text", "").count(MARKER) for part in content) if marked else 0)

    def _message(self, column: str, message: Message, left: Iterator[Picture], *, marked: bool) -> Message:
        content = message["content"]
        if isinstance(content, str):
            return {**message, "content": [*_split(content, left)]} if marked and MARKER in content else message
        parts: list[JsonDict] = []
        for number, part in enumerate(content):
            if part["type"] not in _PICTURE_PARTS:
                parts += _split(part.get("text", ""), left) if marked else [part]
                continue
            held = _held(part)
            picture = next(left) if held is None else self._read(f"{column}.content[{number}]", held)
            parts.append({"type": "image", "image": picture})
        return {**message, "content": parts}

    def _error(self, column: str, got: str, wanted: str) -> DataError:
        return DataError(self.file, self.number, column, got, wanted)

    def _refuse_videos(self, messages: Sequence[Message], prompt_key: str) -> None:
        if self.row.get(self.columns.videos):
            raise self._error(self.columns.videos, "content", "nothing: videos are not supported, pictures are")
        for number, message in enumerate(messages):
            parts = message["content"] if isinstance(message["content"], list) else []
            for part in parts:
                if part["type"] not in ("text", *_PICTURE_PARTS):
                    column = f"{prompt_key}[{number}].content"
                    raise self._error(column, f"a part of type '{part['type']}'", "text or image parts")


def _held(part: JsonDict) -> Any:
    """The picture that a part holds itself."""
    return next((part[name] for name in ("image", "image_url", "url", "path", "bytes") if part.get(name)), None)


def _split(text: str, left: Iterator[Picture]) -> Iterator[JsonDict]:
    for piece in _MARKERS.split(text):
        if piece == MARKER:
            yield {"type": "image", "image": next(left)}
        elif piece:
            yield {"type": "text", "text": piece}


def _kind_of(value: Any) -> str:
    """A cell that is no picture, without its bytes."""
    if isinstance(value, dict):
        return f"a struct of {', '.join(value)}"
    return f"{len(value):,} bytes" if isinstance(value, bytes) else repr(value)[:80]
