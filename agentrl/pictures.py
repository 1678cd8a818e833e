"""Pictures in conversations: an encoded file (PNG, JPEG, WebP, ...) that messages, engines and trainers pass on unread.

A message that shows pictures has a list of parts as its content, in the order in which the model sees them::

    {"role": "user", "content": [{"type": "image", "image": Picture(b"...")}, {"type": "text", "text": "And this?"}]}
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import PictureError, repr_of
from agentrl.types import JsonDict, Message

if TYPE_CHECKING:
    from PIL.Image import Image

WANTED = "a picture: bytes, {bytes}, {path}, the path of a file, a data URI, an array, or a PIL image"
_NESTED = ("bytes", "image", "image_url", "url", "path")
"""Keys under which a mapping may hold the picture, the first one that is set counts."""
_MOST_DECODED = 1 << 16
_DECODED: set[str] = set()
"""Digests of pictures that were decoded without a fault: a dataset's row is read again in every epoch."""
_MIME = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif", "BMP": "image/bmp"}


class Picture:
    """One encoded picture. Immutable, so that trajectories, copies and caches share it.

    Args:
        data: the file's bytes.
    """

    __slots__ = ("_digest", "_header", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._digest = ""
        self._header: tuple[str, tuple[int, int]] | None = None

    @property
    def digest(self) -> str:
        """Equal for equal bytes."""
        if not self._digest:
            self._digest = blake2b(self.data, digest_size=16).hexdigest()
        return self._digest

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels.

        Raises:
            PictureError: the bytes are no picture.
        """
        return self._read_header()[1]

    def open(self) -> Image:
        """Decode it, in RGB.

        Raises:
            PictureError: the bytes are no picture, or end too early.
        """
        pillow = _pillow()
        try:
            with pillow.open(io.BytesIO(self.data)) as image:
                return image.convert("RGB")  # type: ignore[no-any-return]
        except _faults(pillow) as error:
            raise _unreadable(self.data, error) from error

    def data_uri(self) -> str:
        """`data:image/png;base64,...`, as engines take it."""
        return f"data:{_MIME.get(self._read_header()[0], 'image')};base64,{base64.b64encode(self.data).decode('ascii')}"

    def _read_header(self) -> tuple[str, tuple[int, int]]:
        """Format and size, without decoding."""
        if self._header is None:
            pillow = _pillow()
            try:
                with pillow.open(io.BytesIO(self.data)) as image:
                    self._header = str(image.format), image.size
            except _faults(pillow) as error:
                raise _unreadable(self.data, error) from error
        return self._header

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Picture) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<image of {len(self.data):,} bytes, {self.digest[:8]}>"

    def __copy__(self) -> Picture:
        return self

    def __deepcopy__(self, memo: Any) -> Picture:
        return self

    def __reduce__(self) -> tuple[type[Picture], tuple[bytes]]:
        return Picture, (self.data,)


def read_picture(value: Any, folder: Path | None = None) -> Picture:
    """The picture that a dataset cell, a tool or a request holds.

    Args:
        value: see `WANTED`.
        folder: of relative paths; None: files are not read, because the value comes from elsewhere.

    Raises:
        PictureError: it is something else, or cannot be read.
    """
    if isinstance(value, Picture):
        return value
    if isinstance(value, Mapping):
        held = next((value[name] for name in _NESTED if value.get(name) is not None), None)
        return read_picture(held, folder) if held is not None else _refuse(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _checked(bytes(value))
    if isinstance(value, str):
        return _checked(_bytes_of_text(value, folder))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _of_array(value)
    if hasattr(value, "save") and hasattr(value, "mode"):
        return _of_image(value)
    return _refuse(value)


def pictures_in(messages: Sequence[Message]) -> list[Picture]:
    """The pictures of messages, in the order in which a template shows them."""
    return [part["image"] for part in _parts(messages) if part.get("type") == "image"]


def shown_text(content: Any) -> str:
    """The text of a message's content, with `<image>` where it shows a picture."""
    if not isinstance(content, list):
        return str(content or "")
    return "".join("<image>" if part.get("type") == "image" else str(part.get("text", "")) for part in content)


def content_of(text: str, pictures: Sequence[Picture]) -> str | list[JsonDict]:
    """The content of a message that shows pictures before its text; the text alone where there are none."""
    if not pictures:
        return text
    parts: list[JsonDict] = [{"type": "image", "image": picture} for picture in pictures]
    return [*parts, {"type": "text", "text": text}] if text else parts


def smaller(picture: Picture, max_pixels: int | None) -> Picture:
    """The picture with at most `max_pixels` pixels and the same aspect; None: as it is."""
    width, height = picture.size
    if max_pixels is None or width * height <= max_pixels:
        return picture
    # 4000 x 3000 with at most 1,000,000: a factor of sqrt(1 / 12) = 0.2887 gives 1154 x 866, which is 999,364.
    factor = (max_pixels / (width * height)) ** 0.5
    size = (max(int(width * factor), 1), max(int(height * factor), 1))
    return _of_image(picture.open().resize(size))


def _parts(messages: Sequence[Message]) -> Iterator[JsonDict]:
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            yield from (part for part in content if isinstance(part, dict))


def _bytes_of_text(text: str, folder: Path | None) -> bytes:
    scheme, found, rest = text.partition(":")
    if found and scheme == "data":
        try:
            return base64.b64decode(rest.partition(",")[2], validate=True)
        except (binascii.Error, ValueError) as error:
            raise PictureError(f"a data URI that is not base64: {error}") from error
    if text.startswith(("http://", "https://")):
        raise PictureError(f"pictures are not downloaded: got {text[:80]!r}, wanted its bytes or a file")
    if folder is None:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise PictureError(f"got text, wanted a data URI or base64: {error}") from error
    path = folder / text.removeprefix("file://")
    try:
        path = folder / Path(text.removeprefix("file://")).expanduser()
        return path.read_bytes()
    except (OSError, ValueError, RuntimeError) as error:  # the last one: `~name` of no user here
        raise PictureError(f"cannot read the picture file {path}: {getattr(error, 'strerror', error)}") from error


def _checked(data: bytes) -> Picture:
    """Decode a picture once: a file that ends too early is found now, not in the middle of a run."""
    picture = Picture(data)
    if picture.digest not in _DECODED:
        picture.open()
        if len(_DECODED) >= _MOST_DECODED:
            _DECODED.clear()
        _DECODED.add(picture.digest)
    return picture


def _of_array(value: Any) -> Picture:
    import numpy as np

    array = np.asarray(value)
    if array.dtype != np.uint8 or array.ndim not in (2, 3):
        raise PictureError(f"got an array of {array.dtype} and shape {array.shape}, wanted uint8 (height, width, 3)")
    try:
        return _of_image(_pillow().fromarray(array))
    except (TypeError, ValueError) as error:
        raise PictureError(f"an array of shape {array.shape} is no picture: {error}") from error


def _of_image(image: Any) -> Picture:
    """A PIL image as PNG, which loses nothing."""
    buffer = io.BytesIO()
    try:
        (image if image.mode in ("RGB", "L") else image.convert("RGB")).save(buffer, "PNG")
    except (OSError, ValueError) as error:
        raise PictureError(f"a PIL image that cannot be read: {error}") from error
    return Picture(buffer.getvalue())


def _pillow() -> Any:
    """Pillow's `Image` module.

    Raises:
        PictureError: it is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise PictureError("pictures need Pillow, which is not installed: pip install 'agentrl[vision]'") from error
    return Image


def _faults(pillow: Any) -> tuple[type[Exception], ...]:
    """What Pillow raises for a file that is no picture, is damaged, or would fill the memory."""
    bombs = pillow.DecompressionBombError, pillow.DecompressionBombWarning
    return (OSError, ValueError, SyntaxError, TypeError, *bombs)


def _unreadable(data: bytes, error: Exception) -> PictureError:
    unknown = type(error).__name__ == "UnidentifiedImageError"  # whose text names an object at an address
    why = "no format that Pillow knows" if unknown else str(error)
    return PictureError(f"cannot read a picture from {len(data):,} bytes: {why}")


def _refuse(value: Any) -> Picture:
    raise PictureError(f"got {repr_of(value)}, wanted {WANTED}")
