"""Names of files and folders that end with their process, so that what killed processes left can be told and removed.

::

    agentrl-weights-4711-9f3c21-x7k2q1      kind, process id, whose process ids these are, anything

A process id means something on one machine and in one container. In a folder that several of them share, the files of
a run elsewhere must not be taken for those of a process that has ended.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import socket
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil


def owned_prefix(kind: str) -> str:
    """What the name of something begins with that ends with this process: `agentrl-weights-4711-9f3c21-`."""
    return f"{kind}-{os.getpid()}-{_where()}-"


def remove_leftovers(folder: Path, kind: str, *, unchanged_s: float = math.inf) -> None:
    """Remove what processes of this machine left in a folder that have ended, as far as it may be removed.

    Args:
        folder: where to look.
        kind: what the names begin with.
        unchanged_s: also what other machines have left unchanged for so long.
    """
    for path in folder.glob(f"{kind}-*"):
        owner = re.fullmatch(rf"{re.escape(kind)}-(\d+)-([0-9a-f]{{6}})-.+", path.name)
        with suppress(OSError):  # gone meanwhile, or another user's
            if owner is None or not _is_left(path, int(owner[1]), owner[2], unchanged_s):
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def _is_left(path: Path, pid: int, where: str, unchanged_s: float) -> bool:
    return not psutil.pid_exists(pid) if where == _where() else time.time() - path.stat().st_mtime > unchanged_s


@cache
def _where() -> str:
    """Six letters for the machine and the container whose process ids this process knows."""
    try:
        container = os.readlink("/proc/self/ns/pid")
    except OSError:  # only Linux has it
        container = ""
    return hashlib.sha1(f"{socket.gethostname()} {container}".encode()).hexdigest()[:6]
