"""Read a corpus: JSONL, gzipped JSONL or parquet with `id, contents` or `id, title, text`."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import zlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import orjson

from agentrl.errors import DataError, UserInputError

BLOCK_ROWS = 20_000
SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
_WANTED = "`id, contents` or `id, title, text`"

Row = bytes | dict[str, Any]


@dataclass(frozen=True)
class CorpusBlock:
    """Some rows of one file, in order."""

    number: int
    """Place of the block in the whole corpus."""
    file: str
    first_row: int
    """Number of the first row in its file, from 1."""
    rows: list[Row]
    bytes_read: int
    """Bytes of all files read so far, this block included."""


class CorpusDocument(NamedTuple):
    """One row of the corpus."""

    id: str
    json: bytes
    """What a client gets, as JSON: `id`, `contents` and the row's other fields."""
    contents: str


class Corpus:
    """Files that are read one after the other.

    Args:
        files: paths.
        block_rows: rows of a block.

    Raises:
        UserInputError: a file is missing or of another format.
    """

    def __init__(self, files: list[Path], block_rows: int = BLOCK_ROWS) -> None:
        for file in files:
            if not file.is_file():
                raise UserInputError(f"{file}: no such file")
            if not file.name.endswith(SUFFIXES):
                raise UserInputError(f"{file}: got a file of unknown format, wanted one of {', '.join(SUFFIXES)}")
        self.files, self._block_rows = files, block_rows
        self.total_bytes = sum(file.stat().st_size for file in files)
        self._digest = hashlib.sha256()

    def fingerprint(self) -> list[dict[str, Any]]:
        """What tells, without reading them, whether the files are those of an earlier build."""
        stats = [(file, file.stat()) for file in self.files]
        return [{"file": str(f.resolve()), "bytes": s.st_size, "modified_ns": s.st_mtime_ns} for f, s in stats]

    def sha256(self) -> str:
        """The digest of everything that `blocks` has given."""
        return self._digest.hexdigest()

    def blocks(self) -> Iterator[CorpusBlock]:
        """All rows.

        Raises:
            DataError: a file cannot be read.
        """
        done, number = 0, itertools.count()
        for file in self.files:
            read = self._parquet if file.name.endswith(".parquet") else self._lines
            try:
                for first_row, rows, position in read(file):
                    yield CorpusBlock(next(number), str(file), first_row, rows, done + position)
            except (OSError, EOFError, ValueError, zlib.error) as error:
                raise DataError(str(file), None, None, f"{type(error).__name__}: {error}", "a readable file") from error
            done += file.stat().st_size

    def _lines(self, file: Path) -> Iterator[tuple[int, list[Row], int]]:
        with file.open("rb") as raw, gzip.open(raw) if file.suffix == ".gz" else nullcontext(raw) as stream:
            for first_row in itertools.count(1, self._block_rows):
                lines = list(itertools.islice(cast(Iterable[bytes], stream), self._block_rows))
                if not lines:
                    return
                self._digest.update(b"".join(lines))
                yield first_row, list(lines), raw.tell()

    def _parquet(self, file: Path) -> Iterator[tuple[int, list[Row], int]]:
        import pyarrow.parquet as pq

        with file.open("rb") as raw:
            while chunk := raw.read(1 << 22):
                self._digest.update(chunk)
        with pq.ParquetFile(file) as table:
            columns = set(table.schema_arrow.names)
            if "id" not in columns or not ("contents" in columns or {"title", "text"} <= columns):
                got = ", ".join(table.schema_arrow.names)
                raise DataError(str(file), None, None, f"the columns {got}", _WANTED)
            size, total, first_row = file.stat().st_size, max(table.metadata.num_rows, 1), 1
            for batch in table.iter_batches(self._block_rows):
                rows: list[Row] = batch.to_pylist()
                yield first_row, rows, size * (first_row - 1 + len(rows)) // total
                first_row += len(rows)


def parse_row(row: Row, file: str, number: int) -> CorpusDocument | None:
    """Make a document of a row; None for a blank line.

    Args:
        row: a JSON line, or a row of parquet.
        file: for errors.
        number: row number from 1, for errors.

    Raises:
        DataError: it is not JSON, or lacks a field.
    """
    if isinstance(row, bytes):
        if not row.strip():
            return None
        try:
            row = orjson.loads(row)
        except orjson.JSONDecodeError as error:
            raise DataError(file, number, None, f"a line that is not JSON ({error})", "a JSON object") from None
    if not isinstance(row, dict):
        raise DataError(file, number, None, type(row).__name__, f"an object with {_WANTED}")
    fields = {name: value for name, value in row.items() if value is not None}
    identity = fields.pop("id", None)
    if isinstance(identity, bool) or not isinstance(identity, str | int):
        raise DataError(file, number, "id", repr(identity)[:60], "a string or a whole number")
    contents = _contents(fields, file, number)
    shown = {"id": str(identity), "contents": contents, **fields}
    try:
        return CorpusDocument(str(identity), orjson.dumps(shown, default=str), contents)
    except TypeError as error:
        raise DataError(file, number, None, f"a field that JSON cannot hold ({error})", "plain values") from None


def _contents(fields: dict[str, Any], file: str, number: int) -> str:
    """Take the text fields out of a row: `contents`, or `title` and `text` as `"Title"`, a line end and the text."""
    contents = fields.pop("contents", None)
    if contents is None:
        title, text = fields.get("title"), fields.get("text")
        if not isinstance(title, str) or not isinstance(text, str):
            got = ", ".join(sorted(fields)) or "no other field"
            raise DataError(file, number, None, f"a row with {got} and no contents", _WANTED)
        del fields["text"]
        return f'"{title}"\n{text}'
    if not isinstance(contents, str):
        raise DataError(file, number, "contents", type(contents).__name__, "a string")
    return contents
