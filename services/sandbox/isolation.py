"""How code is isolated from the machine: three levels, strongest first (`isolation_choice` finds those that work)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.services.sandbox.filesystem_layout import FilesystemLayout
from agentrl.services.sandbox.guest.supervisor import SHARED
from agentrl.services.sandbox.memory_cgroup import MemoryCgroups
from agentrl.services.sandbox.mounts import SHM_MB, TMPFS_INODES, bubblewrap_mounts, mount_script
from agentrl.services.sandbox.run_limits import MIB
from agentrl.services.sandbox.seccomp import SeccompFilters

LEVELS = ("bubblewrap", "namespaces", "rlimits")
"""Strongest first."""


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
    """Sandboxes are forked from interpreters that are up (see `zygote_pool`), else each is started anew."""

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

    def command(self, folder: Path, uid: int | None, control: int) -> list[str]:
        """Arguments that start the launcher in a sandbox around `folder`."""
        launcher = [self.layout.python, "-S", "-B", str(self.layout.guest / "launcher.py"), str(control)]
        if self.level == "bubblewrap":
            return [*self._bubblewrap(folder), "--", *launcher]
        if self.level == "namespaces":
            return [*self._unshare(folder, control), *launcher]
        supervisor = [
            sys.executable,
            "-S",
            "-B",
            str(self.layout.guest / "supervisor.py"),
            "-" if uid is None else str(uid),
        ]
        return [*supervisor, *launcher]

    def zygote_command(self, runs_folder: Path, socket: int) -> list[str]:
        """Arguments that start a zygote, which makes the sandboxes of all folders below `runs_folder`."""
        zygote = [self.layout.python, "-S", "-B", str(self.layout.guest / "zygote.py"), str(socket)]
        if self.level == "namespaces":
            user = [] if self.own_users else ["--user", "--map-root-user"]
            script = mount_script(self.layout, runs_folder, runs_folder, socket, apart=False)
            return ["unshare", *user, "--mount", "--uts", "/bin/sh", "-c", script, "sandbox", *zygote]
        user = [] if self.own_users else ["--unshare-user", "--uid", "0", "--gid", "0"]
        return [
            *(self.layout.bubblewrap, *user, "--unshare-uts", "--hostname", "sandbox", "--die-with-parent"),
            *("--cap-add", "ALL", *bubblewrap_mounts(self.layout, runs_folder, own_proc=False), "--", *zygote),
        ]

    def zygote_setup(self) -> dict[str, Any]:
        """What a zygote is told (see `guest/sandbox_fork.py`)."""
        return {
            "inside": self.layout.inside,
            "shown": self.layout.shown,
            "own_users": self.own_users,
            "shm_bytes": SHM_MB * MIB,
            "tmp_bytes": self.layout.tmp_mb * MIB,
            "inodes": TMPFS_INODES,
        }

    def _bubblewrap(self, folder: Path) -> list[str]:
        users = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        if not self.own_users:
            users = ["--unshare-user", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"]
        return [
            *(self.layout.bubblewrap, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
            *("--unshare-cgroup-try", "--hostname", "sandbox", "--die-with-parent", "--new-session", *users),
            *bubblewrap_mounts(self.layout, folder / "work"),
        ]

    def _unshare(self, folder: Path, control: int) -> list[str]:
        shell = ["/bin/sh", "-c", mount_script(self.layout, folder, folder / "work", control), "sandbox"]
        names = ["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]
        if self.own_users:
            return ["unshare", *names, *shell]
        drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        return ["unshare", "--user", "--map-root-user", *names, *shell, *drop]
