"""A memory cgroup for each run, where the machine lets this server make one: the kernel then counts everything.

Pages of processes are only a part of what a run can hold: there are buffers of sockets and pipes, files in memory, page
tables and many smaller things of the kernel. Both versions of cgroups are used, as root or in a delegated subtree.
Where none can be made, `resource_monitor` counts what can be seen from outside.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections import deque
from pathlib import Path

from agentrl.services.sandbox.run_limits import MIB, memory_excess

_NAME = "agentrl-sandbox-"
_PROBE_MIB = 64
_LEFT_BYTES = 4 << 20
_OWN = (Path("/proc/self/cgroup"), Path("/proc/self/mountinfo"))
_numbers = itertools.count()


class MemoryCgroup:
    """The cgroup of one run, and then of another: it costs more to make one than to use it."""

    def __init__(self, folder: Path, version: int) -> None:
        self._folder, self._version, self._mib = folder, version, 0
        self._events = folder / ("memory.oom_control" if version == 1 else "memory.events")
        self._usage = folder / ("memory.usage_in_bytes" if version == 1 else "memory.current")
        folder.mkdir()

    def add(self, pid: int) -> None:
        """Count a process from now on, and what comes from it."""
        _write(self._folder / "cgroup.procs", pid)

    def limit(self, mib: int) -> None:
        """Set the most that it may hold.

        Raises:
            OSError: it holds more already.
        """
        if mib == self._mib:
            return
        size = mib * MIB
        if self._version == 2:
            written = [("memory.max", size), ("memory.swap.max", 0), ("memory.oom.group", 1)]
        else:  # with swap it may never be less than without, in between neither; TCP's buffers count apart
            written = [("memory.limit_in_bytes", size), ("memory.memsw.limit_in_bytes", size)]
            written = [("memory.kmem.tcp.limit_in_bytes", size), *written[:: -1 if mib > self._mib > 0 else 1]]
        for name, value in written:
            with contextlib.suppress(FileNotFoundError):  # an older kernel, or one that does not count swap
                _write(self._folder / name, value)
        self._mib = mib

    @property
    def excess(self) -> str | None:
        """What is wrong when the kernel has killed a process because the limit was reached; None: nothing."""
        counts = dict(line.split() for line in _read(self._events).splitlines())
        return memory_excess(self._mib) if counts.get("oom_kill", "0") != "0" else None

    @property
    def is_clean(self) -> bool:
        """It can serve another run: no process and hardly any memory is left in it, and it was never exceeded."""
        empty = not _read(self._folder / "cgroup.procs")
        return empty and self.excess is None and int(_read(self._usage) or _LEFT_BYTES) < _LEFT_BYTES

    def remove(self) -> None:
        """Remove it, once its processes have ended."""
        with contextlib.suppress(OSError):  # a process that is about to end; `MemoryCgroups.close` tries again
            self._folder.rmdir()


class MemoryCgroups:
    """Makes the cgroups of a server's runs; get it from `open_memory_cgroups`."""

    def __init__(self, parent: Path, version: int) -> None:
        self.folder, self._version = parent / f"{_NAME}{os.getpid()}-{next(_numbers)}", version
        self._made = itertools.count()
        self._free: deque[MemoryCgroup] = deque()
        self.folder.mkdir()

    def take(self) -> MemoryCgroup:
        """A cgroup for a run.

        Raises:
            OSError: the kernel makes no more.
        """
        try:
            return self._free.pop()
        except IndexError:
            return MemoryCgroup(self.folder / f"run-{next(self._made)}", self._version)

    def give_back(self, cgroup: MemoryCgroup) -> None:
        """The run has ended."""
        if cgroup.is_clean:
            self._free.append(cgroup)
        else:
            cgroup.remove()

    def close(self) -> None:
        """Remove them all."""
        _remove(self.folder)

    def probe(self) -> None:
        """Try one out.

        Raises:
            OSError: it does not work.
        """
        if self._version == 2:
            _write(self.folder / "cgroup.subtree_control", "+memory")
        cgroup = self.take()
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
            cgroup.limit(_PROBE_MIB)
            cgroup.add(process.pid)
        self.give_back(cgroup)


def open_memory_cgroups() -> MemoryCgroups | None:
    """Cgroups for the runs of this server; None where it may not make them."""
    for parent, version in possible_parents():
        _remove_old(parent)
        made = None
        try:
            made = MemoryCgroups(parent, version)
            made.probe()
        except OSError:
            if made is not None:
                made.close()
            continue
        return made
    return None


def possible_parents() -> list[tuple[Path, int]]:
    """Where cgroups can be made, and of which version they are: this process's own first, then those above it."""
    try:
        lines, mount_lines = (path.read_text().splitlines() for path in _OWN)
    except OSError:
        return []
    found: list[tuple[Path, int]] = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        for fields in map(str.split, mount_lines):
            kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
            # "/user.slice/a.scope", mounted from "/" at /sys/fs/cgroup; in a container from "/docker/b", which it is in
            below = os.path.relpath(path, fields[3])
            place = Path(fields[4]) / ("." if below.startswith("..") else below)
            if kind == "cgroup" and "memory" in controllers.split(",") and "memory" in options:
                found.append((place, 1))
            if kind == "cgroup2" and not controllers:
                found += [(folder, 2) for folder in (place, *place.parents) if _gives_memory(folder)]
    return found


def _gives_memory(folder: Path) -> bool:
    """The cgroups below it have a limit of memory, or can get one: while no process but this is in it itself."""
    try:
        if "memory" in (folder / "cgroup.subtree_control").read_text().split():
            return True
        if (folder / "cgroup.procs").read_text().split() != [str(os.getpid())]:
            return False
        leaf = folder / "agentrl-server"  # a cgroup with processes can have no limited ones below it
        leaf.mkdir(exist_ok=True)
        _write(leaf / "cgroup.procs", os.getpid())
        _write(folder / "cgroup.subtree_control", "+memory")
    except OSError:
        return False
    return True


def _remove_old(parent: Path) -> None:
    """Remove what servers left that were killed."""
    for folder in parent.glob(f"{_NAME}*"):
        pid = folder.name.removeprefix(_NAME).partition("-")[0]
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            _remove(folder)


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for run in folder.iterdir():
            if run.is_dir():
                run.rmdir()
        folder.rmdir()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


def _write(path: Path, value: object) -> None:
    with open(path, "w", encoding="ascii") as stream:
        stream.write(str(value))
