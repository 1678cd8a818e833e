"""The documents of an index: one file of JSON lines, memory-mapped, and where each line ends."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

DOCUMENTS = "documents.jsonl"
ENDS = "documents.ends.npy"


class DocumentStore:
    """Random access to documents as the JSON bytes that clients get."""

    def __init__(self, folder: Path) -> None:
        self._ends: npt.NDArray[np.int64] = np.load(folder / ENDS, mmap_mode="r")
        with (folder / DOCUMENTS).open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> bytes:
        """The JSON of a document.

        Raises:
            IndexError: no such document; negative numbers do not count from the end.
        """
        if not 0 <= number < len(self._ends):
            raise IndexError(f"document {number} of {len(self._ends)}")
        start = int(self._ends[number - 1]) if number else 0
        return self._bytes[start : int(self._ends[number]) - 1]
