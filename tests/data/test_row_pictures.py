"""The pictures of a row: every shape that other trainers write, and errors that name row and column."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dataset_rows import row
from PIL import Image

from agentrl.config.data import DataConfig
from agentrl.data.dataset import RLHFDataset
from agentrl.errors import DataError
from agentrl.pictures import Picture, pictures_in, shown_text
from agentrl.types import Sample

Parquet = Callable[..., str]


def png(shade: int = 0) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def read(path: str, **config: Any) -> Sample:
    return RLHFDataset(path, DataConfig(**config), sees_pictures=True)[0]


def asked(*contents: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content} for content in contents]


def test_markers_become_parts_in_their_order(parquet: Parquet) -> None:
    images = [{"bytes": png(1), "path": None}, {"bytes": png(2), "path": None}, {"bytes": png(3), "path": None}]
    sample = read(parquet(row(prompt=asked("a<image>b<image>", "<image>c"), images=images)))
    assert pictures_in(sample.prompt) == [Picture(png(1)), Picture(png(2)), Picture(png(3))]
    assert [shown_text(message["content"]) for message in sample.prompt] == ["a<image>b<image>", "<image>c"]
    assert sample.prompt[0]["content"][0] == {"type": "text", "text": "a"}


@pytest.mark.parametrize(
    "images",
    [
        [png(1)],
        png(1),
        [{"bytes": png(1), "path": "a.png"}],
        {"bytes": png(1), "path": None},
        [{"bytes": None, "path": "one.png"}],
        ["one.png"],
        [{"image": "one.png"}],
    ],
)
def test_every_shape_of_a_column(parquet: Parquet, images: Any) -> None:
    path = parquet(row(prompt=asked("<image>?"), images=images))
    (Path(path).parent / "one.png").write_bytes(png(1))
    assert pictures_in(read(path).prompt) == [Picture(png(1))]


def test_parts_with_pictures_of_their_own(parquet: Parquet) -> None:
    parts = [{"type": "image", "image": png(1), "text": None}, {"type": "text", "text": "?", "image": None}]
    sample = read(parquet(row(prompt=asked(parts))))
    assert pictures_in(sample.prompt) == [Picture(png(1))]
    assert shown_text(sample.prompt[0]["content"]) == "<image>?"


def test_parts_without_a_picture_take_it_from_the_column(parquet: Parquet) -> None:
    parts = [{"type": "text", "text": "<image> or "}, {"type": "image", "text": None}]
    sample = read(parquet(row(prompt=asked(parts), images=[png(1), png(2)])))
    assert pictures_in(sample.prompt) == [Picture(png(1)), Picture(png(2))]


def test_another_column(parquet: Parquet) -> None:
    sample = read(parquet(row(prompt=asked("<image>"), shots=[png(1)])), image_key="shots")
    assert len(pictures_in(sample.prompt)) == 1


def test_another_column_of_videos(parquet: Parquet) -> None:
    with pytest.raises(DataError, match="column 'clips': got content, wanted nothing: videos are not supported"):
        read(parquet(row(clips=["a.mp4"])), video_key="clips")


@pytest.mark.parametrize("images", [None, []])
def test_a_row_without_pictures_stays_text(parquet: Parquet, images: Any) -> None:
    path = parquet(row(prompt=asked("write <image>"), images=images), row(prompt=asked("<image>"), images=[png(1)]))
    assert read(path).prompt == asked("write <image>")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"images": [png()]}, r"column 'images': got 1 pictures, wanted as many as the prompt shows .*: 0"),
        ({"prompt": asked("<image><image>"), "images": [png()]}, r"got 1 pictures, .*: 2"),
        ({"prompt": asked("<image>"), "images": [b"text"]}, r"column 'images\[0\]': got 4 bytes, wanted a picture"),
        ({"prompt": asked("<image>"), "images": ["no.png"]}, r"images\[0\]'.*no.png: No such file"),
        ({"prompt": asked("<image>"), "images": ["~no.such.user/a.png"]}, r"images\[0\]'.*~no.such.user/a.png: "),
        ({"prompt": asked("<image>"), "images": ["https://a/b.png"]}, "pictures are not downloaded"),
        ({"prompt": asked("<video>"), "videos": ["a.mp4"]}, "column 'videos': got content, wanted nothing: videos"),
        ({"prompt": asked([{"type": "video", "text": "a"}])}, "a part of type 'video', wanted text or image parts"),
        ({"prompt": asked([{"type": "image"}])}, r"got 0 pictures, wanted .*: 1"),
        ({"prompt": asked([{"type": "image", "image": b"text"}])}, r"prompt\[0\].content\[0\]': got 4 bytes"),
        ({"image": [png()]}, r"pictures are read from the column 'images' \(data.image_key\)"),
    ],
)
def test_what_cannot_be_shown_is_refused(parquet: Parquet, changes: dict[str, Any], what: str) -> None:
    with pytest.raises(DataError, match=r"row 0.*" + what):
        read(parquet(row(**changes)))
