"""Memory that is no page of a process counts too, at every level, with a memory cgroup and without."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from needs import python_of_all_users
from prometheus_client import CollectorRegistry
from sandbox_service import Server, needs_level

from agentrl.services.sandbox import outside_memory, service
from agentrl.services.sandbox.isolation import LEVELS
from agentrl.services.sandbox.memory_cgroup import open_memory_cgroups
from agentrl.services.sandbox.metrics import SandboxMetrics
from agentrl.services.sandbox.options import SandboxOptions
from agentrl.services.sandbox.protocol import CommandResult, RunCode

WAIT = "\nimport time; time.sleep(20)"
FILL = """
def fill(s):
    s.setblocking(False)
    try:
        while True: s.send(bytes(65536))
    except BlockingIOError: pass
kept = []
for _ in range(240):
    pair = socket.socketpair()
    kept.append(pair)
    for s in pair: RAISE; fill(s)
"""
SOCKETS = f"import socket{FILL}".replace("RAISE", "pass") + WAIT
RAISED = f"import socket{FILL}".replace("RAISE", "s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)")
PIPES = """
import fcntl, os
kept = []
for _ in range(240):
    read, write = os.pipe()
    kept.append((read, write))
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.set_blocking(write, False)
    os.write(write, bytes(1 << 20))
"""
FILES = "for n in range(8):\n  with open(f'FOLDER/{n}', 'wb') as f: f.write(bytes(20 << 20))" + WAIT
NAMES = "import os\nos.mkdir('/tmp/a')\nfor n in range(100_000): os.mknod(f'/tmp/a/{n}')"
UNLINKED = """
import os
kept = []
for n in range(9):
    kept.append(open(f"{n}", "wb"))
    os.unlink(f"{n}")
    for _ in range(40): kept[-1].write(bytes(1 << 20))
"""
HONEST = """
import asyncio, multiprocessing, os, socket, tempfile
pairs = [socket.socketpair() for _ in range(20)]
pairs[0][0].send(b"x"), pairs[0][1].recv(1)
held = bytearray(os.urandom(1 << 20)) * 24
async def main():
    process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    return (await process.communicate(b"through a pipe"))[0]
print(asyncio.run(main()))
with tempfile.TemporaryFile() as file: file.write(bytes(1 << 20))
lock = multiprocessing.Lock()
with lock: print(len(held) >> 20)
"""
OVER = "it used more than 64 MB of memory"


@pytest.mark.parametrize("counted_by", ["kernel", "polling"])
@pytest.mark.parametrize("level", LEVELS)
async def test_what_counts(level: str, counted_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_level(level)
    if counted_by == "polling":
        monkeypatch.setattr(service, "open_memory_cgroups", lambda: None)
    elif (found := open_memory_cgroups()) is None:
        pytest.skip("this user may make no memory cgroup here")
    else:
        found.close()
    python = python_of_all_users() if level == "rlimits" else sys.executable
    options = SandboxOptions(isolation=level, parallel=4, python=python)
    async with service.open_service(options, SandboxMetrics(CollectorRegistry())) as opened:
        assert ("memory cgroup" in opened.isolation.details) is (counted_by == "kernel")

        async def run(code: str) -> CommandResult:
            fields = {"code": code, "language": "python", "memory_limit_MB": 64, "run_timeout": 20}
            result = (await opened.run_code(RunCode.model_validate(fields), "client")).run_result
            assert result is not None
            return result

        raised, sockets, pipes, shm, unlinked, honest = await asyncio.gather(
            *map(run, (RAISED, SOCKETS, PIPES, FILES.replace("FOLDER", "/dev/shm"), UNLINKED + WAIT, HONEST))
        )
        assert "PermissionError" in (raised.stderr or "")
        assert "PermissionError" in (pipes.stderr or "")
        assert OVER in (sockets.stderr or "")
        assert OVER in (shm.stderr or "") or "No space left" in (shm.stderr or ""), shm
        assert "it wrote more than 256 MB of files" in (unlinked.stderr or "")
        assert (honest.stdout, honest.return_code) == ("b'through a pipe'\n24\n", 0), honest
        if level != "rlimits":
            files, names = await asyncio.gather(run(FILES.replace("FOLDER", "/tmp")), run(NAMES))
            assert OVER in (files.stderr or "")
            assert names.return_code != 0
        used_up = [await run("bytearray(60 << 20)"), await run(HONEST)]
        assert [result.return_code for result in used_up] == [1, 0]


def test_a_session_that_exceeds_its_memory_says_so(server: Server) -> None:
    opened = server.http.post("/sessions", json={"memory_limit_MB": 64}).json()["session_id"]
    answer = server.http.post(f"/sessions/{opened}/run", json={"code": SOCKETS, "run_timeout": 20}).json()
    assert OVER in answer["run_result"]["stderr"]
    server.http.delete(f"/sessions/{opened}")


def test_files_of_a_user_in_shared_memory() -> None:
    uid, before = os.geteuid(), outside_memory.outside_bytes([], False, os.geteuid(), 0)[0]
    file = Path(f"/dev/shm/agentrl-test-{os.getpid()}")
    file.write_bytes(bytes(3 << 20))
    try:
        assert outside_memory.outside_bytes([], False, uid, 0)[0] - before >= 3 << 20
    finally:
        file.unlink()
