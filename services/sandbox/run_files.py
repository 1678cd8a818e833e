"""Writes files into a run's folder and reads them from it, without following links that the code has put there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_MAX_PATH = 1024
_MAX_NAME = 255
_MAX_ENTRIES = 20_000
_MAX_DEPTH = 64
MAX_PARTS = 60
"""Most parts of a path that is given: fewer than those at which a run is stopped."""


def clean_path(path: str) -> str:
    """A path below the run's folder, in its plainest form.

    Raises:
        ValueError: it is absolute, leaves the folder, or is not a path.
    """
    wanted = "wanted a path inside the folder of the run, such as 'data/in.txt'"
    if not path or "\0" in path or len(path) > _MAX_PATH:
        raise ValueError(f"got {path[:80]!r}, {wanted}")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or not parts:
        raise ValueError(f"got {path[:80]!r}, {wanted}")
    if len(parts) > MAX_PARTS:
        raise ValueError(f"got {path[:80]!r} of {len(parts)} parts, wanted at most {MAX_PARTS}")
    try:
        long = any(len(part.encode()) > _MAX_NAME for part in parts)
    except UnicodeEncodeError:
        raise ValueError(f"got {path[:80]!r}, wanted text without halves of surrogate pairs") from None
    if long:
        raise ValueError(f"got {path[:80]!r}, wanted names of at most {_MAX_NAME} bytes")
    return "/".join(parts)


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file's bytes and whether it is a program."""

    data: bytes
    executable: bool = False


def put_files(folder: Path, files: Mapping[str, FileContent], uid: int | None) -> None:
    """Write files into a folder in which no code has run yet.

    Args:
        folder: the run's folder.
        files: contents by clean path.
        uid: their owner; None: this process's user.

    Raises:
        ValueError: one path is a file and a folder at once.
    """
    for path, content in files.items():
        target = folder / path
        try:
            _make_parents(folder, target.parent, uid)
            with open(target, "xb") as stream:
                stream.write(content.data)
                os.fchmod(stream.fileno(), 0o755 if content.executable else 0o644)
                if uid is not None:
                    os.fchown(stream.fileno(), uid, uid)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise ValueError(f"{path!r} is given twice, or as a file and as a folder") from error


def get_files(folder: Path, paths: Iterable[str], limit: int) -> tuple[dict[str, FileContent], list[str]]:
    """Read files from a folder in which all processes have ended.

    Args:
        folder: the run's folder.
        paths: clean paths.
        limit: bytes of all files together.

    Returns:
        Contents by path; and for each path that gave none, why.
    """
    found: dict[str, FileContent] = {}
    problems = []
    for path in paths:
        try:
            content = _read(folder, path, limit)
        except OSError as error:
            problems.append(f"{path}: {_reason(error)}")
            continue
        limit -= len(content.data)
        found[path] = content
    return found, problems


def all_files(folder: Path, limit: int) -> dict[str, FileContent]:
    """Every regular file of a folder, up to `limit` bytes."""
    names = []
    for current, _, files in os.walk(folder):
        names += [os.path.relpath(os.path.join(current, name), folder) for name in files]
        if len(names) > _MAX_ENTRIES:
            break
    return get_files(folder, names, limit)[0]


def disk_use(folder: Path | str) -> int | None:
    """Bytes on disk of everything in a folder; None when there are too many files, or too deep, to say."""
    total, entries = 0, 0
    todo = [(str(folder), 0)]
    while todo:
        path, depth = todo.pop()
        if depth > _MAX_DEPTH:
            return None
        try:
            with os.scandir(path) as found:
                for entry in found:
                    entries += 1
                    if entries > _MAX_ENTRIES:
                        return None
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        todo.append((entry.path, depth + 1))
        except OSError:
            continue  # it went away meanwhile
    return total


def _make_parents(folder: Path, parent: Path, uid: int | None) -> None:
    if parent == folder or parent.is_dir():
        return
    _make_parents(folder, parent.parent, uid)
    parent.mkdir(mode=0o755)
    if uid is not None:
        os.chown(parent, uid, uid)


def _read(folder: Path, path: str, limit: int) -> FileContent:
    """Open each part of a path by itself: a link anywhere in it is an error, a pipe does not block."""
    *parents, name = path.split("/")
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parents:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
    finally:
        os.close(at)
    with open(fd, "rb") as stream:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        if status.st_size > limit:
            raise OSError(f"{status.st_size} bytes are over the limit")
        return FileContent(stream.read(limit + 1)[:limit], bool(status.st_mode & 0o100))


def _reason(error: OSError) -> str:
    if error.errno is None:
        return str(error)
    return {2: "no such file", 20: "not below a folder, or behind a link", 40: "a link"}.get(
        error.errno, os.strerror(error.errno)
    )
