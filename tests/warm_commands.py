"""Runs commands in forks of one process that has imported everything: a start takes milliseconds.

`agentrl` and `python` in the folder of `warm_commands` are `CLIENT`, which passes arguments, folder and open files to
this process. It ends with the suite for which it was started, and what it forked with it.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

from agentrl.rewards.scores.math_zygote import die_with

CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({path!r})
    call = json.dumps([{program!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(connection, [len(call).to_bytes(8, "big")], [0, 1, 2])
    connection.sendall(call)
    answer = connection.recv(8)
sys.exit(int(answer or b"70"))
"""
WARM = (
    "agentrl.trainer.run",
    "agentrl.trainer.ppo",
    "agentrl.testing.plugin_check",
    "agentrl.testing.faults",
    "agentrl.trainer.sft",
    "agentrl.jobs.evaluate",
    "agentrl.workers.actor_rollout_ref",
    "agentrl.workers.critic",
    "agentrl.workers.reward_model",
    "agentrl.workers.sft",
    "agentrl.agent_loops.react_agent",
    "agentrl.agent_loops.tool_agent",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen2.tokenization_qwen2",
    "transformers.generation.utils",
    "torch.utils.tensorboard",
    "pytest",
)


@cache
def warm_commands() -> Path:
    """A folder with `agentrl` and `python`, which run in forks of one warm process, started by the first call.

    The workers of one suite share it: it imports for ten seconds.
    """
    owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    folder = Path(tempfile.gettempdir()) / f"agentrl-warm-{owner}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "socket"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_served(path):
            _start_server(path, owner)
    return folder


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


def _start_server(path: Path, owner: int) -> None:
    path.unlink(missing_ok=True)  # of a suite that was killed, whose process had the same number
    for program in ("agentrl", "python"):
        file = path.with_name(program)
        file.write_text(CLIENT.format(python=sys.executable, path=str(path), program=program))
        file.chmod(0o755)
    subprocess.run([sys.executable, __file__, str(path), str(owner)], start_new_session=True, check=True)
    give_up = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def serve(path: str, owner: int) -> None:
    """Accept commands as long as the process `owner` lives; each runs in a child."""
    own = os.getpid()
    for name in WARM:
        importlib.import_module(name)
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{path}.new")
    server.listen()
    os.rename(f"{path}.new", path)  # whoever sees it may connect
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()  # a collection in a fork would touch, and so copy, every object made up to here
    while psutil.pid_exists(owner):
        if not select.select([server], [], [], 1.0)[0]:
            continue
        connection, _ = server.accept()
        if os.fork() == 0:
            server.close()
            die_with(own)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            code = _run(connection)
            with suppress(BrokenPipeError):  # the client was killed, or only looked whether somebody serves
                connection.sendall(str(code).encode())
            os._exit(0)
        connection.close()
    shutil.rmtree(os.path.dirname(path), ignore_errors=True)


def _run(connection: socket.socket) -> int:
    head, files, _, _ = socket.recv_fds(connection, 8, 3)
    if not head:  # somebody looked whether there is a server
        return 0
    call = b""
    while len(call) < int.from_bytes(head, "big"):
        call += connection.recv(2**16)
    program, arguments, folder, environment = json.loads(call)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    try:
        _start(program, arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    else:
        code = 0
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _start(program: str, arguments: list[str]) -> None:
    if program == "agentrl":
        from agentrl.cli import main

        sys.argv = ["agentrl", *arguments]
        main()
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    if os.fork() == 0:  # nobody's child: tests look at those of their process
        serve(sys.argv[1], int(sys.argv[2]))
