"""The part of this machine that sandboxed code sees: the system and the interpreters, read-only, nothing else."""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import UserInputError

GUEST = Path(__file__).resolve().parent / "guest"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "ssl/certs", "mime.types", "java-*")
_INSTALLED = ("bin", "lib", "lib32", "lib64", "libexec", "include", "share", "ssl", "pyvenv.cfg")
"""Parts of an interpreter's folder that belong to it. A virtual environment can lie in the middle of a project."""
_HARMLESS = {*_INSTALLED, ".gitignore", "CACHEDIR.TAG", "man", "__pycache__"}
"""A folder that has nothing else is shown as one: each mount costs time in every start."""
_PACKAGES = ("site-packages", "dist-packages")
_MAX_LINKS = 40
_ASK = "import json, sys; print(json.dumps([sys.executable, sys.prefix, sys.base_prefix, sys.path]))"


@dataclass(frozen=True, slots=True)
class FilesystemLayout:
    """Paths shown to the code, all read-only.

    Attributes:
        python: the interpreter.
        python_path: its module search path.
        shown: folders and files of the machine, none below another.
        links: symbolic links to make, by path.
        inside: the run's folder as the code sees it, where it has a file system of its own.
        guest: the programs that run inside.
        etc: shown as /etc.
        path: value of PATH.
        bubblewrap: the program.
        tmp_mb: size of /tmp.
    """

    python: str
    python_path: tuple[str, ...]
    shown: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    inside: str
    guest: Path
    etc: Path
    path: str
    bubblewrap: str
    tmp_mb: int


def make_layout(folder: Path, python: str, uids: range, tmp_mb: int, guest: Path = GUEST) -> FilesystemLayout:
    """Look around on this machine.

    Args:
        folder: the server's own folder.
        python: interpreter of Python code.
        uids: user numbers that runs may have.
        tmp_mb: size of /tmp.
        guest: the programs that run inside.

    Raises:
        UserInputError: the interpreter does not run.
    """
    executable, prefix, base, search = _ask(python)
    etc = _make_etc(folder / "etc", uids)
    links = {path: os.readlink(path) for path in _SYSTEM if os.path.islink(path)}
    system = [path for path in _SYSTEM if os.path.isdir(path) and path not in links]
    own = [*_parts_of(prefix), *_parts_of(base)]
    # What an editable install adds to the path is source code of this machine, not a package for the sandbox.
    search = [
        path for path in search if os.path.basename(path) in _PACKAGES or _is_below_any(path, [*own, *system, *links])
    ]
    shown = _outermost([*system, *own, executable, *search, str(guest)], links)
    taken = [path for path in shown if path.startswith("/sandbox")]
    return FilesystemLayout(
        python=executable,
        python_path=tuple(search),
        shown=shown,
        links=tuple((target, path) for path, target in links.items()),
        inside="/sandbox" if not taken else "/sandbox-of-this-run",
        guest=guest,
        etc=etc,
        path=":".join(dict.fromkeys((os.path.dirname(executable), "/usr/local/bin", "/usr/bin", "/bin"))),
        bubblewrap=shutil.which("bwrap") or "bwrap",
        tmp_mb=tmp_mb,
    )


def closed_folder(layout: FilesystemLayout, whole_path: bool) -> str | None:
    """The first folder on the way to the interpreter and its modules that other users may not enter; None: none.

    Args:
        layout: what the code sees.
        whole_path: the code sees the machine's own file system; else only what is shown of it, which starts anew.
    """
    for path in map(os.path.realpath, (layout.python, *filter(os.path.isdir, layout.python_path))):
        for part in reversed([path, *map(str, Path(path).parents)]):
            if (whole_path or _is_below_any(part, layout.shown)) and not os.stat(part).st_mode & 0o001:
                return part
    return None


def is_shown(path: str, layout: FilesystemLayout) -> bool:
    """Whether the code can reach a path, including every place to which its symbolic links lead."""
    seen = [*layout.shown, *(link for _, link in layout.links), "/etc/alternatives"]
    return all(_is_below_any(hop, seen) for hop in _hops(path))


def parents(paths: Iterable[str]) -> list[str]:
    """The folders above the paths, outermost first."""
    return sorted({str(parent) for path in paths for parent in Path(path).parents if str(parent) != "/"})


def _make_etc(folder: Path, uids: range) -> Path:
    """A copy of what programs need of /etc, with users of its own: one folder is mounted faster than many."""
    for source in (path for name in _ETC for path in glob.glob(f"/etc/{name}")):
        target = folder / os.path.relpath(source, "/etc")
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # what this user may not read; shutil.Error is one too
            if os.path.isdir(source) and not os.path.islink(source):
                shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy(source, target, follow_symlinks=False)
    lines = ["root:x:0:0:root:/:/bin/sh", *(f"sandbox:x:{uid}:{uid}:sandbox:/sandbox:/bin/sh" for uid in (1000, *uids))]
    folder.mkdir(exist_ok=True)
    written = {"passwd": "\n".join(lines), "hosts": "127.0.0.1 localhost sandbox", "nsswitch.conf": "hosts: files"}
    for name, text in written.items():
        (folder / name).write_text(f"{text}\n", encoding="utf-8")
    for made in (folder, *map(folder.joinpath, (*written, "ssl"))):  # whatever the umask is
        if made.exists():
            made.chmod(0o755 if made.is_dir() else 0o644)
    return folder


def _parts_of(prefix: str) -> list[str]:
    if {*os.listdir(prefix)} <= _HARMLESS:
        return [prefix]
    return [f"{prefix.rstrip('/')}/{part}" for part in _INSTALLED]


def _outermost(wanted: Iterable[str], links: Iterable[str]) -> tuple[str, ...]:
    """The paths that exist and are not below another, and the places to which their symbolic links lead."""
    found: list[str] = []
    for path in itertools.chain.from_iterable(map(_hops, wanted)):
        if os.path.exists(path) and not _is_below_any(path, [*found, *links]):
            found = [other for other in found if not _is_below(other, path)] + [path]
    return tuple(found)


def _hops(path: str) -> Iterator[str]:
    """A path and, link by link, where its symbolic links lead: a lookup passes through all of them."""
    path = os.path.abspath(path)
    for _ in range(_MAX_LINKS):
        yield path
        link = next((part for part in [*parents([path]), path] if os.path.islink(part)), None)
        if link is None:
            return
        path = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link), os.path.relpath(path, link)))


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_below_any(path: str, folders: Iterable[str]) -> bool:
    return any(_is_below(path, folder) for folder in folders)


def _ask(python: str) -> tuple[str, str, str, list[str]]:
    found = shutil.which(python)
    if found is None:
        raise UserInputError(f"--python: got {python!r}, wanted a Python interpreter that can be run")
    try:
        answer = subprocess.run([found, "-c", _ASK], capture_output=True, text=True, timeout=30, check=True, cwd="/")
        executable, prefix, base, search = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UserInputError(f"--python: {python!r} does not run: {error}") from error
    return executable, prefix, base, [path for path in search if os.path.isabs(path)]
