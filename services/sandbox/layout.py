"""What of this machine sandboxed code sees: the system and the interpreters, read-only, and nothing else."""

from __future__ import annotations

import glob
import json
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import UserInputError
from agentrl.services.sandbox.limits import MIB

GUEST = Path(__file__).parent / "guest"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "ssl/certs", "mime.types", "java-*")
_DEVICES = ("null", "zero", "full", "random", "urandom")
ADMIN_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
_SHM_MB = 64
_ASK = "import json, sys; print(json.dumps([sys.executable, sys.prefix, sys.base_prefix, sys.path[1:]]))"


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths shown to the code, all read-only.

    Attributes:
        python: the interpreter.
        python_path: its module search path.
        shown: folders and files of the machine.
        links: symbolic links to make, by path.
        users_file: shown as /etc/passwd.
        path: value of PATH.
        bubblewrap: the program.
        tmp_mb: size of /tmp.
    """

    python: str
    python_path: tuple[str, ...]
    shown: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    users_file: Path
    path: str
    bubblewrap: str
    tmp_mb: int


def make_layout(home: Path, python: str, uids: range, tmp_mb: int) -> Layout:
    """Look around on this machine.

    Args:
        home: the server's own folder.
        python: interpreter of Python code.
        uids: user numbers that runs may have.
        tmp_mb: size of /tmp.

    Raises:
        UserInputError: the interpreter does not run.
    """
    executable, prefix, base, search = _ask(python)
    users = home / "passwd"
    users.write_text(
        "root:x:0:0:root:/:/bin/sh\n"
        + "".join(f"sandbox:x:{uid}:{uid}:sandbox:/sandbox:/bin/sh\n" for uid in (1000, *uids)),
        encoding="utf-8",
    )
    folders = [path for path in _SYSTEM if os.path.isdir(path) and not os.path.islink(path)]
    links = [(os.readlink(path), path) for path in _SYSTEM if os.path.islink(path)]
    wanted = [
        *(path for name in _ETC for path in glob.glob(f"/etc/{name}")),
        *(prefix, base, executable, os.path.realpath(executable), *search, str(GUEST)),
    ]
    for path in wanted:
        if os.path.exists(path) and not any(_is_below(path, other) for other in folders):
            folders = [other for other in folders if not _is_below(other, path)] + [path]
    binaries = dict.fromkeys((os.path.dirname(executable), "/usr/local/bin", "/usr/bin", "/bin"))
    return Layout(
        python=executable,
        python_path=tuple(search),
        shown=tuple(folders),
        links=tuple(links),
        users_file=users,
        path=":".join(binaries),
        bubblewrap=shutil.which("bwrap") or "bwrap",
        tmp_mb=tmp_mb,
    )


def bubblewrap_mounts(layout: Layout, work: Path, inside: str) -> list[str]:
    """Options of `bwrap` that build the file system."""
    options = [*_parents([*layout.shown, "/etc/passwd"])]
    for path in layout.shown:
        options += ["--ro-bind", path, path]
    for target, path in layout.links:
        options += ["--symlink", target, path]
    return [
        *options,
        *("--ro-bind", str(layout.users_file), "/etc/passwd"),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--perms", "1777", "--size", str(_SHM_MB * MIB), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *("--perms", "1777", "--size", str(layout.tmp_mb * MIB), "--tmpfs", "/tmp"),
        *("--bind", str(work), inside, "--remount-ro", "/", "--chdir", "/"),
    ]


def mount_script(layout: Layout, folder: Path, inside: str) -> str:
    """A shell script that builds the same file system inside new namespaces and runs its arguments there."""
    root = shlex.quote(str(folder / "root"))
    lines = ["set -e", f"mount -t tmpfs -o mode=755,size=4m none {root}", f"cd {root}"]
    for path in layout.shown:
        lines += _bind(path, path)
    lines += _bind(str(layout.users_file), "/etc/passwd")
    lines += [f"ln -s {shlex.quote(target)} .{shlex.quote(path)}" for target, path in layout.links]
    lines += ["mkdir -p proc dev tmp old", "mount -t proc proc proc"]
    for name in _DEVICES:
        lines += [f": > dev/{name}", f"mount --bind /dev/{name} dev/{name}"]
    lines += [
        "ln -s /proc/self/fd dev/fd",
        "mkdir dev/shm",
        f"mount -t tmpfs -o mode=1777,size={_SHM_MB}m none dev/shm",
        f"mount -t tmpfs -o mode=1777,size={layout.tmp_mb}m none tmp",
        f"mkdir -p .{inside}",
        f"mount --bind {shlex.quote(str(folder / 'work'))} .{inside}",
        f"{shutil.which('pivot_root', path=ADMIN_PATH)} . old",
        "cd /",
        "umount -l old",
        "rmdir old",
        "mount -o remount,ro /",
        "unset OLDPWD",
        '"$@"',
    ]
    return "\n".join(lines)


def _bind(source: str, path: str) -> list[str]:
    is_folder, parent = os.path.isdir(source), f".{shlex.quote(os.path.dirname(path))}"
    source, path = shlex.quote(source), f".{shlex.quote(path)}"
    make = f"mkdir -p {path}" if is_folder else f"mkdir -p {parent}; : > {path}"
    return [make, f"mount --rbind {source} {path}", f"mount -o remount,bind,ro {path}"]


def _parents(paths: list[str]) -> list[str]:
    """Make the folders above the paths, readable: bubblewrap copies the permissions of the machine's."""
    parents = {str(parent) for path in paths for parent in Path(path).parents if str(parent) != "/"}
    shown = set(paths)
    return [
        option
        for parent in sorted(parents)
        if not any(_is_below(parent, path) for path in shown)
        for option in ("--dir", parent)
    ]


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _ask(python: str) -> tuple[str, str, str, list[str]]:
    found = shutil.which(python)
    if found is None:
        raise UserInputError(f"--python: got {python!r}, wanted a Python interpreter that can be run")
    try:
        answer = subprocess.run([found, "-c", _ASK], capture_output=True, text=True, timeout=30, check=True, cwd="/")
        executable, prefix, base, search = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UserInputError(f"--python: {python!r} does not run: {error}") from error
    # What an editable install adds to the path is source code of this machine, not a package for the sandbox.
    kept = [path for path in search if _is_below(path, prefix) or _is_below(path, base) or _is_below(path, "/usr")]
    return executable, prefix, base, kept
