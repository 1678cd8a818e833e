"""Atomic parquet files: a reader sees either the whole file or no file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from agentrl.errors import UserInputError
from agentrl.types import JsonDict


def write_parquet(rows: Sequence[JsonDict], path: Path) -> Path:
    """Write rows to a parquet file in one step; an earlier file is kept until the new one is complete.

    Raises:
        UserInputError: no rows, a column with values of different types, or the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not rows:
        raise UserInputError(f"{path}: got no rows to write")
    # `from_pylist` would drop columns that the first row lacks.
    columns = dict.fromkeys(key for row in rows for key in row)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({key: pa.array([row.get(key) for row in rows]) for key in columns}), partial)
        os.replace(partial, path)
    except pa.ArrowException as error:
        raise UserInputError(f"{path}: the rows cannot be written as parquet: {error}") from error
    except OSError as error:
        raise UserInputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    return path
