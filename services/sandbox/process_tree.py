"""The process tree of a run, from the machine's side: who is in it, how much memory it holds, how to end it."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_PAGE = os.sysconf("SC_PAGE_SIZE")
_KILL_S = 5.0
_GET_DUMPABLE, _SET_DUMPABLE, _SET_SUBREAPER, _GET_SUBREAPER = 3, 4, 36, 37
_KCMP = {"x86_64": 312, "aarch64": 272}.get(os.uname().machine)
_KCMP_VM = 1
_libc = ctypes.CDLL(None)
_adopting = threading.Lock()
_adopters = _adopted_before = 0


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Inside, this process becomes the parent of orphans below it; of overlapping uses the last to end restores."""
    global _adopters, _adopted_before
    with _adopting:
        if _adopters == 0:
            before = ctypes.c_int()
            _libc.prctl(_GET_SUBREAPER, ctypes.byref(before), 0, 0, 0)
            _adopted_before = before.value
            _libc.prctl(_SET_SUBREAPER, 1, 0, 0, 0)
        _adopters += 1
    try:
        yield
    finally:
        with _adopting:
            _adopters -= 1
            if _adopters == 0:
                _libc.prctl(_SET_SUBREAPER, _adopted_before, 0, 0, 0)


@contextmanager
def hidden_memory() -> Iterator[None]:
    """Inside, other processes of the same user cannot read this one's memory and environment."""
    before = _libc.prctl(_GET_DUMPABLE, 0, 0, 0, 0)
    _libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    try:
        yield
    finally:
        _libc.prctl(_SET_DUMPABLE, before, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """Children of a process, their children and so on."""
    found, todo = [], [pid]
    while todo:
        new = children(todo.pop())
        found += new
        todo += new
    return found


def resident_bytes(pids: list[int], enough: int) -> int:
    """Memory that these processes hold together.

    Pages that several share are first counted for each, which is cheap; only above `enough` are they shared out.
    """
    rough = sum(_statm(pid) for pid in pids)
    return rough if rough <= enough else sum(_proportional(pid) for pid in _with_memory_of_their_own(pids))


def kill_tree(pid: int) -> None:
    """End a process and all its descendants; returns when none of its children is left, or after a few seconds."""
    deadline = time.monotonic() + _KILL_S
    signal_quietly(pid, signal.SIGSTOP)
    while time.monotonic() < deadline:
        below = [one for one in descendants(pid) if not is_dead(one)]
        if not below:
            break
        for one in below:
            signal_quietly(one, signal.SIGKILL)
        time.sleep(0.001)
    signal_quietly(pid, signal.SIGKILL)


def signal_quietly(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def children(pid: int) -> list[int]:
    """Processes whose parent this one is."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as stream:
                found += map(int, stream.read().split())
    except (OSError, ValueError):
        return found
    return found


def threads_of(uid: int) -> int:
    """How many threads of this user there are on the machine."""
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/status", encoding="utf-8", errors="replace") as stream:
                fields = dict(line.split(":", 1) for line in stream)
            if int(fields["Uid"].split()[0]) == uid:
                count += int(fields["Threads"])
        except (OSError, KeyError):  # it has ended, or is about to and has none any more
            continue
    return count


def is_dead(pid: int) -> bool:
    """It is gone, or would be if its parent had asked for its exit code."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def is_namespace_init(pid: int) -> bool:
    """It is the first process of a pid namespace below this one's."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as stream:
            return any(line.startswith("NSpid:") and line.split()[2:] == ["1"] for line in stream)
    except OSError:
        return False


def _with_memory_of_their_own(pids: list[int]) -> list[int]:
    """One process of each address space: between vfork and exec a child runs in that of its parent."""
    found: list[int] = []
    for pid in pids:
        if not any(_share_memory(pid, one) for one in found):
            found.append(pid)
    return found


def _share_memory(one: int, other: int) -> bool:
    """Both run in the same address space; False also where this process may not ask."""
    return _KCMP is not None and _libc.syscall(_KCMP, one, other, _KCMP_VM, 0, 0) == 0


def _statm(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def _proportional(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as stream:
            return sum(int(line.split()[1]) * 1024 for line in stream if line.startswith("Pss:"))
    except PermissionError:  # as root of a container without the right to trace: what is shared counts for each
        return _statm(pid)
    except (OSError, ValueError):
        return 0
