"""The system calls that sandboxed code may not make, as a program for the kernel's seccomp filter.

What is refused: new namespaces and mounts (most ways out of a sandbox begin there), keys, tracing of other processes,
kernel modules, io_uring, memory that belongs to no process (memfd, System V) and so to no limit, and sockets of
families that no network namespace holds back (vsock reaches the host of a virtual machine). Refused calls fail with an
error; nothing is killed for trying.
"""

from __future__ import annotations

import errno
import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_NEW_NAMESPACES = 0x7E020000
_X32 = 0x40000000
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_CLONE3 = 435
_SAME_EVERYWHERE = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "memfd_secret": 447,
}
_REFUSED = {
    "x86_64": {
        "shmget": 29,
        "semget": 64,
        "msgget": 68,
        "ptrace": 101,
        "syslog": 103,
        "pivot_root": 155,
        "adjtimex": 159,
        "chroot": 161,
        "acct": 163,
        "settimeofday": 164,
        "mount": 165,
        "umount2": 166,
        "swapon": 167,
        "swapoff": 168,
        "reboot": 169,
        "sethostname": 170,
        "setdomainname": 171,
        "iopl": 172,
        "ioperm": 173,
        "init_module": 175,
        "delete_module": 176,
        "quotactl": 179,
        "clock_settime": 227,
        "kexec_load": 246,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "unshare": 272,
        "perf_event_open": 298,
        "name_to_handle_at": 303,
        "open_by_handle_at": 304,
        "clock_adjtime": 305,
        "setns": 308,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "finit_module": 313,
        "memfd_create": 319,
        "kexec_file_load": 320,
        "bpf": 321,
        "userfaultfd": 323,
    },
    "aarch64": {
        "umount2": 39,
        "mount": 40,
        "pivot_root": 41,
        "chroot": 51,
        "quotactl": 60,
        "acct": 89,
        "unshare": 97,
        "kexec_load": 104,
        "init_module": 105,
        "delete_module": 106,
        "clock_settime": 112,
        "syslog": 116,
        "ptrace": 117,
        "reboot": 142,
        "sethostname": 161,
        "setdomainname": 162,
        "settimeofday": 170,
        "adjtimex": 171,
        "msgget": 186,
        "semget": 190,
        "shmget": 194,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "swapon": 224,
        "swapoff": 225,
        "perf_event_open": 241,
        "name_to_handle_at": 264,
        "open_by_handle_at": 265,
        "clock_adjtime": 266,
        "setns": 268,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "finit_module": 273,
        "memfd_create": 279,
        "bpf": 280,
        "userfaultfd": 282,
        "kexec_file_load": 294,
    },
}


def seccomp_program(network_is_apart: bool, machine: str | None = None) -> bytes | None:
    """The filter in the kernel's binary form.

    Args:
        network_is_apart: the code runs in a network namespace of its own; else it gets no internet socket at all.
        machine: architecture; None: this one.

    Returns:
        The program; None for an architecture whose call numbers are not known here.
    """
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        return None
    families = (_UNIX, _INET, _INET6, _NETLINK) if network_is_apart else (_UNIX,)
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        *((_EQUAL, 1, 0, _ARCHITECTURES[machine]), _fail(errno.EPERM)),
        (_LOAD, 0, 0, _NUMBER),
        *((_AT_LEAST, 0, 1, _X32), _fail(errno.EPERM)),
        *((_EQUAL, 0, 1, _CLONE3), _fail(errno.ENOSYS)),  # its flags are out of a filter's sight; libc takes clone
    ]
    for number in sorted({**_SAME_EVERYWHERE, **_REFUSED[machine]}.values()):
        code += [(_EQUAL, 0, 1, number), _fail(errno.EPERM)]
    code += [
        (_EQUAL, 0, 4, _CLONE[machine]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        *((_ANY_BIT, 0, 1, _NEW_NAMESPACES), _fail(errno.EPERM)),
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, len(families) + 2, _SOCKET[machine]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        *((_EQUAL, len(families) - place, 0, family) for place, family in enumerate(families)),
        _fail(errno.EAFNOSUPPORT if network_is_apart else errno.EACCES),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _fail(error: int) -> tuple[int, int, int, int]:
    return _RETURN, 0, 0, _FAIL | error
