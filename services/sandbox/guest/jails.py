"""What the zygote does: forks jails, each with a launcher that waits for a job.

The first message on the zygote's socket is its set-up, answered by its number and `R` (ready). Every further one asks
for a jail: the name of its folder, with its control socket, stdin, stdout and stderr; the answer is the number of the
jail's first process, whose parent is the server, or `E` and why there is none.

That first process has new namespaces: it mounts what is private, lets the other folders go, gives up its rights,
forks the launcher (see `launch.py`) and waits for it. When it ends, the kernel ends whatever else the jail holds.
"""

from __future__ import annotations

import _socket
import gc
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentrl.services.sandbox.guest import ending, interpreter, kernel, launch, loopback
else:
    import ending
    import interpreter
    import kernel
    import launch
    import loopback

_WARM = (
    *("collections", "copy", "datetime", "functools", "heapq", "itertools", "json", "math", "operator", "random"),
    *("re", "resource", "string", "typing"),
)
"""What code imports most; each keeps no state but what a fork renews."""
_OURS = ("ending", "interpreter", "jails", "kernel", "launch", "loopback")
_SOCKET, _CONTROL, _MAX_FD = 3, 3, 64
_MESSAGE = 65536
_READ_ONLY = ("sys", "sysrq-trigger", "irq", "bus")


def main(given: int, bare: frozenset[str]) -> int:
    """Become a child of the server, then serve; returns in each jail's launcher, with its program's exit code."""
    os.umask(0o022)
    if given != _SOCKET:
        os.dup2(given, _SOCKET)
        os.close(given)  # of a busy server it has a high number
    os.closerange(_SOCKET + 1, _MAX_FD)
    socket = _socket.socket(fileno=_SOCKET)
    setup = eval(socket.recv(_MESSAGE), {"__builtins__": {}})  # the server wrote it with repr
    for name in _WARM:
        __import__(name)
    for name in _OURS:
        del sys.modules[name]
    last = ending.Ending()
    gc.freeze()  # collections leave alone what is here already, and so do not copy it
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    _socket.sethostname("sandbox")
    _become_orphan(socket)
    _serve(socket, setup)
    try:
        code = launch.serve_job(_CONTROL, interpreter, sys.modules.keys() - bare)
    except SystemExit as error:
        last.expect(error.code)
        raise
    last.expect(code)
    return code


def _become_orphan(socket: _socket.socket) -> None:
    """The server adopts orphans, and so becomes the parent of the jails too; when it dies, so do they."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        socket.send(b"%d" % pid)
        os._exit(0)
    while os.getppid() == parent:
        time.sleep(0.001)
    kernel.die_with_parent()
    socket.send(b"R")


def _serve(socket: _socket.socket, setup: dict[str, Any]) -> None:
    """Fork jails until the server hangs up; returns in each jail's launcher."""
    while True:
        name, ancillary, _, _ = socket.recvmsg(_MESSAGE, _socket.CMSG_SPACE(4 * 4))
        if not name:
            os._exit(0)
        fds = [int.from_bytes(data[at : at + 4], sys.byteorder) for *_, data in ancillary for at in range(0, 16, 4)]
        try:
            pid = kernel.clone_apart()
        except OSError as error:
            socket.send(f"E{error}".encode())
        else:
            if pid == 0:
                socket.detach()
                _become_jail(setup, name.decode(), fds)
                return
            socket.send(b"%d" % pid)
        for fd in fds:
            os.close(fd)


def _become_jail(setup: dict[str, Any], name: str, fds: list[int]) -> None:
    """What the first process of a jail does; returns in its second."""
    control, *streams = fds
    os.dup2(control, _CONTROL)
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)
    os.closerange(_CONTROL + 1, _MAX_FD)
    launcher = None
    try:
        os.setsid()
        _mount(setup, name)
        loopback.bring_up()
        if not setup["own_users"]:
            kernel.own_user_namespace(1000)
        kernel.drop_bounding_set()
        kernel.keep_capabilities(kernel.USER_CHANGES if setup["own_users"] else 0)
        if setup["seccomp"] is not None:
            kernel.load_filter(setup["seccomp"])
        # Before the launcher asks for a job: it gets none from a server that died earlier, and then ends by itself.
        kernel.die_with_parent()
        launcher = os.fork()
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    if launcher:
        _wait_for(launcher)


def _wait_for(launcher: int) -> None:
    os.closerange(0, _MAX_FD)
    kernel.keep_capabilities(0)
    kernel.hide_memory()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # like any signal from inside that the first process does not handle
    while True:
        pid, status = os.wait()
        if pid == launcher:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _mount(setup: dict[str, Any], name: str) -> None:
    inside, private = setup["inside"], kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount(f"{inside}/{name}/work", "/dev/shm", None, kernel.MS_BIND)
    kernel.unmount(inside)
    kernel.mount("/dev/shm", inside, None, kernel.MS_MOVE)
    kernel.mount(None, inside, None, kernel.MS_REMOUNT | kernel.MS_BIND | private)
    covered = [(path, os.open(path, os.O_PATH)) for path in setup["shown"] if path.startswith(("/tmp/", "/dev/shm/"))]
    kernel.mount("proc", "/proc", "proc", private | kernel.MS_NOEXEC)
    for part in _READ_ONLY:
        if os.path.exists(f"/proc/{part}"):
            kernel.bind_read_only(f"/proc/{part}", f"/proc/{part}")
    options = "newinstance,ptmxmode=0666,mode=620"
    kernel.mount("devpts", "/dev/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, options)
    for folder, size in (("/dev/shm", setup["shm_bytes"]), ("/tmp", setup["tmp_bytes"])):
        kernel.mount("tmpfs", folder, "tmpfs", private, f"mode=1777,size={size}")
    for path, fd in covered:  # an interpreter may lie there
        _make_place(path, fd)
        kernel.bind_read_only(f"/proc/self/fd/{fd}", path)
        os.close(fd)


def _make_place(path: str, fd: int) -> None:
    """Make an empty folder or file to mount something on."""
    if os.path.isdir(f"/proc/self/fd/{fd}"):
        os.makedirs(path, 0o755, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
