"""The zygote's work: it forks sandboxes, each with a launcher that waits for a job.

The first message on the zygote's socket is its set-up; it answers with its process id and `R` (ready). Every further
message asks for a sandbox: the name of its folder, with its control socket, stdin, stdout and stderr. The answer is the
process id of the sandbox's first process, whose parent is the server, or `E` and the reason why it cannot start.

That first process has new namespaces: it mounts its private folders, unmounts the others, gives up its rights, forks
the launcher (see `launcher.py`) and waits for it. The launcher is this interpreter's fork, or a new one if that is
wanted. When the first process ends, the kernel ends everything else in the sandbox.
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

    from agentrl.services.sandbox.guest import (
        check_run,
        fast_exit,
        launcher,
        linux_calls,
        loopback,
        sandbox_root,
        session_repl,
        tested_program,
    )
else:
    import check_run
    import fast_exit
    import launcher
    import linux_calls
    import loopback
    import sandbox_root
    import session_repl
    import tested_program

_WARM = (
    *("collections", "copy", "datetime", "functools", "heapq", "itertools", "json", "math", "operator", "random"),
    *("re", "resource", "string", "typing"),
)
"""The modules that code imports most; they keep no state except what a fork renews."""
_JOBS = {"session_repl": session_repl, "check_run": check_run, "tested_program": tested_program}
_OURS = (
    *(*_JOBS, "call_peer", "call_values", "check_names", "fast_exit", "launcher", "linux_calls", "loopback"),
    *("sandbox_fork", "sandbox_root", "shared_values", "stand_ins", "unittest_watch"),
)
_SOCKET, _CONTROL, _MAX_FD = 3, 3, 64
_MESSAGE = 65536


def main(given: int, bare: frozenset[str]) -> int:
    """Become a child of the server, then serve; returns in each sandbox's launcher, with its program's exit code."""
    os.umask(0o022)
    if given != _SOCKET:
        os.dup2(given, _SOCKET)
        os.close(given)  # a busy server may have given it a number above `_MAX_FD`
    os.closerange(_SOCKET + 1, _MAX_FD)
    socket = _socket.socket(fileno=_SOCKET)
    setup = eval(socket.recv(_MESSAGE), {"__builtins__": {}})  # the server wrote it with repr
    try:
        _go_apart(setup)
    except OSError as error:
        os.write(2, f"{error}\n".encode())
        os._exit(1)
    for name in _WARM:
        __import__(name)
    for name in _OURS:
        del sys.modules[name]
    last = fast_exit.FastExit()
    gc.freeze()  # a collection in a fork would touch, and so copy, every object made up to here
    _become_orphan(socket)
    _serve(socket, setup)
    try:
        code = launcher.serve_job(_CONTROL, linux_calls, _JOBS, sys.modules.keys() - bare)
    except SystemExit as error:
        last.expect(error.code)
        raise
    last.expect(code)
    return code


def _go_apart(setup: dict[str, Any]) -> None:
    """Leave the machine's file system for that of the sandboxes."""
    if setup["enters"]:  # else bubblewrap did
        if not setup["own_users"]:
            linux_calls.own_user_namespace(0)
        linux_calls.own_mounts()
    _socket.sethostname("sandbox")
    sandbox_root.make_shared(setup)


def _become_orphan(socket: _socket.socket) -> None:
    """Become a child of the server, which adopts orphans and so becomes the parent of the sandboxes too."""
    # server -> bubblewrap -> zygote: a fork of the zygote continues, the zygote itself exits, and the server adopts
    # the orphan. `clone_apart` later makes each sandbox a sibling of the zygote, so the server can wait for it and
    # gets its exit code.
    parent = os.getpid()
    pid = os.fork()
    if pid:
        socket.send(b"%d" % pid)
        os._exit(0)
    while os.getppid() == parent:
        time.sleep(0.001)
    linux_calls.die_with_parent()
    socket.send(b"R")


def _serve(socket: _socket.socket, setup: dict[str, Any]) -> None:
    """Fork sandboxes until the server hangs up; returns in each sandbox's launcher."""
    while True:
        name, ancillary, _, _ = socket.recvmsg(_MESSAGE, _socket.CMSG_SPACE(4 * 4))
        if not name:
            os._exit(0)
        fds = [int.from_bytes(data[at : at + 4], sys.byteorder) for *_, data in ancillary for at in range(0, 16, 4)]
        try:
            pid = linux_calls.clone_apart()
        except OSError as error:
            socket.send(f"E{error}".encode())
        else:
            if pid == 0:
                socket.detach()
                _become_sandbox(setup, name.decode(), fds)
                return
            socket.send(b"%d" % pid)
        for fd in fds:
            os.close(fd)


def _become_sandbox(setup: dict[str, Any], name: str, fds: list[int]) -> None:
    """The work of a sandbox's first process; returns in its second, the launcher."""
    control, *streams = fds
    os.dup2(control, _CONTROL)
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)
    os.closerange(_CONTROL + 1, _MAX_FD)
    launcher_pid = None
    try:
        os.setsid()
        loopback.bring_up()
        sandbox_root.make_own(setup, name)
        if not setup["own_users"]:
            linux_calls.own_user_namespace(1000)
        kept = linux_calls.USER_CHANGES if setup["own_users"] else 0
        linux_calls.drop_bounding_set(0 if setup["forks"] else kept)
        linux_calls.keep_capabilities(kept)
        # Before the launcher asks for a job: it gets none from a server that died earlier, and then ends by itself.
        linux_calls.die_with_parent()
        launcher_pid = os.fork()
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    if launcher_pid:
        _wait_for(launcher_pid)
    if not setup["forks"]:
        program = [sys.executable, "-S", "-B", f"{os.path.dirname(__file__)}/launcher.py", str(_CONTROL)]
        os.execv(program[0], program)


def _wait_for(launcher_pid: int) -> None:
    os.closerange(0, _MAX_FD)
    linux_calls.keep_capabilities(0)
    linux_calls.hide_memory()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # like any signal from inside that the first process does not handle
    while True:
        pid, status = os.wait()
        if pid == launcher_pid:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
