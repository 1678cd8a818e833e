"""What the filter of system calls lets through, at every level."""

from __future__ import annotations

import errno
import platform

import pytest
from needs import needs_filter
from sandbox_service import Server

from agentrl.services.sandbox.seccomp import SeccompFilters, libseccomp

CALL = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    return result if result >= 0 else os.strerror(ctypes.get_errno())
"""
REFUSED = (
    *("mount", "umount2", "unshare", "setns", "pivot_root", "chroot", "ptrace", "process_vm_readv", "bpf", "keyctl"),
    *("add_key", "request_key", "perf_event_open", "userfaultfd", "memfd_create", "memfd_secret", "open_by_handle_at"),
    *("name_to_handle_at", "quotactl", "quotactl_fd", "process_madvise", "vmsplice", "pidfd_getfd", "init_module"),
    *("kexec_load", "reboot", "swapon", "settimeofday", "shmget", "semget", "msgget", "fsopen", "open_tree"),
)
UNKNOWN = ("io_uring_setup", "io_uring_enter", "clone3", "mq_open", "inotify_init1", "fanotify_init", "lookup_dcookie")


def numbers(*names: str) -> dict[str, int]:
    library = libseccomp()
    assert library is not None
    found = {name: library.resolve_syscall(library.Arch.NATIVE, name) for name in names}
    return {name: number for name, number in found.items() if number >= 0}


def test_calls_that_are_not_allowed(server: Server) -> None:
    needs_filter()
    refused, unknown = numbers(*REFUSED), {**numbers(*UNKNOWN), "the future": 4000}
    code = f"{CALL}print([call(n, *[0] * 6) for n in {[*refused.values(), *unknown.values()]}])"
    told = eval(server.python(code)["stdout"])
    not_permitted, not_there = "Operation not permitted", "Function not implemented"
    wanted = {**dict.fromkeys(refused, not_permitted), **dict.fromkeys(unknown, not_there)}
    assert dict(zip(wanted, told, strict=True)) == wanted


def test_arguments_in_the_upper_half_of_a_register(server: Server) -> None:
    """The kernel reads 32 bits of these, so 1 << 32 and more must not hide them from the filter."""
    needs_filter()
    found = numbers("fcntl", "setsockopt", "socket", "clone", "kill")
    code = f"""{CALL}
read, write = os.pipe()
a, b = socket.socketpair()
value = ctypes.c_int(8 << 20)
at = ctypes.addressof(value)
for high in (0, 1 << 32):
    print(call({found["fcntl"]}, write, high | 1031, 1 << 20))
    print(call({found["setsockopt"]}, a.fileno(), high | 1, 7, at, 4))
    print(call({found["setsockopt"]}, a.fileno(), 1, high | 8, at, 4))
    print(call({found["socket"]}, high | 40, 1, 0))
for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
    print(call({found["clone"]}, flag | 17, 0, 0, 0, 0))
print(a.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < 1 << 20)
print("end")
"""
    lines = server.python(code)["stdout"].splitlines()
    assert lines[-2:] == ["True", "end"]
    assert len(lines) == 17
    assert not [line for line in lines[:-2] if line.lstrip("-").isdigit()]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86_64 has another architecture's calls")
def test_calls_of_another_architecture(server: Server) -> None:
    """`int 0x80` takes the numbers of 32-bit programs: 20 is getpid there and writev here."""
    code = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20; int 0x80; ret
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())
"""
    assert server.python(code)["stdout"] == f"-{errno.EPERM}\n"


def test_a_language_may_have_calls_of_its_own() -> None:
    needs_filter()
    filters = SeccompFilters(network_is_apart=True)
    assert filters.of("nodejs") != filters.of("python") != filters.of("bash")
    assert filters.of("perl") is filters.of("bash")
