"""The index of a folder of dumps: built once, appended as the run writes, asked by the page.

A trajectory's number says where it is, so links stay valid when the index is made again::

    step 3, the record after 17 others                      ->  3 << 24 | 17
    the same of `3.failed.jsonl`, for what failed in step 3  ->  3 << 24 | 1 << 23 | 17
"""

from __future__ import annotations

import os
import sqlite3
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from threading import Event, RLock
from typing import Any, BinaryIO

import orjson

from agentrl.observability.run_folder import DUMP_SUFFIX, FAILED_SUFFIX, dump_files
from agentrl.observability.viewer.records import IndexEntry, Record, entry_of, folded, parse_record, prompt_key_of
from agentrl.observability.viewer.store import Store, is_damage, open_store

_RECORD_BITS = 23
"""A dump has fewer than 2^23 records."""
FAILED = 1 << _RECORD_BITS
"""This bit of a trajectory's number says that it failed."""
STEP_BITS = _RECORD_BITS + 1
MOST_STEPS = 1 << 28
"""With them, twice a trajectory's number is still a number of JavaScript (2^53)."""
_PIECE = 4 << 20
"""Bytes of text that are written at once, and searched at once."""
_PIECE_ROWS = 4096
_MARK = 64
"""Bytes before the end of what is indexed: if they are no longer there, the file is another one."""
_SEPARATOR = b"\xff"


@dataclass(slots=True)
class _File:
    """A dump, as far as it is indexed."""

    inode: int
    size: int
    modified: int
    read_to: int
    mark: bytes
    records: int
    """Lines that are not blank, damaged ones included."""
    damaged: int


@dataclass(slots=True)
class _Piece:
    """Trajectories that are written at once."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    shown: list[tuple[Any, ...]] = field(default_factory=list)
    calls: list[tuple[str, int]] = field(default_factory=list)
    ids: array[int] = field(default_factory=lambda: array("q"))
    starts: array[int] = field(default_factory=lambda: array("q"))
    text: bytearray = field(default_factory=bytearray)

    def add(self, number: int, entry: IndexEntry, offset: int, length: int) -> None:
        """One trajectory."""
        step = number >> STEP_BITS
        values = (entry.uid, entry.prompt_key, entry.data_source, entry.reward, entry.advantage, entry.stop_reason)
        self.rows.append((number, step, *values, entry.turns, entry.tool_calls, entry.tokens, offset, length))
        self.shown.append((number, orjson.dumps(entry.tools).decode(), entry.question, entry.start))
        self.calls += [(tool, number) for tool in entry.tools]
        self.ids.append(number)
        self.starts.append(len(self.text))
        self.text += entry.text + _SEPARATOR


class DumpIndex:
    """Knows the trajectories of a folder of dumps. Safe to use from several threads.

    Args:
        folder: of `STEP.jsonl` files, and `STEP.failed.jsonl`; it need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._complete = Event()
        self.problem: str | None = None
        """Why the index lacks something."""
        self.generation = 0
        """Goes up with every change."""
        self._lock = RLock()
        self._store: Store | None = None
        self._files: dict[int, _File] = {}
        """By the number of the first trajectory that they may hold; so is `_paths`."""
        self._paths: dict[int, Path] = {}
        self._found: tuple[object, ...] = ()
        """The search that the table `found` answers."""

    @property
    def complete(self) -> bool:
        """Everything that was in the folder at the last look is indexed."""
        return self._complete.is_set()

    def wait(self, seconds: float) -> None:
        """Wait until it is complete, or as long as this."""
        self._complete.wait(seconds)

    def refresh(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Index what is new, a piece at a time; `stop` is asked after each.

        Damaged indexes are made again. A dump that cannot be read is told in `problem`.
        """
        if not self.folder.is_dir():
            if self._files:
                self._start_over()
            self._complete.set()
            return
        problems: list[str] = []
        try:
            done = self._refresh(stop, problems)
        except sqlite3.Error as error:
            problems.append(f"cannot write the index of {self.folder}: {error}")
            done = False
        self.problem = problems[0] if problems else None
        if done:
            self._complete.set()
        else:
            self._complete.clear()

    def _refresh(self, stop: Callable[[], bool], problems: list[str]) -> bool:
        """Returns whether it came to the end."""
        with self.database():
            pass  # opens it, with what it knows of the files
        found = self._paths = _dumps_in(self.folder)
        for first in [first for first in self._files if first not in found]:
            self._drop(first)
        for first, path in found.items():
            if stop():
                return False
            try:
                self._update(first, path, stop)
            except FileNotFoundError:
                return False  # replaced at this moment: the next look finds it
            except OSError as error:
                problems.append(f"cannot read {path}: {error.strerror or error}")
        return not stop()

    @contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        """The database, for this thread alone. One that turns out to be damaged is thrown away."""
        with self._lock:
            try:
                if self._store is None:
                    self._store = open_store(self.folder)
                    rows = self._store.connection.execute("SELECT * FROM files ORDER BY first_id").fetchall()
                    self._files = {row["first_id"]: _File(*tuple(row)[1:]) for row in rows}
                    self._found = ()
                yield self._store.connection
            except sqlite3.Error as error:
                if is_damage(error):
                    self._start_over()
                raise

    @property
    def damaged(self) -> int:
        """Lines that are no trajectory."""
        return sum(file.damaged for file in list(self._files.values()))

    def search(self, text: str, steps: tuple[int, int]) -> None:
        """Fill the table `found` with the trajectories whose prompt or answer contains a text, within some steps.

        Call it, and read the table, within `database`.
        """
        asked = (folded(text), *steps, self.generation)
        if asked == self._found:
            return
        with self.database() as connection:
            pieces = connection.execute("SELECT ids, starts, data FROM texts WHERE step BETWEEN ? AND ?", steps)
            numbers = [(number,) for piece in pieces for number in _places_of(asked[0], *piece)]
            connection.execute("BEGIN")
            connection.execute("DELETE FROM found")
            connection.executemany("INSERT INTO found VALUES (?)", numbers)
            connection.execute("COMMIT")
            self._found = asked

    def read(self, number: int) -> Record | None:
        """The record of a trajectory, from its place in its dump; None: not found, or replaced since."""
        with self.database() as connection:
            row = connection.execute("SELECT * FROM rows WHERE id = ?", (number,)).fetchone()
        path = self._paths.get(number & -FAILED)
        if row is None or path is None:
            return None
        try:
            with path.open("rb") as file:
                file.seek(row["offset"])
                record = parse_record(file.read(row["length"]), failed=bool(number & FAILED))
        except OSError:
            return None
        same = record is not None and prompt_key_of(record) == row["prompt_key"]
        return record if same else None  # the dump was replaced, and the index will know in a moment

    def close(self) -> None:
        """Close the database. The index can be used again."""
        with self._lock:
            if self._store is not None:
                self._store.connection.close()
            self._store = None

    def _start_over(self) -> None:
        with self._lock:
            if self._store is not None:
                self._store.throw_away()
            self._store, self._files = None, {}
            self._complete.clear()
            self.generation += 1

    def _update(self, first: int, path: Path, stop: Callable[[], bool]) -> None:
        """Index what a dump has more than the index."""
        known, now = self._files.get(first), path.stat()
        if known and (known.inode, known.size, known.modified) == (now.st_ino, now.st_size, now.st_mtime_ns):
            return
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            if known and (known.inode != state.st_ino or not _still_there(file, known)):
                self._drop(first)
                known = None
            new = replace(known) if known else _File(state.st_ino, 0, 0, 0, b"", 0, 0)
            file.seek(new.read_to)
            for piece, is_last in _pieces(file, first, new):
                if is_last:
                    new.size, new.modified = state.st_size, state.st_mtime_ns
                new.mark = _mark(file, new.read_to)
                self._write(first, new, piece)
                if stop():
                    return

    def _write(self, first: int, file: _File, piece: _Piece) -> None:
        with self._transaction() as connection:
            connection.executemany(f"INSERT OR REPLACE INTO rows VALUES ({_marks(13)})", piece.rows)
            connection.executemany(f"INSERT OR REPLACE INTO shown VALUES ({_marks(4)})", piece.shown)
            connection.executemany("INSERT OR REPLACE INTO calls VALUES (?, ?)", piece.calls)
            if piece.ids:
                values = (piece.ids[0], first >> STEP_BITS, piece.ids.tobytes(), piece.starts.tobytes(), piece.text)
                connection.execute(f"INSERT OR REPLACE INTO texts VALUES ({_marks(5)})", values)
            connection.execute(f"INSERT OR REPLACE INTO files VALUES ({_marks(8)})", (first, *astuple(file)))
        self._files[first] = replace(file)

    def _drop(self, first: int) -> None:
        with self._transaction() as connection:
            ids = (first, first | (FAILED - 1))
            for table in ("rows", "shown", "calls"):
                connection.execute(f"DELETE FROM {table} WHERE id BETWEEN ? AND ?", ids)
            for table in ("texts", "files"):
                connection.execute(f"DELETE FROM {table} WHERE first_id BETWEEN ? AND ?", ids)
        self._files.pop(first, None)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self.database() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            self.generation += 1


def _dumps_in(folder: Path) -> dict[int, Path]:
    """The dumps of a folder by the number of their first trajectory, in the order of the steps."""
    kinds = ((0, dump_files(folder, DUMP_SUFFIX)), (FAILED, dump_files(folder, FAILED_SUFFIX)))
    every = {step << STEP_BITS | bit: path for bit, dumps in kinds for step, path in dumps.items() if step < MOST_STEPS}
    return dict(sorted(every.items()))


def _pieces(file: BinaryIO, first: int, known: _File) -> Iterator[tuple[_Piece, bool]]:
    """What follows in a dump, piece by piece, and whether it is the last; `known` moves on with it."""
    piece, failed = _Piece(), bool(first & FAILED)
    for line in file:
        offset, length = known.read_to, len(line)
        blank = line.isspace()
        record = None if blank else parse_record(line, failed=failed)
        if (record is None and not line.endswith(b"\n")) or known.records >> _RECORD_BITS:
            break  # half-written, or more than there are numbers for
        known.read_to += length
        if blank:
            continue
        if record is None:
            known.damaged += 1
        else:
            piece.add(first | known.records, entry_of(record), offset, length)
        known.records += 1
        if len(piece.text) >= _PIECE or len(piece.ids) >= _PIECE_ROWS:
            yield piece, False
            piece = _Piece()
    yield piece, True


def _mark(file: BinaryIO, end: int) -> bytes:
    """The last bytes before a place of a file, which is then read on from where it was."""
    size, here = min(_MARK, end), file.tell()
    file.seek(end - size)
    found = file.read(size)
    file.seek(here)
    return found


def _still_there(file: BinaryIO, known: _File) -> bool:
    """Whether what is indexed of a file is still its beginning."""
    return _mark(file, known.read_to) == known.mark


def _places_of(text: bytes, ids: bytes, starts: bytes, data: bytes) -> Iterator[int]:
    """The trajectories of a piece that contain a text."""
    numbers, begins = array("q", ids), array("q", starts)
    at = data.find(text)
    while at >= 0:
        place = bisect_right(begins, at) - 1
        yield numbers[place]
        at = data.find(text, begins[place + 1]) if place + 1 < len(begins) else -1


def _marks(count: int) -> str:
    return ", ".join("?" * count)
