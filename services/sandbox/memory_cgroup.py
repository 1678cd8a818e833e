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
from pathlib import Path

from agentrl.services.sandbox.run_limits import MIB, memory_excess

_NAME = "agentrl-sandbox-"
_PROBE_MIB = 64
_numbers = itertools.count()


class MemoryCgroup:
    """The cgroup of one run."""

    def __init__(self, folder: Path, version: int) -> None:
        self._folder, self._version, self._mib = folder, version, 0
        folder.mkdir()

    def add(self, pid: int) -> None:
        """Count a process from now on, and what comes from it."""
        _write(self._folder / "cgroup.procs", pid)

    def limit(self, mib: int) -> None:
        """Set the most that it may hold.

        Raises:
            OSError: it holds more already.
        """
        self._mib, size = mib, mib * MIB
        if self._version == 1:
            _write(self._folder / "memory.limit_in_bytes", size)
            _write_if_there(self._folder / "memory.memsw.limit_in_bytes", size)
            _write_if_there(self._folder / "memory.kmem.tcp.limit_in_bytes", size)  # TCP's buffers count apart
            return
        _write(self._folder / "memory.max", size)
        _write_if_there(self._folder / "memory.swap.max", 0)
        _write_if_there(self._folder / "memory.oom.group", 1)

    @property
    def excess(self) -> str | None:
        """What is wrong when the kernel has killed a process because the limit was reached; None: nothing."""
        name = "memory.oom_control" if self._version == 1 else "memory.events"
        try:
            lines = (self._folder / name).read_text().splitlines()
        except OSError:
            return None
        killed = any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in lines)
        return memory_excess(self._mib) if killed else None

    def remove(self) -> None:
        """Remove it, once its processes have ended."""
        with contextlib.suppress(OSError):  # a process that is about to end; `MemoryCgroups.close` tries again
            self._folder.rmdir()


class MemoryCgroups:
    """Makes the cgroups of a server's runs; get it from `open_memory_cgroups`."""

    def __init__(self, parent: Path, version: int) -> None:
        self._folder, self._version = parent / f"{_NAME}{os.getpid()}-{next(_numbers)}", version
        self._folder.mkdir()

    def make(self, name: str) -> MemoryCgroup:
        """A cgroup for a run.

        Raises:
            OSError: the kernel makes no more.
        """
        return MemoryCgroup(self._folder / name, self._version)

    def close(self) -> None:
        """Remove them all."""
        _remove(self._folder)

    def probe(self) -> None:
        """Try one out.

        Raises:
            OSError: it does not work.
        """
        if self._version == 2:
            _write(self._folder / "cgroup.subtree_control", "+memory")
        cgroup = self.make("probe")
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
            cgroup.limit(_PROBE_MIB)
            cgroup.add(process.pid)
        cgroup.remove()


def open_memory_cgroups() -> MemoryCgroups | None:
    """Cgroups for the runs of this server; None where it may not make them."""
    for parent, version in _parents():
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


def _parents() -> list[tuple[Path, int]]:
    """Where cgroups can be made, and of which version they are: this process's own first, then those above it."""
    try:
        own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return []
    found: list[tuple[Path, int]] = []
    for _, controllers, path in own:
        for fields in mounts:
            kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
            below = os.path.relpath(path, fields[3])
            if below.startswith("..") and fields[3] != "/":
                below = "."
            place = Path(fields[4]) / below.removeprefix("../")
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


def _write(path: Path, value: object) -> None:
    with open(path, "w", encoding="ascii") as stream:
        stream.write(str(value))


def _write_if_there(path: Path, value: object) -> None:
    if path.exists():
        _write(path, value)
