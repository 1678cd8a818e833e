"""`agentrl data pictures`: made-up pictures with a question each: the colour of a square, or the number of dots.

Everything is seeded: the same arguments give the same rows on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from agentrl.data.preprocess.writing import keep_existing, write_parquets
from agentrl.errors import PictureError
from agentrl.pictures import read_picture
from agentrl.types import JsonDict

DATA_SOURCE = "agentrl/pictures"
PAINTS = {
    "red": (220, 30, 30),
    "green": (30, 160, 60),
    "blue": (40, 70, 220),
    "yellow": (240, 220, 40),
    "purple": (140, 40, 180),
    "orange": (245, 140, 20),
}
_GROUND = (235, 235, 235)
_MOST_DOTS = 5


def write_pictures(
    out: Path, train: int, test: int, seed: int, size: int = 56, overwrite: bool = True
) -> dict[str, Path]:
    """Write `train.parquet` and `test.parquet` to `out`, half of the rows about squares and half about dots.

    Args:
        out: folder; created if missing.
        train: training rows.
        test: test rows.
        seed: seed of the generator.
        size: width and height of a picture in pixels.
        overwrite: replace files that exist.

    Returns:
        The written file of each split.
    """
    files = {split: out / f"{split}.parquet" for split in ("train", "test")}
    keep_existing(list(files.values()), overwrite)
    rng = random.Random(seed)
    rows = {
        split: [picture_row(rng, split, index, size) for index in range(count)]
        for split, count in (("train", train), ("test", test))
    }
    write_parquets({files[split]: part for split, part in rows.items()})
    return files


def picture_row(rng: random.Random, split: str, index: int, size: int) -> JsonDict:
    """One row: `<image>` and a question."""
    draw, question = (_square, "Which colour is the square?") if index % 2 == 0 else (_dots, "How many dots are there?")
    image, answer = draw(rng, size)
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": f"<image>{question}"}],
        "images": [{"bytes": image, "path": None}],
        "ability": "pictures",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "agent_name": "single_turn_agent",
        "extra_info": {"split": split, "index": index, "question": question, "answer": answer},
    }


def _square(rng: random.Random, size: int) -> tuple[bytes, str]:
    """A square of one colour, somewhere."""
    colour = rng.choice(list(PAINTS))
    side = rng.randint(size // 3, size // 2)
    left, top = rng.randint(0, size - side), rng.randint(0, size - side)
    return _drawn(size, "rectangle", [((left, top, left + side, top + side), PAINTS[colour])]), colour


def _dots(rng: random.Random, size: int) -> tuple[bytes, str]:
    """One to five black dots, each in a field of its own of a grid of 3 x 3."""
    fields = rng.sample(range(9), rng.randint(1, _MOST_DOTS))
    cell = size // 3
    radius = max(cell // 3, 1)
    shapes = []
    for field in fields:
        x, y = (field % 3) * cell + cell // 2, (field // 3) * cell + cell // 2
        shapes.append(((x - radius, y - radius, x + radius, y + radius), (0, 0, 0)))
    return _drawn(size, "ellipse", shapes), str(len(fields))


def _drawn(size: int, shape: str, shapes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> bytes:
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise PictureError("pictures need Pillow, which is not installed: pip install 'agentrl[vision]'") from error
    image = Image.new("RGB", (size, size), _GROUND)
    pen = ImageDraw.Draw(image)
    for box, colour in shapes:
        getattr(pen, shape)(box, fill=colour)
    return read_picture(image).data
