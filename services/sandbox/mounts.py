"""Builds the file system that a sandbox sees, by options of bubblewrap or by a shell script.

What is private (`/proc`, `/dev`, `/tmp`) comes first and what is shown of the machine is mounted over it, for an
interpreter may lie anywhere, below `/tmp` too.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from agentrl.services.sandbox.filesystem_layout import FilesystemLayout, parents
from agentrl.services.sandbox.run_limits import MIB

ADMIN_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
SHM_MB = 64
TMPFS_INODES = 16_384
"""Files that a private folder in memory can hold: an empty one takes a kilobyte that no size counts."""


def bubblewrap_mounts(layout: FilesystemLayout, work: Path, own_proc: bool = True) -> list[str]:
    """Options of `bwrap`.

    Args:
        layout: what the code sees.
        work: what is at the place of the run's folder.
        own_proc: show the processes of the new namespace; else what the machine's own /proc shows.
    """
    options = [
        *(("--proc", "/proc") if own_proc else ("--dev-bind", "/proc", "/proc")),
        *("--dev", "/dev"),
        *("--perms", "1777", "--size", str(SHM_MB * MIB), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *("--perms", "1777", "--size", str(layout.tmp_mb * MIB), "--tmpfs", "/tmp"),
    ]
    for folder in parents(layout.shown):  # made by itself, bubblewrap would close some to others
        options += ["--dir", folder]
    for path in layout.shown:
        options += ["--ro-bind", path, path]
    for target, path in layout.links:
        options += ["--symlink", target, path]
    options += ["--ro-bind", str(layout.etc), "/etc"]
    return [*options, "--bind", str(work), layout.inside, "--remount-ro", "/", "--chdir", "/"]


def mount_script(layout: FilesystemLayout, folder: Path, work: Path, passed: int, apart: bool = True) -> str:
    """A shell script that builds the same file system inside new namespaces and runs its arguments there.

    Args:
        layout: what the code sees.
        folder: where there is a folder `root` to mount on.
        work: what is at the place of the run's folder.
        passed: the descriptor for the program that it runs.
        apart: the pid and network namespaces are new ones: /proc shows the former, the latter's loopback device is
            brought up. Else /proc is the machine's own.
    """
    spare = 3 if passed != 3 else 4
    root = shlex.quote(str(folder / "root"))
    lines = [
        "set -e",
        "umask 022",
        *([shlex.join([layout.python, "-S", "-B", str(layout.guest / "loopback.py")])] if apart else ()),
        f"mount -t tmpfs -o mode=755,size=4m none {root}",
        f"cd {root}",
        "mkdir -p proc dev tmp old",
        "mount -t proc proc proc" if apart else "mount --rbind /proc proc",
    ]
    for name in _DEVICES:
        lines += [f": > dev/{name}", f"mount --bind /dev/{name} dev/{name}"]
    lines += [
        *("ln -s /proc/self/fd dev/fd", "ln -s fd/0 dev/stdin", "ln -s fd/1 dev/stdout", "ln -s fd/2 dev/stderr"),
        "mkdir dev/shm dev/pts",
        "ln -s pts/ptmx dev/ptmx",
        "mount -t devpts -o nosuid,noexec,newinstance,ptmxmode=0666,mode=620 none dev/pts",
        f"mount -t tmpfs -o mode=1777,size={SHM_MB}m,nr_inodes={TMPFS_INODES} none dev/shm",
        f"mount -t tmpfs -o mode=1777,size={layout.tmp_mb}m,nr_inodes={TMPFS_INODES} none tmp",
    ]
    for path in layout.shown:
        lines += _bind(path, path)
    lines += _bind(str(layout.etc), "/etc")
    lines += [f"ln -s {shlex.quote(target)} .{shlex.quote(path)}" for target, path in layout.links]
    lines += [
        f"mkdir -p .{layout.inside}",
        f"mount --bind {shlex.quote(str(work))} .{layout.inside}",
        f"{shutil.which('pivot_root', path=ADMIN_PATH)} . old",
        "cd /",
        "umount -l old",
        "rmdir old",
        "mount -o remount,bind,ro /",  # without `bind`, mount names the owner, unknown in a user namespace
        "unset OLDPWD",
        f"exec {spare}>&2 2>/dev/null",  # the shell itself would say how the program ended
        f'(exec "$@" 2>&{spare} {spare}>&-)',
        "exit",
    ]
    return "\n".join(lines)


def _bind(source: str, path: str) -> list[str]:
    is_folder, parent = os.path.isdir(source), f".{shlex.quote(os.path.dirname(path))}"
    source, path = shlex.quote(source), f".{shlex.quote(path)}"
    make = f"mkdir -p {path}" if is_folder else f"mkdir -p {parent}; : > {path}"
    return [make, f"mount --rbind {source} {path}", f"mount -o remount,bind,ro {path}"]
