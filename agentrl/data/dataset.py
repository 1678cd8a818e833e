"""`RLHFDataset`: the rows of parquet files as checked samples, turned into Python one row at a time."""

from __future__ import annotations

import bisect
import glob
import logging
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config.data import DataConfig
from agentrl.data.row import OPTIONAL_COLUMNS, RowReader
from agentrl.data.row_pictures import PictureColumns
from agentrl.errors import DataError
from agentrl.types import Sample

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

logger = logging.getLogger(__name__)
MEDIA_COLUMNS = frozenset(
    {
        *("image", "images", "image_url", "image_urls", "video", "videos", "audio", "audios"),
        *("multi_modal_data", "multi_modal_inputs", "pixel_values"),
    }
)
"""Columns that other frameworks show to the model beside the text."""
_MOST_SHOWN = 8


class RLHFDataset:
    """Rows of one or more parquet files.

    The files stay in Arrow's columns; a row is converted to Python, and checked, on access.

    Args:
        files: a path, a glob, or a list of them.
        config: `data.*`: `prompt_key` is read here.
        max_samples: use at most the first `max_samples` rows; -1: all.
        sees_pictures: whether the model sees the pictures of rows; else rows that have some are refused.

    Raises:
        DataError: a file is missing, is not parquet, has no rows or lacks a column.
    """

    def __init__(
        self,
        files: str | Sequence[str],
        config: DataConfig,
        max_samples: int = -1,
        *,
        sees_pictures: bool = False,
    ) -> None:
        self.files = expand_files(files)
        self._prompt_key = config.prompt_key
        self._pictures = PictureColumns(config.image_key, config.video_key) if sees_pictures else None
        self._tables = [_read_table(file, config.prompt_key, self._pictures) for file in self.files]
        self._starts = [0, *accumulate(table.num_rows for table in self._tables)]
        total = self._starts[-1]
        self._rows = list(range(total if max_samples < 0 else min(max_samples, total)))
        if not self._rows:
            raise DataError(", ".join(self.files), None, None, "no rows", "at least one")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, position: int) -> Sample:
        file, number = self._locate(self._rows[position])
        row = self._tables[file].slice(number, 1).to_pylist()[0]
        return RowReader(self.files[file], self._prompt_key, self._pictures).sample(row, number, self._rows[position])

    def place(self, sample: Sample) -> str:
        """Where a sample comes from: `FILE, row N`."""
        file, number = self._locate(sample.index)
        return f"{self.files[file]}, row {number}"

    def file_positions(self) -> list[list[int]]:
        """Positions of the rows of each file, in the order of `files`."""
        groups: list[list[int]] = [[] for _ in self.files]
        for position, row in enumerate(self._rows):
            groups[self._locate(row)[0]].append(position)
        return groups

    def filter_overlong(self, count_tokens: Callable[[Sample], int], max_len: int, drop: bool) -> int:
        """Check every row, and drop (or refuse) those whose prompt is too long.

        Args:
            count_tokens: tokens of a sample's rendered prompt, tool schemas included.
            max_len: most tokens.
            drop: drop long rows; false: the first one is an error.

        Returns:
            The number of dropped rows.

        Raises:
            DataError: a row cannot be used, a row is too long and `drop` is false, or no row is left.
        """
        kept = []
        for position, row in enumerate(self._rows):
            count = count_tokens(self[position])
            if count <= max_len:
                kept.append(row)
            elif not drop:
                file, number = self._locate(row)
                wanted = f"at most {max_len} (data.max_prompt_length); or set data.filter_overlong_prompts=true"
                raise DataError(self.files[file], number, self._prompt_key, f"{count} tokens", wanted)
        left_out = len(self._rows) - len(kept)
        if not kept:
            wanted = "a larger data.max_prompt_length"
            raise DataError(", ".join(self.files), None, None, f"only prompts over {max_len} tokens", wanted)
        if left_out:
            logger.warning("dropped %d of %d rows: prompts over %d tokens", left_out, len(self._rows), max_len)
        self._rows = kept
        return left_out

    def _locate(self, row: int) -> tuple[int, int]:
        """Number of the file that holds a row, and the row's number in that file."""
        # Files of 3 and 5 rows: `_starts` is [0, 3, 8], and row 4 is row 1 of file 1.
        file = bisect.bisect_right(self._starts, row) - 1
        return file, row - self._starts[file]


def expand_files(files: str | Sequence[str]) -> list[str]:
    """Paths behind a path, a glob, or a list of them; a glob's files come in sorted order."""
    paths: list[str] = []
    for given in [files] if isinstance(files, str) else files:
        if Path(given).is_dir():
            inside = sorted(path.name for path in Path(given).glob("*.parquet"))[:_MOST_SHOWN]
            got = f"a folder with {', '.join(inside)}" if inside else "a folder without a parquet file"
            raise DataError(given, None, None, got, f"a parquet file, or a glob such as '{Path(given) / '*.parquet'}'")
        if Path(given).exists() or not glob.has_magic(given):
            paths.append(given)
            continue
        found = sorted(glob.glob(given, recursive=True))
        if not found:
            raise DataError(given, None, None, "no file that matches", "at least one parquet file")
        paths += found
    if not paths:
        raise DataError("data files", None, None, "an empty list", "at least one parquet file")
    return paths


def _read_table(file: str, prompt_key: str, pictures: PictureColumns | None) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        source = pq.ParquetFile(file, memory_map=True)
        names = source.schema_arrow.names
        for column in (prompt_key, "data_source"):
            if column not in names:
                sft = "; conversations (`messages`) are demonstrations for `agentrl sft`" if "messages" in names else ""
                raise DataError(file, None, column, f"only the columns {', '.join(names)}", f"this column{sft}")
        optional = [*OPTIONAL_COLUMNS, *([] if pictures is None else [pictures.images, pictures.videos])]
        used = [prompt_key, "data_source", *(name for name in optional if name in names)]
        unused = [name for name in names if name not in used]
        for name in unused:
            if name.lower() in MEDIA_COLUMNS:
                read_in = "the model reads text only"
                if pictures is not None:
                    read_in = f"pictures are read from the column '{pictures.images}' (data.image_key)"
                refuse_media(source, file, name, read_in)
        if unused:
            logger.warning("%s: agentrl does not read the columns %s", file, ", ".join(unused))
        return source.read(columns=used)
    except FileNotFoundError as error:
        raise DataError(file, None, None, "no such file", "a parquet file") from error
    except (pa.ArrowException, OSError) as error:
        raise DataError(file, None, None, f"a file that is not readable as parquet ({error})", "parquet") from error


def refuse_media(source: pq.ParquetFile, file: str, column: str, reason: str) -> None:
    """Refuse a column with something in it that the model would have to see; an empty one says nothing.

    Raises:
        DataError: names the first row with something in it.
    """
    number = 0
    for batch in source.iter_batches(batch_size=64, columns=[column]):
        for cell in batch.column(0):
            if holds_something(cell.as_py()):
                raise DataError(file, number, column, "content", f"nothing: {reason}")
            number += 1


def holds_something(value: Any) -> bool:
    """Whether a cell is more than null, empty text, or lists and structs of those."""
    if isinstance(value, dict):
        return any(map(holds_something, value.values()))
    return any(map(holds_something, value)) if isinstance(value, list) else value not in (None, "", b"")
