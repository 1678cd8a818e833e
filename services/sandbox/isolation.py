"""How code is isolated from the machine: three levels, strongest first (`isolation_choice` finds those that work)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.services.sandbox.filesystem_layout import FilesystemLayout
from agentrl.services.sandbox.guest.supervisor import SHARED
from agentrl.services.sandbox.memory_cgroup import MemoryCgroups
from agentrl.services.sandbox.run_limits import MIB
from agentrl.services.sandbox.seccomp import SeccompFilters

LEVELS = ("bubblewrap", "namespaces", "rlimits")
"""Strongest first."""
_SHM_MB = 64
_TMPFS_INODES = 16_384
"""Files that a private folder in memory can hold: an empty one takes a kilobyte that no size counts."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """One level, ready to start programs.

    Attributes:
        level: one of `LEVELS`.
        own_users: every run is a user of its own, whose number nobody else on the machine has.
        filters: the seccomp filters; None: without libseccomp.
        landlock: version of Landlock that keeps the code in; 0: none does.
        details: what holds the code back, for `/health`.
    """

    level: str
    layout: FilesystemLayout
    own_users: bool
    filters: SeccompFilters | None
    landlock: int
    details: tuple[str, ...]
    memory_cgroups: MemoryCgroups | None = None
    """Where memory of runs is limited by the kernel."""
    forks: bool = False
    """Runs are forks of interpreters that are up (see `zygote_pool`), else each starts one."""

    @property
    def has_own_root(self) -> bool:
        """The code sees a file system of its own."""
        return self.level != "rlimits"

    def folder_inside(self, folder: Path) -> str:
        """Where the code finds the run's folder."""
        return self.layout.inside if self.has_own_root else str(folder / "work")

    def environment(self, folder: Path) -> dict[str, str]:
        """All variables that the code gets; none is the server's."""
        home = self.folder_inside(folder)
        return {
            "PATH": self.layout.path,
            "HOME": home,
            "PWD": home,
            "TMPDIR": "/tmp" if self.has_own_root else str(folder / "tmp"),
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "USER": "sandbox",
            # One thread per numeric library: the pools of many cores do not fit the limits of a run.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            # Each of malloc's pools reserves 64 MB of addresses, and they count.
            "MALLOC_ARENA_MAX": "2",
        }

    def landlock_rules(self, folder: Path) -> dict[str, Any]:
        """What a job says of Landlock: the parts of the machine's file system that its code gets."""
        shared = SHARED if self.own_users else ("/dev/shm",)  # the server's own folder is in /tmp
        paths = {
            "read": [*self.layout.shown, "/etc", "/proc", "/sys"],
            "use": ["/dev"],
            "change": [str(folder / "work"), str(folder / "tmp"), *shared],
        }
        return {"landlock": self.landlock, "paths": paths if self.landlock else {}}

    def supervised_command(self, uid: int | None, control: int) -> list[str]:
        """Arguments that start a launcher where the code has no file system of its own."""
        launcher = [self.layout.python, "-S", "-B", str(self.layout.guest / "launcher.py"), str(control)]
        supervisor = [sys.executable, "-S", "-B", str(self.layout.guest / "supervisor.py")]
        return [*supervisor, "-" if uid is None else str(uid), *launcher]

    def zygote_command(self, socket: int) -> list[str]:
        """Arguments that start a zygote, which makes all sandboxes with a file system of their own."""
        zygote = [self.layout.python, "-S", "-B", str(self.layout.guest / "zygote.py"), str(socket)]
        if self.level == "namespaces":
            return zygote
        user = [] if self.own_users else ["--unshare-user", "--uid", "0", "--gid", "0"]
        rights = ["--unshare-uts", "--die-with-parent", "--cap-add", "ALL"]
        return [self.layout.bubblewrap, *user, *rights, "--dev-bind", "/", "/", "--", *zygote]

    def zygote_setup(self, runs_folder: Path, root: Path) -> dict[str, Any]:
        """What a zygote is told (see `guest/sandbox_fork.py`).

        Args:
            runs_folder: holds the folders of all runs.
            root: a folder to mount on.
        """
        return {
            "enters": self.level == "namespaces",
            "forks": self.forks,
            "own_users": self.own_users,
            "root": str(root),
            "runs": str(runs_folder),
            "inside": self.layout.inside,
            "shown": self.layout.shown,
            "etc": str(self.layout.etc),
            "links": {path: target for target, path in self.layout.links},
            "shm_bytes": _SHM_MB * MIB,
            "tmp_bytes": self.layout.tmp_mb * MIB,
            "inodes": _TMPFS_INODES,
        }
