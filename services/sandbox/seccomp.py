"""The system calls that sandboxed code may make, as a program for the kernel's seccomp filter.

What the runtimes of the languages need is allowed, by name. What is known to be of use against a sandbox fails with
EPERM: namespaces and mounts (most ways out begin there), keys, tracing of other processes, kernel modules, memory that
belongs to no process (memfd, System V) and so to no limit. Any other call, one that a later kernel adds included, fails
with ENOSYS, as on a kernel without it: runtimes then take another way. Nothing is killed for trying.

libseccomp makes the program, once per server; the launcher loads it in the moment before code runs.
"""

from __future__ import annotations

import errno
import tempfile
from types import ModuleType
from typing import Any

from agentrl.errors import UserInputError

PYTHON = "python"
INSTALL = "libseccomp not found (Debian: apt-get install libseccomp2; then pip install pyseccomp)"
_Rule = tuple[int, str, list[Any]]
"""Action, call and what its arguments must be."""
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_NEW_NAMESPACES = 0x7E020000
_INT_MAX = 0x7FFFFFFF
_EVERY_BIT = (1 << 64) - 1

_FILES = """
access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 fadvise64 fallocate
fchdir fchmod fchmodat fchmodat2 fchown fchownat fdatasync fgetxattr flistxattr flock fremovexattr fsetxattr fstat
fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr ioctl lchown lgetxattr link linkat listxattr
llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat mknod mknodat newfstatat open openat openat2 pread64 preadv
preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv removexattr rename renameat renameat2 rmdir
sendfile setxattr stat statfs statx symlink symlinkat sync sync_file_range syncfs truncate umask unlink unlinkat utime
utimensat utimes write writev
"""
_MEMORY = "brk madvise mincore mlock mlock2 mlockall mmap mprotect mremap msync munlock munlockall munmap"
_PROCESSES = """
arch_prctl capget capset execve execveat exit exit_group fork futex futex_waitv get_robust_list get_thread_area getcpu
getegid geteuid getgid getgroups getpgid getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage
getsid gettid getuid ioprio_get membarrier pidfd_open prctl restart_syscall rseq sched_get_priority_max
sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
sched_yield set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setpgid setregid
setresgid setresuid setreuid setrlimit setsid setuid sysinfo times uname vfork wait4 waitid
"""
_SIGNALS = """
alarm getitimer pause pidfd_send_signal rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo setitimer sigaltstack signalfd signalfd4 tgkill tkill
"""
_TIME = """
clock_getres clock_gettime clock_nanosleep gettimeofday nanosleep time timer_create timer_delete timer_getoverrun
timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime
"""
_WAITING = """
epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2
poll ppoll pselect6 select
"""
_PIPES_AND_SOCKETS = """
accept accept4 bind getpeername getsockname getsockopt listen pipe pipe2 recvfrom recvmmsg recvmsg sendmmsg sendmsg
sendto shutdown splice tee
"""
_DRAWING = "getrandom"
_ALLOWED = " ".join((_FILES, _MEMORY, _PROCESSES, _SIGNALS, _TIME, _WAITING, _PIPES_AND_SOCKETS, _DRAWING)).split()

_JIT = ("pkey_alloc", "pkey_free", "pkey_mprotect")
_NUMA = ("get_mempolicy", "mbind", "set_mempolicy")
_OF_LANGUAGE = {PYTHON: _NUMA, "nodejs": _JIT, "java": (*_JIT, *_NUMA), "julia": _NUMA, "R": _NUMA, "go": _NUMA}
"""What one runtime uses beyond the others, always with another way where it fails: a program may start any other."""

_NOT_PERMITTED = """
acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module finit_module fsconfig fsmount fsopen fspick
init_module ioperm iopl kexec_file_load kexec_load keyctl memfd_create memfd_secret mount mount_setattr move_mount
msgget name_to_handle_at open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root process_madvise
process_vm_readv process_vm_writev ptrace quotactl quotactl_fd reboot request_key semget setdomainname sethostname
setns settimeofday shmget swapoff swapon syslog umount umount2 unshare userfaultfd vmsplice
"""

_FCNTL = (*range(39), 1024, 1025, 1026, 1030, 1032, 1034)
"""Commands without F_SETPIPE_SZ, which makes a pipe hold megabytes."""
_SET_PIPE_SIZE = 1031
_SOL_SOCKET = 1
_OTHER_LEVELS = (0, 6, 17, 41, 58, 270)
"""IP, TCP, UDP, IPv6, ICMPv6, netlink."""
_BUFFER_SIZES = (7, 8, 32, 33)
"""SO_SNDBUF, SO_RCVBUF and their FORCE variants, which make a socket hold megabytes."""
_OPTIONS = ((0, 4), (4, 2), (6, 1), (9, 1), (10, 2), (12, 4), (16, 16), (34, 2), (36, 4), (40, 8), (48, 16), (64, 8))
"""0 to 71 without the former, as first ones and numbers; a number that is a power of two makes one comparison."""
_OF_OTHERS = ("prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler")
"""Change the process that the first argument names; 0 is the caller."""


class SeccompFilters:
    """The filter of each language.

    Args:
        network_is_apart: the code runs in a network namespace of its own; else it gets no internet socket at all.
        alone: the code can name no process of its user but its own. Else it may not change others, nor connect to
            sockets in files, behind which other programs of the user listen.
        scoped: something else keeps the code from signalling processes that are not its own.

    Raises:
        UserInputError: libseccomp or its Python package is missing.
    """

    def __init__(self, network_is_apart: bool, alone: bool = True, scoped: bool = True) -> None:
        if (module := libseccomp()) is None:
            raise UserInputError(INSTALL)
        self._lib = module
        self._rules = self._rules_by_argument(network_is_apart, alone, scoped)
        self._made: dict[tuple[str, ...], bytes] = {}

    def of(self, language: str) -> bytes:
        """The filter of a language, in the kernel's binary form."""
        extra = _OF_LANGUAGE.get(language, ())
        if extra not in self._made:
            self._made[extra] = self._make(extra)
        return self._made[extra]

    def _make(self, extra: tuple[str, ...]) -> bytes:
        lib, refused = self._lib, self._lib.ERRNO(errno.EPERM)
        made = lib.SyscallFilter(lib.ERRNO(errno.ENOSYS))
        made.set_attr(lib.Attr.ACT_BADARCH, refused)  # such as 32-bit calls on a 64-bit machine
        made.set_attr(lib.Attr.CTL_OPTIMIZE, 2)  # a search tree instead of a list
        rules: list[_Rule] = [(lib.ALLOW, name, []) for name in (*_ALLOWED, *extra)]
        rules += [(refused, name, []) for name in _NOT_PERMITTED.split()]
        for action, name, arguments in [*rules, *self._rules]:
            number = lib.resolve_syscall(lib.Arch.NATIVE, name)
            if number >= 0:  # else this machine, or this version of libseccomp, has no such call
                made.add_rule_exactly(action, number, *arguments)
        with tempfile.TemporaryFile() as stream:
            made.export_bpf(stream)
            stream.seek(0)
            return stream.read()

    def _rules_by_argument(self, network_is_apart: bool, alone: bool, scoped: bool) -> list[_Rule]:
        """Arguments are compared in 64 bits where the kernel reads 32, so what is allowed is named, not what is not."""
        arg, equal, masked, above = self._lib.Arg, self._lib.EQ, self._lib.MASKED_EQ, self._lib.GT
        allow, refused = self._lib.ALLOW, self._lib.ERRNO(errno.EPERM)
        rules: list[_Rule] = [(allow, "clone", [arg(0, masked, _NEW_NAMESPACES, 0)])]
        rules += [(allow, "fcntl", [arg(1, equal, command)]) for command in _FCNTL]
        rules += [(refused, "fcntl", [arg(1, equal, _SET_PIPE_SIZE)])]
        rules += [(allow, "setsockopt", [arg(1, equal, level)]) for level in _OTHER_LEVELS]
        socket_level = arg(1, equal, _SOL_SOCKET)
        for first, number in _OPTIONS:
            rules += [(allow, "setsockopt", [socket_level, arg(2, masked, _EVERY_BIT - (number - 1), first)])]
        rules += [(refused, "setsockopt", [socket_level, arg(2, equal, option)]) for option in _BUFFER_SIZES]
        families = (_UNIX, _INET, _INET6, _NETLINK) if network_is_apart else (_UNIX,)
        no_socket = self._lib.ERRNO(errno.EAFNOSUPPORT if network_is_apart else errno.EACCES)
        for call in ("socket", "socketpair"):
            rules += [
                (allow if family in families else no_socket, call, [arg(0, equal, family)])
                for family in range(_NETLINK + 1)
            ]
            rules += [(no_socket, call, [arg(0, above, _NETLINK)])]
        rules += [(allow if alone else refused, "connect", [])]
        if alone:
            rules += [(allow, name, []) for name in (*_OF_OTHERS, "setpriority")]
        else:
            differs, only_own = self._lib.NE, [arg(0, equal, 0)]
            rules += [(allow, name, only_own) for name in _OF_OTHERS]
            rules += [(refused, name, [arg(0, differs, 0)]) for name in (*_OF_OTHERS, "setpriority")]
            rules += [(allow, "setpriority", [*only_own, arg(1, equal, 0)])]
            rules += [(refused, "setpriority", [*only_own, arg(1, differs, 0)])]
        if scoped:
            return [*rules, (allow, "kill", [])]
        return [  # 0 is the process group; -1, all processes of the user, and other groups are negative
            *rules,
            (allow, "kill", [arg(0, self._lib.LE, _INT_MAX)]),
            (refused, "kill", [arg(0, above, _INT_MAX)]),
        ]


def libseccomp() -> ModuleType | None:
    """Python's face of the library; None where either is missing."""
    try:
        import pyseccomp
    except (ImportError, RuntimeError):  # the latter: no library
        return None
    found: ModuleType = pyseccomp
    return found
