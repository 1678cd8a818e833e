"""Calls of the Linux kernel that Python's own modules do not have, or only later versions of them.

None releases the interpreter's lock, for after `clone_apart` nobody else is there to give it back.
"""

from __future__ import annotations

import ctypes
import os

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_MOVE = 2, 4, 8, 32, 4096, 8192
MS_REC, MS_PRIVATE = 16384, 1 << 18
MS_RDONLY = 1
_DETACH = 2
_CLONE, _PIVOT_ROOT = {"x86_64": 56, "aarch64": 220}, {"x86_64": 155, "aarch64": 41}
_NEW_CGROUP, _NEW_USER = 0x02000000, 0x10000000
_PARENT, _MOUNT, _UTS, _IPC, _PID, _NET = 0x8000, 0x20000, 0x04000000, 0x08000000, 0x20000000, 0x40000000
_SET_PDEATHSIG, _SET_DUMPABLE, _CAPBSET_DROP, _SET_SECCOMP, _NO_NEW_PRIVS, _AMBIENT = 1, 4, 24, 22, 38, 47
_SIGCHLD, _SIGKILL = 17, 9
_CAPABILITIES_V3 = 0x20080522
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_FS_WRITE, _FS_READ_DIR, _FS_TRUNCATE = 1 << 1, 1 << 3, 1 << 14
_FS_READ = 1 << 0 | 1 << 2 | _FS_READ_DIR
"""Execute and read files, and read folders."""
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2
LANDLOCK_SCOPES = 6
"""The version of Landlock (Linux 6.12) that keeps signals inside."""
USER_CHANGES = 1 << 6 | 1 << 7
"""CAP_SETGID and CAP_SETUID."""

_libc = ctypes.PyDLL(None, use_errno=True)
_long = ctypes.c_long


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


class _LandlockRule(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def clone_apart() -> int:
    """Fork into new namespaces, as a child of this process's parent; 0 in the new process."""
    flags = _PARENT | _MOUNT | _UTS | _IPC | _PID | _NET | _SIGCHLD
    if os.path.exists("/proc/self/ns/cgroup"):
        flags |= _NEW_CGROUP
    number = ctypes.c_long(_CLONE[os.uname().machine])
    return _checked(_libc.syscall(number, ctypes.c_long(flags), *[ctypes.c_long(0)] * 4), "clone")


def own_user_namespace(uid: int) -> None:
    """Become this user in a new user namespace."""
    ids = os.geteuid(), os.getegid()
    _checked(_libc.unshare(_NEW_USER), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {ids[0]} 1"), ("gid_map", f"{uid} {ids[1]} 1")):
        with open(f"/proc/self/{name}", "w") as stream:
            stream.write(text)


def own_mounts() -> None:
    """Have mounts and a host name that no other process sees."""
    _checked(_libc.unshare(_MOUNT | _UTS), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Make a mount, or change one."""
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    done = _libc.mount(*texts[:3], ctypes.c_ulong(flags), texts[3])
    _checked(done, f"mount of {source} on {target}")


def bind_read_only(source: str, target: str) -> None:
    """Show a folder or file at another place too."""
    mount(source, target, None, MS_BIND | MS_REC)
    restrict_mount(target, MS_RDONLY)


def restrict_mount(target: str, flags: int = 0) -> None:
    """Let a mount give no rights and no devices, and what else the flags say."""
    kept = os.statvfs(target).f_flag & MS_NOEXEC  # a user namespace may not take it away
    mount(None, target, None, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | flags | kept)


def change_root(folder: str) -> None:
    """Make a mount the root, and let all others go that are not below it."""
    os.chdir(folder)
    number = ctypes.c_long(_PIVOT_ROOT[os.uname().machine])
    _checked(_libc.syscall(number, b".", b"."), "pivot_root")  # the old root then lies over the new one
    unmount(".")
    os.chdir("/")


def unmount(target: str) -> None:
    """Let a mount go, in use or not."""
    _checked(_libc.umount2(os.fsencode(target), _DETACH), f"umount of {target}")


def die_with_parent() -> None:
    """Be killed when the parent dies."""
    _prctl(_SET_PDEATHSIG, _SIGKILL)


def hide_memory() -> None:
    """Let no process of the same user look into this one."""
    _prctl(_SET_DUMPABLE, 0)


def drop_bounding_set(kept: int = 0) -> None:
    """No program that is started from here on gains capabilities, except those of the mask."""
    number = 0
    while kept >> number & 1 or _libc.prctl(_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1


def keep_capabilities(mask: int) -> None:
    """Give up all others."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0)
    _prctl(_AMBIENT, 4)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0)), "capset")


def load_filter(program: bytes) -> None:
    """Load a seccomp program into this process and all that come from it."""
    _prctl(_NO_NEW_PRIVS, 1)
    _checked(_libc.prctl(_SET_SECCOMP, 2, ctypes.byref(_Program(len(program) // 8, program)), 0, 0), "seccomp")


def landlock_version() -> int:
    """What this kernel's Landlock can do; 0: it has none."""
    return max(0, int(_libc.syscall(_long(_LANDLOCK_CREATE), None, _long(0), _long(1))))


def restrict_with_landlock(version: int, paths: dict[str, list[str]]) -> None:
    """Keep this process and all that come from it to some parts of the file system, and from signalling any other.

    Args:
        version: of Landlock.
        paths: what may be read, what used (devices: read and written), and what may also be made and removed.
    """
    everything = (1 << min(12 + version, 15)) - 1  # 13 rights in the first version, one more in the second and third
    files = everything & (_FS_READ | _FS_WRITE | _FS_TRUNCATE) & ~_FS_READ_DIR
    rights = {"read": _FS_READ, "use": _FS_READ | _FS_WRITE, "change": everything}
    scoped = _SCOPE_SIGNALS | _SCOPE_ABSTRACT_SOCKETS if version >= LANDLOCK_SCOPES else 0
    # Handled: file system, network (the code has none), scopes. A kernel takes no more than the part that it knows.
    attributes = (ctypes.c_uint64 * 3)(everything, 0, scoped)
    size = 8 if version < 4 else 16 if version < LANDLOCK_SCOPES else 24
    rules = _checked(_libc.syscall(_long(_LANDLOCK_CREATE), attributes, _long(size), _long(0)), "landlock")
    for kind, given in paths.items():
        for path in filter(os.path.exists, given):
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = rights[kind] & (everything if os.path.isdir(path) else files)
            rule = _LandlockRule(allowed, fd)
            _checked(_libc.syscall(_long(_LANDLOCK_ADD), _long(rules), _long(1), ctypes.byref(rule), _long(0)), path)
            os.close(fd)
    _prctl(_NO_NEW_PRIVS, 1)
    _checked(_libc.syscall(_long(_LANDLOCK_RESTRICT), _long(rules), _long(0)), "landlock")
    os.close(rules)


def end(code: int) -> None:
    """What C does at the end of a program."""
    _libc.exit(code)


def _prctl(option: int, value: int) -> None:
    _checked(_libc.prctl(option, value, 0, 0, 0), f"prctl {option}")


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
