"""The file system that code sees, mount by mount: what all sandboxes of a zygote share, then what each has of its own.

What is private (`/proc`, `/dev`, `/tmp`) comes first and what is shown of the machine is mounted over it, for an
interpreter may lie anywhere, below `/tmp` too.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from agentrl.services.sandbox.guest import linux_calls
else:
    import linux_calls

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "dev/fd": "/proc/self/fd",
    "dev/stdin": "fd/0",
    "dev/stdout": "fd/1",
    "dev/stderr": "fd/2",
    "dev/ptmx": "pts/ptmx",
}
_READ_ONLY = ("sys", "sysrq-trigger", "irq", "bus")
_PRIVATE = linux_calls.MS_NOSUID | linux_calls.MS_NODEV
_BIND_ALL = linux_calls.MS_BIND | linux_calls.MS_REC


def make_shared(setup: dict[str, Any]) -> None:
    """Change to a root that has only what code may see, and below `inside` the folders of all runs.

    Args:
        setup: see `Isolation.zygote_setup`.
    """
    root = setup["root"]
    linux_calls.mount(None, "/", None, linux_calls.MS_REC | linux_calls.MS_PRIVATE)
    linux_calls.mount("tmpfs", root, "tmpfs", _PRIVATE, "mode=755,size=4m")
    for name in ("proc", "tmp", "dev", "dev/shm", "dev/pts"):
        os.mkdir(f"{root}/{name}")
    # The kernel lets a user namespace mount its own /proc only while it sees a whole one.
    linux_calls.mount("/proc", f"{root}/proc", None, _BIND_ALL)
    for path in (f"/dev/{name}" for name in _DEVICES):
        if os.path.exists(path):
            _make_place(root + path, path)
            linux_calls.mount(path, root + path, None, linux_calls.MS_BIND)
    for source, path in [*((path, path) for path in setup["shown"]), (setup["etc"], "/etc")]:
        _make_place(root + path, source)
        linux_calls.mount(source, root + path, None, _BIND_ALL)
        for point in _mounts_from(root + path):
            linux_calls.restrict_mount(point, linux_calls.MS_RDONLY)
    for path, target in {**_DEVICE_LINKS, **setup["links"]}.items():
        os.symlink(target, f"{root}/{path}")
    os.mkdir(root + setup["inside"])
    linux_calls.mount(setup["runs"], root + setup["inside"], None, linux_calls.MS_BIND)
    linux_calls.change_root(root)
    linux_calls.restrict_mount("/", linux_calls.MS_RDONLY)


def make_own(setup: dict[str, Any], name: str) -> None:
    """In namespaces of its own, mount what one sandbox has for itself and unmount what belongs to others."""
    # The zygote sees the folders of all runs below `inside`. The sandbox must see only its own there: it is bound aside
    # to /dev/shm, all of `inside` is unmounted, and the one folder is moved to its place.
    inside = setup["inside"]
    linux_calls.mount(f"{inside}/{name}/work", "/dev/shm", None, linux_calls.MS_BIND)
    linux_calls.unmount(inside)
    linux_calls.mount("/dev/shm", inside, None, linux_calls.MS_MOVE)
    linux_calls.restrict_mount(inside)
    covered = [(path, os.open(path, os.O_PATH)) for path in setup["shown"] if path.startswith(("/tmp/", "/dev/shm/"))]
    linux_calls.mount("proc", "/proc", "proc", _PRIVATE | linux_calls.MS_NOEXEC)
    for part in _READ_ONLY:
        if os.path.exists(f"/proc/{part}"):
            linux_calls.bind_read_only(f"/proc/{part}", f"/proc/{part}")
    options = "newinstance,ptmxmode=0666,mode=620"
    linux_calls.mount("devpts", "/dev/pts", "devpts", linux_calls.MS_NOSUID | linux_calls.MS_NOEXEC, options)
    for folder, size in (("/dev/shm", setup["shm_bytes"]), ("/tmp", setup["tmp_bytes"])):
        linux_calls.mount("tmpfs", folder, "tmpfs", _PRIVATE, f"mode=1777,size={size},nr_inodes={setup['inodes']}")
    for path, fd in covered:  # an interpreter below /tmp was just hidden by the new /tmp: show it again
        _make_place(path, f"/proc/self/fd/{fd}")
        linux_calls.bind_read_only(f"/proc/self/fd/{fd}", path)
        os.close(fd)


def _make_place(path: str, source: str) -> None:
    """Make an empty folder or file, as the source is one, to mount it on."""
    if os.path.isdir(source):
        os.makedirs(path, 0o755, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def _mounts_from(path: str) -> Iterator[str]:
    """A mount and, where this process may look, those below it: each is read-only for itself."""
    with open("/proc/self/mountinfo") as stream:
        # "36 35 98:0 /from /a\\040b rw,noatime - ext3 …" is mounted on "/a b"
        places = [re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), line.split()[4]) for line in stream]
    yield path
    yield from (place for place in places if place.startswith(f"{path}/") and os.access(place, os.F_OK))
