"""Runs commands in forks of one process that has imported everything: a start takes milliseconds.

`agentrl` and `python` in the folder of `warm_commands` are `CLIENT`, which passes arguments, folder and open files to
this process. It and what it forked end with the process that started it.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

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
    """A folder with `agentrl` and `python`, which run in forks of one warm process, started by the first call."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    path = folder / "socket"
    for program in ("agentrl", "python"):
        (folder / program).write_text(CLIENT.format(python=sys.executable, path=str(path), program=program))
        (folder / program).chmod(0o755)
    process = subprocess.Popen([sys.executable, __file__, str(path)], start_new_session=True)
    atexit.register(_end, process, folder)
    give_up = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None
        assert time.monotonic() < give_up
        time.sleep(0.05)
    return folder


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    process.kill()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def serve(path: str) -> None:
    """Accept commands until killed; each runs in a child."""
    die_with(os.getppid())
    own = os.getpid()
    for name in WARM:
        importlib.import_module(name)
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{path}.new")
    server.listen()
    os.rename(f"{path}.new", path)  # whoever sees it may connect
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = server.accept()
        if os.fork() == 0:
            server.close()
            die_with(own)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            code = _run(connection)
            connection.sendall(str(code).encode())
            os._exit(0)
        connection.close()


def _run(connection: socket.socket) -> int:
    head, files, _, _ = socket.recv_fds(connection, 8, 3)
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
    serve(sys.argv[1])
