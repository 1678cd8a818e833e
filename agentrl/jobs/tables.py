"""The parquet files of jobs: whole tables whose columns are checked by name, and their rows as samples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentrl.data.dataset import MEDIA_COLUMNS, expand_files, holds_something
from agentrl.data.row import OPTIONAL_COLUMNS, RowReader, messages_in, without_nones
from agentrl.data.row_pictures import PictureColumns
from agentrl.errors import DataError, suggest
from agentrl.types import Sample

if TYPE_CHECKING:
    import pyarrow as pa

NO_SOURCE = "generation"
"""`data_source` of rows that have none, where nothing is scored."""
_ROUTES = ("agent_name", "tools_kwargs", "interaction_kwargs", "tool_config")


class JobTable:
    """The rows of one or more parquet files, with all their columns.

    Args:
        files: a path, a glob, or a list of them.
        max_rows: use at most the first rows; -1: all.

    Raises:
        DataError: a file is missing, is not parquet, has no rows, or has other columns than the first.
    """

    def __init__(self, files: str | Sequence[str], max_rows: int = -1) -> None:
        import pyarrow as pa

        self.files = expand_files(files)
        tables = [_read(file) for file in self.files]
        self._starts = [0]
        for table in tables:
            self._starts.append(self._starts[-1] + table.num_rows)
        try:
            whole = pa.concat_tables(tables, promote_options="default")
        except pa.ArrowException as error:
            raise DataError(
                ", ".join(self.files), None, None, f"columns that do not fit together ({error})", "equal columns"
            ) from error
        self.table: pa.Table = whole if max_rows < 0 else whole.slice(0, max_rows)
        if not len(self):
            raise DataError(", ".join(self.files), None, None, "no rows", "at least one")

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def names(self) -> list[str]:
        """Its columns."""
        return list(self.table.column_names)

    def need(self, columns: dict[str, str]) -> None:
        """Refuse a table without these columns.

        Args:
            columns: each column, by the key that names it.

        Raises:
            DataError: one is missing; names the nearest.
        """
        for key, column in columns.items():
            if column not in self.names:
                had = f"only the columns {', '.join(self.names)}"
                hint = suggest(column, self.names)
                near = hint if "Did you mean" in hint else ""
                raise DataError(self.files[0], None, column, had, f"this column ({key}).{near}")

    def row(self, number: int) -> dict[str, Any]:
        """A row as plain Python values."""
        row: dict[str, Any] = self.table.slice(number, 1).to_pylist()[0]
        return row

    def place(self, number: int) -> tuple[str, int]:
        """The file of a row, and its number there."""
        file = max(index for index, start in enumerate(self._starts[:-1]) if start <= number)
        return self.files[file], number - self._starts[file]

    def sample(
        self,
        number: int,
        columns: dict[str, str],
        *,
        source: str | None = None,
        prompt: str | None = None,
        pictures: PictureColumns | None = None,
    ) -> Sample:
        """A row as a sample, checked as the rows of a training are.

        Args:
            number: of the row.
            columns: the table's columns by the name that they have in a training's rows; others are not read.
            source: `data_source` of rows without one; None: it is needed.
            prompt: that of rows without one; None: it is needed.
            pictures: columns of pictures; None: they are not read.

        Raises:
            DataError: a cell cannot be used.
        """
        cells = self.row(number)
        row = {own: cells[column] for own, column in columns.items() if column in cells}
        if source is not None and not row.get("data_source"):
            row["data_source"] = source
        if prompt is not None:
            row["prompt"] = prompt
        if pictures is not None:
            row |= {name: cells.get(name) for name in (pictures.images, pictures.videos)}
        file, place = self.place(number)
        return RowReader(file, "prompt", pictures).sample(row, place, number)

    def refuse_media(self, number: int) -> None:
        """Refuse a row with something in it that a model that reads text only would have to see.

        Raises:
            DataError: names its column.
        """
        for column, cell in self.row(number).items():
            if column.lower() in MEDIA_COLUMNS and holds_something(cell):
                file, place = self.place(number)
                raise DataError(file, place, column, "content", "nothing: the model reads text only")

    def routes(self) -> list[str]:
        """What the first row says about its agent loop, tools and interaction, by column."""
        row = without_nones(self.row(0))
        inside = row.get("extra_info")
        here = [name for name in _ROUTES if row.get(name)]
        return here + [f"extra_info.{name}" for name in _ROUTES if isinstance(inside, dict) and inside.get(name)]

    def has_texts(self, column: str) -> bool:
        """Whether a column holds texts rather than messages, or messages as JSON text."""
        first = next((cell.as_py() for cell in self.table.column(column) if cell.is_valid), None)
        return isinstance(first, str) and messages_in(first) is None


def prompt_columns(prompt_key: str, *, routed: bool) -> dict[str, str]:
    """The columns that a prompt is read from; `routed`: with its agent loop, tools and interaction."""
    others = OPTIONAL_COLUMNS if routed else ()
    return {"prompt": prompt_key, "data_source": "data_source", **{name: name for name in others}}


def responses_in(table: JobTable, column: str, number: int) -> list[str | None]:
    """The responses of a row; None: one that is missing because something around the model failed.

    Raises:
        DataError: the cell holds no texts.
    """
    file, place = table.place(number)
    cell = table.table.column(column)[number].as_py()
    given = [cell] if isinstance(cell, str) else cell
    if not isinstance(given, list) or not given or not all(text is None or isinstance(text, str) for text in given):
        raise DataError(file, place, column, f"{cell!r:.80}", "a text, or a list of texts that is not empty")
    return given


def facts_in(table: JobTable, column: str, number: int, count: int) -> list[dict[str, Any]]:
    """What a row's trajectories reported besides their text; empty mappings where nothing is written.

    Raises:
        DataError: the cell is no list of JSON texts, one per response.
    """
    if column not in table.names:
        return [{} for _ in range(count)]
    cell = table.table.column(column)[number].as_py() or [None] * count
    file, place = table.place(number)
    try:
        read = [json.loads(text) if text else {} for text in cell]
    except (TypeError, ValueError):
        read = []
    if len(read) != count or not all(isinstance(facts, dict) for facts in read):
        raise DataError(file, place, column, f"{cell!r:.80}", f"{count} JSON texts, one per response (data.facts_key)")
    return read


def _read(file: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file, memory_map=True).read()
    except FileNotFoundError as error:
        raise DataError(file, None, None, "no such file", "a parquet file") from error
    except (pa.ArrowException, OSError) as error:
        raise DataError(file, None, None, f"a file that is not readable as parquet ({error})", "parquet") from error
