"""Atomic parquet files: a reader sees either the whole file or no file, and all splits of a data set or none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.errors import UserInputError
from agentrl.types import JsonDict


def keep_existing(paths: Sequence[Path], overwrite: bool) -> None:
    """Refuse to replace files, before any work.

    Raises:
        UserInputError: names the files that exist.
    """
    there = [] if overwrite else [str(path) for path in paths if path.exists()]
    if there:
        raise UserInputError(f"{', '.join(there)} exists: give --overwrite to replace it, or another --out")


def write_parquet(rows: Sequence[JsonDict], path: Path) -> Path:
    """Write rows to a parquet file in one step; an earlier file is kept until the new one is complete.

    Raises:
        UserInputError: no rows, a column with values of different types, or the file cannot be written.
    """
    return write_parquets({path: rows})[0]


def write_parquets(files: Mapping[Path, Sequence[JsonDict]]) -> list[Path]:
    """The same for several files: none of them appears before all are complete.

    Raises:
        UserInputError: as `write_parquet`.
    """
    partial = {path: path.with_name(f".{path.name}.{os.getpid()}.partial") for path in files}
    try:
        for path, rows in files.items():
            _write(rows, path, partial[path])
        for path, written in partial.items():
            os.replace(written, path)
    except OSError as error:
        raise UserInputError(f"cannot write {error.filename or path}: {error.strerror or error}") from error
    finally:
        for written in partial.values():
            with contextlib.suppress(OSError):
                written.unlink()
    return list(files)


def _write(rows: Sequence[JsonDict], path: Path, partial: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not rows:
        raise UserInputError(f"{path}: got no rows to write")
    # `from_pylist` would drop columns that the first row lacks.
    columns = dict.fromkeys(key for row in rows for key in row)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({key: pa.array([row.get(key) for row in rows]) for key in columns}), partial)
    except pa.ArrowException as error:
        raise UserInputError(f"{path}: the rows cannot be written as parquet: {error}") from error
    except OSError as error:
        raise UserInputError(f"cannot write {path}: {error.strerror or error}") from error
