"""The index's file: a SQLite database beside the dumps, or in a cache folder where that one cannot be written.

Everything in it can be made again from the dumps. A damaged file, or one of another version, is thrown away; while
another viewer has the file open, this one makes an index of its own.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

INDEX_FILE = ".index.sqlite"
VERSION = 2
"""Of the tables below and of what `records` puts into them."""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_PRIVATE = ""
"""SQLite's name of a temporary file that ends with the connection."""
_TABLES = """
CREATE TABLE files (
  first_id INTEGER PRIMARY KEY, inode INTEGER, size INTEGER, modified INTEGER,
  read_to INTEGER, mark BLOB, records INTEGER, damaged INTEGER);
CREATE TABLE rows (
  id INTEGER PRIMARY KEY, step INTEGER, uid TEXT, prompt_key TEXT, data_source TEXT, reward REAL, advantage REAL,
  stop_reason TEXT, turns INTEGER, tool_calls INTEGER, tokens INTEGER, offset INTEGER, length INTEGER);
CREATE INDEX rows_of_prompt ON rows (prompt_key);
CREATE TABLE shown (id INTEGER PRIMARY KEY, tools TEXT, question TEXT, start TEXT);
CREATE TABLE calls (tool TEXT, id INTEGER, PRIMARY KEY (tool, id)) WITHOUT ROWID;
CREATE TABLE texts (first_id INTEGER PRIMARY KEY, step INTEGER, ids BLOB, starts BLOB, data BLOB);
"""
# `rows` is narrow, so that a filter reads some 100 bytes of a trajectory; what only a table shows is in `shown`. The
# texts of many trajectories are one piece of `texts`, so that a search reads them at the speed of the memory.


@dataclass(frozen=True, slots=True)
class Store:
    """An open index."""

    connection: sqlite3.Connection
    place: str
    """Its file; empty: one that ends with the connection."""

    def throw_away(self) -> None:
        """Close it and remove its file."""
        self.connection.close()
        _remove(self.place)


def open_store(folder: Path) -> Store:
    """Open, or make, the index of a folder of dumps. Transactions are the caller's.

    Raises:
        sqlite3.OperationalError: no disk has room for one.
    """
    found = next((found for place in _places(folder) if (found := _open(place)) is not None), None)
    if found is None:
        raise sqlite3.OperationalError("no folder for it can be written, the one of temporary files neither")
    return found


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the index must be thrown away."""
    return getattr(error, "sqlite_errorcode", None) in _DAMAGED


def _places(folder: Path) -> Iterator[str]:
    if not folder.is_dir():
        yield _PRIVATE
    yield str(folder / INDEX_FILE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl" / "viewer"
    yield str(cache / f"{blake2b(str(folder.resolve()).encode(), digest_size=12).hexdigest()}.sqlite")
    yield _PRIVATE


def _open(place: str) -> Store | None:
    """The index at a place; None: no file can be written there, or another viewer has it."""
    for _ in range(2):  # the second time after a damaged file, or one of another version, is gone
        try:
            if place and not place.endswith(INDEX_FILE):
                Path(place).parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(place, timeout=0.2, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error):
            return None
        try:
            if _prepare(connection):
                return Store(connection, place)
        except sqlite3.Error as error:
            if not is_damage(error):
                connection.close()
                return None
        connection.close()
        _remove(place)
    return None


def _prepare(connection: sqlite3.Connection) -> bool:
    """Take the file for this process and make its tables; False: another version made some."""
    connection.row_factory = sqlite3.Row
    for setting in ("page_size=65536", "locking_mode=EXCLUSIVE", "synchronous=OFF"):
        connection.execute(f"PRAGMA {setting}")
    connection.execute("BEGIN EXCLUSIVE")  # in this mode the lock stays until the connection is closed
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    is_new = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if is_new:
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version={VERSION}")
    connection.execute("COMMIT")
    connection.execute("CREATE TEMP TABLE found (id INTEGER PRIMARY KEY)")
    return is_new or version == VERSION


def _remove(place: str) -> None:
    for name in (place, f"{place}-journal") if place else ():
        with suppress(OSError):
            Path(name).unlink(missing_ok=True)
