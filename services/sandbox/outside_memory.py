"""Memory that a run holds outside the pages of its processes, as far as the machine shows it.

A memory cgroup counts all of it exactly; this is for servers that cannot make one. The content of sockets and pipes is
not shown, so they count as full: a program pays 256 KB of its limit for each socket and 64 KB for each pipe.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator

from agentrl.services.sandbox.run_files import disk_use

_FULL = {stat.S_IFSOCK: 256 << 10, stat.S_IFIFO: 64 << 10, stat.S_IFCHR: 64 << 10, 0: 64 << 10}
"""Bytes by type of file: sockets, pipes, terminals, and what has no type, such as the list that epoll watches."""
_INODE = 1024
_PRIVATE = ("/dev/shm", "/tmp")
_PART = 512
"""A page table of 4 KB serves 2 MB of addresses."""


def outside_bytes(pids: list[int], has_own_root: bool, uid: int | None, work_device: int) -> tuple[int, int]:
    """Bytes of memory and of disk that processes hold and that neither their pages nor the run's folder show.

    Args:
        pids: all processes of the run.
        has_own_root: it has a file system of its own.
        uid: its own user; None: it has none.
        work_device: the device of the run's folder.
    """
    memory, disk = _descriptors(pids, work_device)
    memory += sum(_page_tables(pid) for pid in pids)
    if has_own_root:
        memory += _private_files(pids)
    elif uid is not None:
        memory += _shared_files(uid)
    return memory, disk


def _descriptors(pids: Iterable[int], work_device: int) -> tuple[int, int]:
    """Buffers of the kernel, and open files that no folder has any more."""
    memory = disk = 0
    seen = set()
    for status in (found for pid in pids for found in _open_files(pid)):
        kind, file = stat.S_IFMT(status.st_mode), (status.st_dev, status.st_ino)
        if kind and file in seen:
            continue
        seen.add(file)
        memory += _FULL.get(kind, 0)
        if kind == stat.S_IFREG and status.st_nlink == 0 and status.st_dev == work_device:
            disk += status.st_blocks * 512
    return memory, disk


def _open_files(pid: int) -> Iterator[os.stat_result]:
    with contextlib.suppress(OSError):  # the process has ended, or may not be looked into
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                yield os.stat(f"/proc/{pid}/fd/{name}")


def _page_tables(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/statm", encoding="ascii") as stream:
            most = int(stream.read().split()[0]) * os.sysconf("SC_PAGE_SIZE") // _PART
        if most < 1 << 20:  # which is usual, and cheaper to find out
            return most
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as stream:
            return next((int(line.split()[1]) * 1024 for line in stream if line.startswith("VmPTE:")), 0)
    return 0


def _private_files(pids: list[int]) -> int:
    for pid in reversed(pids):  # the first ones may stand outside
        with contextlib.suppress(OSError):
            root = f"/proc/{pid}/root"
            if os.stat(f"{root}/tmp").st_dev == os.stat("/tmp").st_dev:
                continue
            found = [os.statvfs(f"{root}{place}") for place in _PRIVATE]
            return sum(
                (one.f_blocks - one.f_bfree) * one.f_frsize + (one.f_files - one.f_ffree) * _INODE for one in found
            )
    return 0


def _shared_files(uid: int) -> int:
    total = 0
    with contextlib.suppress(OSError), os.scandir("/dev/shm") as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_uid == uid:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512 + _INODE
                    total += (disk_use(entry.path) or 0) if entry.is_dir(follow_symlinks=False) else 0
    return total
