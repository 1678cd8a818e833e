"""Finished batches of a job, kept beside its output until that is written, so that a second start goes on after them.

::

    out.parquet.parts/job.json            what the job is: its rows, model and settings
    out.parquet.parts/batch_000000.json   the first batch; each appears under its name when it is complete
    out.parquet.parts/batch_000001.json
    out.parquet                           written last, in one step; the folder is then deleted
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol, Self

import orjson

from agentrl.errors import CheckpointError, UserInputError
from agentrl.reported import json_of

logger = logging.getLogger(__name__)

_CHUNK = 1 << 20


class Advance(Protocol):
    """Hears how far a job is."""

    def __call__(self, done: int, total: int, kept: int) -> None:
        """`done` of `total` rows are done, `kept` of them by an earlier start."""


class JobParts:
    """The batches of one job; a context manager that no two processes enter for the same output.

    Args:
        output: the file that the job writes.
        identity: everything that its result depends on, as JSON has it, by the key that a user would change.
        overwrite: replace the output if it exists, and discard batches of another job.

    Raises:
        UserInputError: the output exists, another process is writing it, or there are batches of another job.
    """

    def __init__(self, output: Path, identity: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.output = output
        self.folder = output.with_name(f"{output.name}.parts")
        self._identity = json_of(dict(identity))
        self._overwrite = overwrite

    def __enter__(self) -> Self:
        refuse_taken(self.output, overwrite=self._overwrite)
        with _writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise UserInputError(f"{self.output} is being written by another process") from None
        try:
            self._take_over()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        kept = [*self.folder.glob("batch_*.json"), *self.folder.glob("logs/*")]
        if not kept:  # nothing to go on with, and nothing that says why
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()

    def read(self, number: int) -> Any | None:
        """A finished batch; None: it is not finished."""
        try:
            return orjson.loads(self._file(number).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise UserInputError(
                f"{self._file(number)} is damaged ({error}): delete it to make this batch again"
            ) from None

    def keep(self, number: int, content: Any) -> None:
        """Keep a finished batch.

        Raises:
            CheckpointError: it cannot be written.
        """
        self._write(self._file(number), orjson.dumps(content))

    def finish(self, *writers: tuple[Path, Callable[[Path], None]]) -> None:
        """Write the output, and files that belong to it, under their names, and delete the batches.

        Args:
            writers: each file, and what writes it to the path that it is given. The last one is the output.

        Raises:
            CheckpointError: one cannot be written; the batches are kept.
        """
        partial = [(final, self.folder / f"{final.stem}.partial{final.suffix}") for final, _ in writers]
        with _writing(self.output):
            for (_, write), (_, part) in zip(writers, partial, strict=True):
                write(part)
            for final, part in partial:
                os.replace(part, final)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _take_over(self) -> None:
        """Go on after the batches of an earlier start of the same job.

        Raises:
            UserInputError: they are of another job.
        """
        file = self.folder / "job.json"
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            before = None
        if before == self._identity:
            return
        if before is not None and not self._overwrite and any(self.folder.glob("batch_*.json")):
            keys = [key for key in {**before, **self._identity} if before.get(key) != self._identity.get(key)]
            told = "; ".join(
                f"{key} {_shown(before.get(key))} there, {_shown(self._identity.get(key))} here" for key in keys
            )
            raise UserInputError(
                f"{self.folder} holds finished batches of another job ({told}): give its settings to go on with it, "
                "--overwrite to start again, or another output"
            )
        for old in self.folder.glob("batch_*.json"):
            old.unlink()
        self._write(file, json.dumps(self._identity, indent=2).encode())

    def _write(self, path: Path, content: bytes) -> None:
        part = path.with_suffix(".partial")
        with _writing(path):
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)

    def _file(self, number: int) -> Path:
        return self.folder / f"batch_{number:06d}.json"


def refuse_taken(*files: Path, overwrite: bool) -> None:
    """Refuse to write over what is there.

    Raises:
        UserInputError: a file exists, or is a folder.
    """
    for file in files:
        if file.is_dir():
            raise UserInputError(f"{file} is a folder, wanted the name of a file to write")
        if file.exists() and not overwrite:
            raise UserInputError(f"{file} already exists: give another output, or --overwrite to replace it")


def identity_of(files: list[str], model: str = "") -> dict[str, Any]:
    """What input files hold, and which weights a model folder has."""
    folder = Path(model).expanduser()
    weights = sorted(folder.glob("*.safetensors")) if model and folder.is_dir() else []
    states = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in weights]
    found: dict[str, Any] = {"the content of its files": _digest(files)}
    return found | (
        {"the weights in model.path": blake2b(repr(states).encode(), digest_size=8).hexdigest()} if states else {}
    )


def _digest(files: list[str]) -> str:
    digest = blake2b(digest_size=8)
    for name in files:
        with open(name, "rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
        digest.update(b"\0")
    return digest.hexdigest()


def _shown(value: Any) -> str:
    return "null" if value is None else json.dumps(value) if not isinstance(value, str) else value


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error
