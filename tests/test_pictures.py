"""Pictures: from whatever a cell or a tool holds to encoded bytes, and errors that say what it was."""

from __future__ import annotations

import base64
import copy
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from agentrl.errors import PictureError
from agentrl.pictures import Picture, content_of, pictures_in, read_picture, shown_text, smaller
from agentrl.reported import json_of

NOISE = read_picture(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).data
PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def encoded(kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "value",
    [
        encoded(),
        bytearray(encoded()),
        {"bytes": encoded(), "path": None},
        {"bytes": None, "path": "a.png"},
        {"image": encoded()},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(encoded()).decode()}"}},
        "a.png",
        Image.fromarray(PIXELS),
        PIXELS,
        Picture(encoded()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_everything_that_holds_a_picture_is_read(value: Any, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded())
    picture = read_picture(value, tmp_path)
    assert picture.size == (6, 4)
    assert np.array_equal(np.asarray(picture.open()), PIXELS)


def test_bytes_are_kept_as_they_are(tmp_path: Path) -> None:
    assert read_picture(encoded("JPEG")).data == encoded("JPEG")
    assert read_picture(encoded("JPEG")).data_uri().startswith("data:image/jpeg;base64,")


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (b"no picture", "cannot read a picture from 10 bytes"),
        (NOISE[: len(NOISE) // 2], "cannot read a picture from .* bytes"),
        ("missing.png", "missing.png: No such file"),
        ("https://example.org/a.png", "pictures are not downloaded"),
        ("data:image/png;base64,!!", "a data URI that is not base64"),
        ({"bytes": None}, "got {'bytes': None}, wanted a picture"),
        (3, "got 3, wanted a picture"),
        (np.zeros((2, 2), np.float32), "wanted uint8"),
        (np.zeros((2, 2, 7), np.uint8), "is no picture"),
    ],
)
def test_anything_else_is_refused(value: Any, what: str, tmp_path: Path) -> None:
    with pytest.raises(PictureError, match=what):
        read_picture(value, tmp_path)


def test_text_from_elsewhere_names_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded())
    with pytest.raises(PictureError, match="wanted a data URI or base64"):
        read_picture(str(tmp_path / "a.png"))


def test_a_picture_is_equal_by_its_bytes_and_survives_copies() -> None:
    picture = Picture(encoded())
    assert copy.deepcopy(picture) is picture
    assert pickle.loads(pickle.dumps(picture)) == picture
    assert picture != Picture(encoded("JPEG"))
    assert json_of({"image": picture})["image"].startswith("<image of ")


def test_smaller_keeps_the_aspect() -> None:
    large = read_picture(Image.new("RGB", (400, 300)))
    assert smaller(large, None) is large
    assert smaller(large, 120_000) is large
    assert smaller(large, 10_000).size == (115, 86)
    assert smaller(read_picture(Image.new("RGB", (900, 1))), 10).size == (94, 1)


def test_messages_show_pictures_in_their_order() -> None:
    first, second = Picture(b"1"), Picture(b"2")
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [*content_of("a", [first]), *content_of("b", [second])]},
    ]
    assert pictures_in(messages) == [first, second]
    assert shown_text(messages[1]["content"]) == "<image>a<image>b"
    assert content_of("a", []) == "a"
