"""Rows of other people's data: parquet, jsonl and JSON files, folders of them, or a data set of the hub."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from agentrl.data.row import without_nones
from agentrl.errors import DataError, UserInputError, repr_of, suggest
from agentrl.types import JsonDict

logger = logging.getLogger(__name__)

HUB = "hub"
SUFFIXES = (".parquet", ".jsonl", ".json")
_SPLIT_NAMES = {"train": ("train",), "test": ("test", "validation", "val", "dev")}


@dataclass(frozen=True, slots=True)
class HubData:
    """A data set of the hub."""

    name: str
    config: str | None = None
    splits: Mapping[str, str] = field(default_factory=lambda: {"train": "train", "test": "test"})
    """Our split -> the hub's."""


@dataclass(frozen=True, slots=True)
class Cells:
    """One row of a file, read with errors that name the file, the row and the columns that there are."""

    file: str
    number: int
    row: JsonDict

    def error(self, column: str | None, got: str, wanted: str) -> DataError:
        """The error of a cell."""
        return DataError(self.file, self.number, column, got, wanted)

    def find(self, *columns: str) -> tuple[str, Any]:
        """The first of these columns that the row has, and its value.

        Raises:
            DataError: it has none of them; lists those that it has.
        """
        for column in columns:
            if self.row.get(column) is not None:
                return column, self.row[column]
        if columns[0] in self.row:
            raise self.error(columns[0], "nothing", "a value")
        known = ", ".join(self.row) or "none"
        near = suggest(columns[0], self.row)
        wanted = " or ".join(columns) + (f".{near}" if "Did you mean" in near else "")
        raise self.error(columns[0], f"only the columns {known}", wanted)

    def text(self, *columns: str) -> str:
        """The same; the value is text that is not empty.

        Raises:
            DataError: as `find`, or it is something else.
        """
        column, value = self.find(*columns)
        if not isinstance(value, str) or not value.strip():
            raise self.error(column, repr_of(value), "text")
        return value

    def parsed(self, *columns: str) -> Any:
        """The same; a value that is JSON text is read.

        Raises:
            DataError: as `find`, or the text is no JSON.
        """
        column, value = self.find(*columns)
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError as error:
            raise self.error(column, f"text that is no JSON ({error})", "JSON") from error


def split_sources(source: str, hub: HubData | None, single: str, test_source: str | None = None) -> dict[str, str]:
    """Where each split is: `hub`, or its file.

    Args:
        source: `hub`, a file, or a folder with `train` and `test` files.
        hub: what `hub` means; None: nothing.
        single: the split that a single file is.
        test_source: the file of the test split, if it is not in `source`.

    Raises:
        DataError: there is no such file, or none in the folder.
        UserInputError: `hub` means nothing here.
    """
    found: dict[str, str] = {}
    path = Path(source).expanduser()
    if source == HUB:
        if hub is None:
            raise UserInputError("--source: give a local file or folder; there is no data set of the hub for this")
        found = dict.fromkeys(hub.splits, HUB)
    elif path.is_dir():
        for split, names in _SPLIT_NAMES.items():
            files = next((files for name in names if (files := _files_of(path, name))), [])
            if files:
                found[split] = "\n".join(map(str, files))
        if not found:
            there = ", ".join(sorted(file.name for file in path.iterdir())[:12]) or "nothing"
            wanted = f"train or test with the suffix {', '.join(SUFFIXES)}"
            raise DataError(str(path), None, None, f"a folder with {there}", wanted)
    else:
        found[single] = str(path)
    if test_source is not None:
        found["test"] = test_source
    return found


def read_rows(source: str, split: str, hub: HubData | None) -> Iterator[Cells]:
    """The rows of a split.

    Args:
        source: as `split_sources` gives it.
        split: `train` or `test`.
        hub: of `source` hub.

    Raises:
        DataError: a file is missing, or cannot be read.
    """
    if source == HUB and hub is not None:
        yield from (Cells(hub.name, number, row) for number, row in enumerate(_of_hub(hub, split)))
        return
    for name in source.split("\n"):
        path = Path(name).expanduser()
        rows = _of_parquet(path) if path.suffix == ".parquet" else _of_text(path)
        yield from (Cells(str(path), number, row) for number, row in enumerate(rows))


def _files_of(folder: Path, split: str) -> list[Path]:
    """`train.jsonl`, `data/train-00000-of-00002.parquet` and so on; of several kinds the first of `SUFFIXES`."""
    for suffix in SUFFIXES:
        for pattern in (f"{split}{suffix}", f"{split}-*{suffix}", f"data/{split}-*{suffix}", f"*_{split}{suffix}"):
            if files := sorted(folder.glob(pattern)):
                return files
    return []


def _of_parquet(path: Path) -> Iterator[JsonDict]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        for batch in file.iter_batches():
            yield from ({key: without_nones(value) for key, value in row.items()} for row in batch.to_pylist())
    except FileNotFoundError as error:
        raise DataError(str(path), None, None, "No such file or directory", "a readable parquet file") from error
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            str(path), None, None, f"a file that is not readable as parquet ({error})", "parquet"
        ) from error


def _of_text(path: Path) -> Iterator[JsonDict]:
    """A jsonl file, or a JSON file with a list of objects, or one with such a list under `data`."""
    try:
        if path.suffix == ".json":
            yield from _of_json(path)
            return
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                if line.strip():
                    yield _object(path, number, _parse(path, number, line, "one JSON object per line"))
    except (OSError, UnicodeDecodeError) as error:
        text = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise DataError(str(path), None, None, text, "a readable jsonl file") from error


def _of_json(path: Path) -> Iterator[JsonDict]:
    text = path.read_text(encoding="utf-8")
    try:
        content = json.loads(text)
    except ValueError:  # jsonl under the name of JSON
        lines = [line for line in text.splitlines() if line.strip()]
        content = [
            _parse(path, number, line, "a list of JSON objects, or one per line") for number, line in enumerate(lines)
        ]
    if isinstance(content, dict):
        content = content.get("data", content)
    if not isinstance(content, list):
        raise DataError(str(path), None, None, f"a {type(content).__name__}", "a list of JSON objects")
    yield from (_object(path, number, row) for number, row in enumerate(content))


def _parse(path: Path, number: int, text: str, wanted: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(str(path), number, None, f"invalid JSON ({error})", wanted) from error


def _object(path: Path, number: int, row: Any) -> JsonDict:
    if not isinstance(row, dict):
        raise DataError(str(path), number, None, f"a {type(row).__name__}", "a JSON object")
    return row


def _of_hub(hub: HubData, split: str) -> Iterator[JsonDict]:
    try:
        from datasets import load_dataset  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise UserInputError(
            "`--source hub` needs the `datasets` package: `pip install datasets`, or give a local file or folder: "
            "`--source PATH`"
        ) from error
    logger.info("loading %s from the Hugging Face hub; it is downloaded unless it is in the cache", hub.name)
    try:
        rows = load_dataset(hub.name, hub.config, split=hub.splits[split])
    except (OSError, ValueError, RuntimeError, LookupError, TypeError, httpx.HTTPError) as error:
        first = str(error).strip().split("\n")[0][:200]
        raise UserInputError(
            f"cannot load {hub.name} from the hub ({type(error).__name__}: {first}): give a local file or folder: "
            "`--source PATH`"
        ) from error
    yield from rows
