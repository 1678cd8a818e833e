"""The weaker levels of isolation, what the command line refuses, and how a server ends."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from threading import Thread

import httpx
import pytest
from sandbox_service import COMMAND, Server, descendants, serve

from agentrl.errors import UserInputError
from agentrl.services.sandbox import command
from agentrl.services.sandbox.home import own_folder
from agentrl.services.sandbox.processes import is_dead
from agentrl.services.sandbox.seccomp import seccomp_program

SYSTEM_PYTHON = "/usr/bin/python3"
"""Other users can read it, which the interpreter of the tests may not let them."""


def test_bubblewrap_is_there() -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is absent (apt-get install bubblewrap): the other tests used plain namespaces")


@pytest.mark.parametrize("level", ["namespaces", "rlimits"])
def test_a_weaker_level(level: str) -> None:
    options = ["--isolation", level, "--require-isolation", "rlimits", "--parallel", "2"]
    with serve(*options, "--python", SYSTEM_PYTHON) as server:
        assert server.health["isolation"] == level
        assert server.python("print(input())", stdin="a")["stdout"] == "a\n"
        assert server.run("echo b", "bash")["run_result"]["stdout"] == "b\n"
        port = server.url.rpartition(":")[2]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"
        assert server.python(code)["return_code"] == 1
        daemon = "import os, time\nif os.fork() == 0:\n  os.setsid()\n  os.fork() or time.sleep(60)\n  os._exit(0)"
        assert server.python(daemon)["return_code"] == 0
        bomb = server.python("import os\nwhile True:\n  try: os.fork()\n  except OSError: pass", run_timeout=0.5)
        assert bomb["status"] == "TimeLimitExceeded"
        assert "MemoryError" in server.python("bytearray(900 << 20)", memory_limit_MB=300)["stderr"]
        secrets = f"print(open('/proc/{server.process.pid}/environ').read())"
        assert server.python(secrets)["stdout"] == ""
        server.must_be_clean()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--require-isolation", "bubblewarp"], "Did you mean 'bubblewrap'?"),
        (["--isolation", "rlimits", "--require-isolation", "namespaces"], "is weaker than --require-isolation"),
        (["--python", "/no/such/python"], "--python: got '/no/such/python', wanted a Python interpreter"),
        (["--host", "0.0.0.0"], "other machines would reach this service without a token"),
    ],
)
def test_what_the_command_refuses(options: list[str], says: str) -> None:
    with pytest.raises(UserInputError) as error:
        command.main([*options, "--port", "0"])
    assert says in str(error.value)


def test_a_refusal_is_a_message_and_exit_code_2() -> None:
    arguments = [*COMMAND, "--isolation", "bubblewarp"]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "Did you mean 'bubblewrap'?" in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr


def test_a_killed_server_leaves_no_processes_and_the_next_one_cleans_up() -> None:
    with serve("--parallel", "1") as server:
        server.exit_code = -signal.SIGKILL
        folder = server.folder
        server.http.post("/sessions", json={})
        running = Thread(target=_ask_in_vain, args=(server,))
        running.start()
        while server.health["running"] == 0:
            time.sleep(0.01)
        below = descendants(server.process.pid)
        assert len(below) >= 6  # two of a session, two of a run, zygotes
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        running.join()
        deadline = time.monotonic() + 5
        while (left := [pid for pid in below if not is_dead(pid)]) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert left == []
        assert folder.exists()
    with own_folder():
        assert not folder.exists()


def _ask_in_vain(server: Server) -> None:
    with pytest.raises(httpx.TransportError):
        server.python("import time; time.sleep(60)", run_timeout=60)


def test_the_seccomp_program_of_an_unknown_machine() -> None:
    assert seccomp_program(True, "riscv64") is None
    for machine in ("x86_64", "aarch64"):
        program = seccomp_program(True, machine)
        assert program is not None
        assert len(program) % 8 == 0
        assert len(program) // 8 < 4096
