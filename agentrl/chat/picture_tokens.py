"""Where pictures lie among token ids, and which positions their tokens have: pure functions of ids and sizes.

A template writes one placeholder for a picture; the model reads as many as the picture has patches. With `merge` 2, a
picture of 4 x 6 patches (a grid of 1, 4, 6) takes 6 tokens::

    template    a <start> P <end> b                  one placeholder (`collapse`)
    model       a <start> P P P P P P <end> b        `expand`
    time        0    1    2 2 2 2 2 2   5   6        `positions`: a picture's tokens share a time and have a row and a
    row         0    1    2 2 2 3 3 3   5   6        column; text goes on after the longer side of the picture, here
    column      0    1    2 3 4 2 3 4   5   6        2 + max(2, 3) = 5
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from agentrl.errors import PictureError

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PictureTokens:
    """The placeholder of a model's pictures.

    Attributes:
        image: id of a picture's placeholder.
        others: ids of placeholders of other media, which nothing here can show.
        merge: patches of a row, and of a column, that make one token.
    """

    image: int
    others: tuple[int, ...]
    merge: int

    @property
    def placeholders(self) -> frozenset[int]:
        """Ids that stand for something beside the text: a model that samples one has written nothing."""
        return frozenset([self.image, *self.others])

    def count(self, grid: Sequence[int]) -> int:
        """The tokens of a picture, given its times, rows and columns of patches."""
        times, rows, columns = grid
        return times * rows * columns // self.merge**2

    def runs(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """First place and length of each picture's placeholders; two pictures are never adjacent."""
        found, place = [], 0
        for is_picture, run in groupby(ids, self.image.__eq__):
            length = sum(1 for _ in run)
            if is_picture:
                found.append((place, length))
            place += length
        return found

    def expand(self, ids: Sequence[int], counts: Sequence[int]) -> list[int]:
        """Give each picture its number of placeholders; one that has them already keeps them.

        Args:
            ids: with one placeholder, or as many as it has tokens, for each picture.
            counts: tokens of each picture.

        Raises:
            PictureError: the ids show more or fewer pictures, or a run has another length.
        """
        runs = self.runs(ids)
        if len(runs) != len(counts):
            raise PictureError(f"the tokens show {len(runs)} pictures, but there are {len(counts)}")
        whole: list[int] = []
        done = 0
        for number, ((place, length), count) in enumerate(zip(runs, counts, strict=True)):
            if length not in (1, count):
                raise PictureError(f"picture {number} has {length} placeholder tokens, wanted 1 or its {count}")
            whole += ids[done:place]
            whole += [self.image] * count
            done = place + length
        return [*whole, *ids[done:]]

    def collapse(self, ids: Sequence[int]) -> list[int]:
        """One placeholder for each picture, as a template writes it."""
        return [token for place, token in enumerate(ids) if token != self.image or ids[place - 1] != token or not place]

    def positions(self, ids: Sequence[int], grids: Sequence[Sequence[int]]) -> Ints:
        """Positions `(3, L)` in time, row and column, as Qwen2-VL, Qwen2.5-VL and Qwen3-VL count them.

        The token after the last one has the position `positions.max() + 1` in all three.

        Args:
            ids: expanded.
            grids: of each picture.

        Raises:
            PictureError: ids and grids do not belong together.
        """
        runs = self.runs(ids)
        counts = [self.count(grid) for grid in grids]
        if [length for _, length in runs] != counts:
            lengths = [length for _, length in runs]
            raise PictureError(f"the tokens show pictures of {lengths} tokens, but they have {counts}")
        parts: list[Ints] = []
        done = start = 0
        for (place, length), (times, rows, columns) in zip(runs, grids, strict=True):
            text = np.arange(place - done, dtype=np.int64) + start
            start += place - done
            height, width = rows // self.merge, columns // self.merge
            parts += [np.stack([text] * 3), np.indices((times, height, width)).reshape(3, -1) + start]
            start, done = start + max(height, width), place + length
        text = np.arange(len(ids) - done, dtype=np.int64) + start
        return np.concatenate([*parts, np.stack([text] * 3)], axis=1)
