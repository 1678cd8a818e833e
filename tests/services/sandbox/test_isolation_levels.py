"""The weaker levels of isolation, what the command line refuses, and how a server ends."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import IO, Any

import httpx
import pytest
from needs import needs_filter, python_of_all_users
from prometheus_client import CollectorRegistry
from sandbox_service import Server, children, descendants, needs_level, process_flags, serve

from agentrl.cli import main
from agentrl.errors import UserInputError
from agentrl.services.common.server_folder import server_folder
from agentrl.services.sandbox import cli, isolation_choice, process_tree
from agentrl.services.sandbox.guest import supervisor
from agentrl.services.sandbox.guest.supervisor import SHARED
from agentrl.services.sandbox.metrics import SandboxMetrics
from agentrl.services.sandbox.options import SandboxOptions
from agentrl.services.sandbox.process_tree import is_dead, threads_of
from agentrl.services.sandbox.protocol import CommandResult, RunCode
from agentrl.services.sandbox.seccomp import SeccompFilters
from agentrl.services.sandbox.service import check_startup, open_service

BOMB = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
LOCAL = """
import socket
listener = socket.create_server(("localhost", 0))
print(socket.create_connection(listener.getsockname(), 1).getpeername()[0], socket.gethostbyname(socket.gethostname()))
print(socket.gethostname())
"""
TERMINAL = "import os, pty; print(os.listdir('/dev/pts'), os.ttyname(pty.openpty()[1]), os.path.exists('/dev/tty'))"
MANY = """
for folder in ("/tmp", "/dev/shm"):
    try:
        for number in range(20_000): open(f"{folder}/{number}", "w").close()
    except OSError: print(number)
"""
DAEMON = "import os, time\nif os.fork() == 0:\n  os.setsid()\n  os.fork() or time.sleep(60)\n  os._exit(0)"


@pytest.mark.parametrize(
    ("level", "fresh"), [("bubblewrap", True), ("namespaces", False), ("namespaces", True), ("rlimits", True)]
)
async def test_a_weaker_level(level: str, fresh: bool) -> None:
    needs_level(level)
    before, flags = set(children(os.getpid())), process_flags()
    options = SandboxOptions(
        isolation=level, require_isolation="rlimits", fresh_interpreters=fresh, parallel=3, python=python_of_all_users()
    )
    async with open_service(options, SandboxMetrics(CollectorRegistry())) as service:
        assert (service.isolation.level, service.isolation.forks) == (level, not fresh)

        async def run(code: str, language: str = "python", **fields: object) -> CommandResult:
            request = RunCode.model_validate({"code": code, "language": language, **fields})
            result = (await service.run_code(request, "client")).run_result
            assert result is not None
            return result

        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            echo, shell, network, daemon, bomb, memory, secrets = await asyncio.gather(
                run("print(input())", stdin="a"),
                run("cat /dev/stdin > /dev/stdout; echo c > /dev/stderr", "bash", stdin="b\n"),
                run(f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"),
                run(DAEMON),
                run(BOMB, run_timeout=0.5),
                run("bytearray(900 << 20)", memory_limit_MB=300),
                run(f"print(open('/proc/{os.getpid()}/environ').read())"),
            )
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV):  # no shell on the way adds a word
            killed = await run(f"import os; os.write(2, b'x'); os.kill(os.getpid(), {number})")
            assert (killed.stderr, killed.return_code) == ("x", 128 + number)
        if level != "rlimits":
            assert (await run(LOCAL)).stdout == "127.0.0.1 127.0.0.1\nsandbox\n"
            assert (await run(TERMINAL)).stdout == "['ptmx'] /dev/pts/0 True\n"
            made = [int(number) for number in (await run(MANY)).stdout.split()]
            assert max(made) == 16383, "the folder itself is one"
            assert min(made) >= 16383 - 16, "and so are those in which the service shows its own files"
        assert (echo.stdout, network.return_code, daemon.return_code) == ("a\n", 1, 0)
        assert (shell.stdout, shell.stderr, shell.return_code) == ("b\n", "c\n", 0)
        assert bomb.status == "TimeLimitExceeded"
        assert "MemoryError" in (memory.stderr or "")
        assert (secrets.stdout, secrets.return_code) == ("", 1)
    assert not [pid for pid in children(os.getpid()) if pid not in before and not is_dead(pid)]
    assert process_flags() == flags


@pytest.mark.skipif(os.geteuid() != 0, reason="only the server of root gives every run a user of its own")
@pytest.mark.parametrize("ends", ["", "import time; time.sleep(60)"])
async def test_what_a_run_leaves_in_folders_of_all_users(ends: str) -> None:
    needs_filter()
    name = f"agentrl-left-{os.getpid()}"
    code = f"""
import os
for folder in {SHARED}:
    path = f"{{folder}}/{name}"
    open(f"{{path}}-file", "w").close(); os.symlink("/etc/passwd", f"{{path}}-link")
    os.makedirs(f"{{path}}/a/b/c"); open(f"{{path}}/a/b/file", "w").close(); os.chmod(f"{{path}}/a", 0)
print("made", flush=True)
{ends}
"""
    options = SandboxOptions(isolation="rlimits", parallel=1, python=python_of_all_users())
    async with open_service(options, SandboxMetrics(CollectorRegistry())) as service:
        fields = {"code": code, "language": "python", "run_timeout": 5 if not ends else 0.5}
        result = (await service.run_code(RunCode.model_validate(fields), "client")).run_result
        assert result is not None
        assert (result.stdout, result.stderr) == ("made\n", "")
    assert [path for folder in SHARED for path in Path(folder).glob(f"{name}*")] == []


def test_memory_counts_where_what_is_shared_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_some(path: str, **options: Any) -> IO[Any]:
        if path.endswith("/smaps_rollup"):
            raise PermissionError(path)
        return open(path, **options)

    monkeypatch.setattr(process_tree, "open", open_some, raising=False)
    assert process_tree.resident_bytes([os.getpid()], 0) > 10 << 20


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users")
def test_threads_of_a_user_are_counted() -> None:
    uid = 1_900_302
    assert threads_of(uid) == 0
    with subprocess.Popen(["sleep", "60"], user=uid) as process:
        assert threads_of(uid) == 1
        process.kill()
    assert threads_of(uid) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only the server of root gives every run a user of its own")
def test_what_is_of_other_users_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid, other = 1_900_300, 1_900_301
    (tmp_path / "own" / "below").mkdir(parents=True)
    (tmp_path / "other" / "below").mkdir(parents=True)
    for name in ("file", "other-file", "own/file", "own/other-file", "other/file"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    (tmp_path / "own" / "link").symlink_to(tmp_path / "other")
    for path in tmp_path.rglob("*"):
        os.chown(path, other if path.name.startswith("other") else uid, -1, follow_symlinks=False)
    monkeypatch.setattr(supervisor, "SHARED", (str(tmp_path), "/no/such/folder"))
    supervisor.remove_left(uid)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["other", "other-file", "other/below", "other/file", "own", "own/other-file"]


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
        cli.main([*options, "--port", "0"])
    assert says in str(error.value)


def test_a_refusal_is_a_message_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["agentrl", "serve", "sandbox", "--isolation", "bubblewarp"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "Did you mean 'bubblewrap'?" in " ".join(capsys.readouterr().err.split())


LEAST = 6
"""Processes of a server with a session and a run, each of two, and its zygotes."""


def test_a_killed_server_leaves_no_processes_and_the_next_one_cleans_up() -> None:
    with serve("--parallel", "1") as server:
        server.exit_code = -signal.SIGKILL
        folder = server.folder
        server.http.post("/sessions", json={})
        running = Thread(target=_ask_in_vain, args=(server,))
        running.start()
        deadline = time.monotonic() + 30
        while server.health["running"] == 0 or len(descendants(server.process.pid)) < LEAST:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        below = descendants(server.process.pid)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        running.join()
        while (left := [pid for pid in below if not is_dead(pid)]) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert left == []
        assert folder.exists()
    with server_folder("sandbox"):
        deadline = time.monotonic() + 30
        while folder.exists():  # a server that starts beside this test may have begun to remove it
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_other_signals_end_it_as_well(number: signal.Signals) -> None:
    with serve("--parallel", "1") as server:
        folder = server.folder
        server.process.send_signal(number)
        assert server.process.wait(20) == 0
        assert not folder.exists()


def test_a_server_may_open_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))  # as most machines have it
    try:
        with serve("--parallel", "1") as server:
            assert resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)[0] == hard
            assert (
                server.python("import resource as r; print(r.getrlimit(r.RLIMIT_NOFILE))")["stdout"] == "(512, 512)\n"
            )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _ask_in_vain(server: Server) -> None:
    with pytest.raises(httpx.TransportError):
        server.python("import time; time.sleep(60)", run_timeout=60)


@pytest.mark.parametrize("language", ["python", "java", "cobol"])
@pytest.mark.parametrize("alone", [True, False])
def test_the_seccomp_program_is_one_that_the_kernel_takes(language: str, alone: bool) -> None:
    needs_filter()
    program = SeccompFilters(network_is_apart=alone, alone=alone, scoped=alone).of(language)
    assert len(program) % 8 == 0
    assert 200 < len(program) // 8 < 4096


async def test_a_machine_without_libseccomp(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_level("namespaces")
    monkeypatch.setattr(isolation_choice, "libseccomp", lambda: None)
    options = SandboxOptions(isolation="namespaces", parallel=1)
    with pytest.raises(UserInputError, match=r"apt-get install libseccomp2.*pip install pyseccomp.*--allow-weak-"):
        check_startup(options)
    async with open_service(
        replace(options, allow_weak_isolation=True), SandboxMetrics(CollectorRegistry())
    ) as service:
        assert "seccomp" not in service.isolation.details
        ran = await service.run_code(RunCode(code="print(6 * 7)", language="python"), "client")
        assert ran.run_result is not None
        assert ran.run_result.stdout == "42\n"
