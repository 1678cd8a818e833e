"""The service in containers: what it chooses there, what it refuses, and that a program cannot end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from needs import needs_filter, needs_namespaces, python_of_all_users
from sandbox_service import COMMAND, Server, serve

from agentrl.services.sandbox import user_range
from agentrl.services.sandbox.guest.linux_calls import LANDLOCK_SCOPES, landlock_version
from agentrl.services.sandbox.user_range import UIDS_PER_SERVER, find_users

ROOT = os.geteuid() == 0
LAUNCHER = (sys.executable, str(Path(__file__).with_name("container.py")))
NOT_ROOT = (*LAUNCHER, "--user", "1000", "--refuse", "namespaces")
"""As non-root under Docker's default filter."""
ROOTLESS_ROOT = (*LAUNCHER, "--user", "0", "--refuse", "namespaces")
"""As root of a container that one user of the machine started: one line in its uid_map."""
BARE_ROOT = (*LAUNCHER, "--no-capabilities", "--refuse", "namespaces")
"""As root after `--cap-drop ALL`."""
KILLER = """
import os, signal
for pid in (-1, os.getppid(), {server}, -{server}, -os.getpgid(os.getppid())):
    try: os.kill(pid, signal.SIGKILL)
    except OSError: pass
print("alive")
"""


def needs_landlock() -> None:
    """Skip where the kernel cannot keep signals apart: there the service does not start in such a container."""
    if landlock_version() < LANDLOCK_SCOPES:
        pytest.skip("no Landlock of Linux 6.12 here")


@contextmanager
def serve_in(container: tuple[str, ...], *options: str) -> Iterator[Server]:
    if container != BARE_ROOT:
        needs_namespaces()  # to make the container
    elif not ROOT:
        pytest.skip("only root has capabilities to drop")
    with serve("--parallel", "2", *options, within=(*container, "--"), environment={"A_SECRET": "sesame"}) as server:
        yield server


@pytest.mark.parametrize("container", [NOT_ROOT, ROOTLESS_ROOT, BARE_ROOT], ids=["not root", "rootless", "bare"])
def test_runs_that_are_the_servers_user(container: tuple[str, ...], tmp_path: Path) -> None:
    needs_landlock()
    secret = tmp_path / "secret"
    secret.write_text("sesame")
    with serve_in(container) as server:
        assert server.health["isolation"] == "rlimits"
        assert "the server's user" in server.health["isolation_details"]
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(server.python, "import time; time.sleep(1); print('slept')")
            while server.health["running"] == 0:
                time.sleep(0.01)
            assert "sesame" not in str(server.python(KILLER.format(server=server.process.pid)))
            assert server.run("kill -9 -1; echo alive", "bash")["run_result"]["stdout"] in ("alive\n", "")
            assert server.process.poll() is None
            assert other.result()["stdout"] == "slept\n"
        code = f"""
import os, resource, signal, socket, subprocess
def attempt(call, *arguments):
    try: return call(*arguments)
    except OSError as error: return type(error).__name__
print(attempt(open, "/proc/{server.process.pid}/environ"), attempt(open, {str(secret)!r}))
print(attempt(os.listdir, {str(server.folder)!r}), attempt(open, {str(server.folder)!r} + "/x", "w"))
print(attempt(resource.prlimit, {server.process.pid}, resource.RLIMIT_NOFILE, (1, 1)))
print(attempt(os.setpriority, os.PRIO_PROCESS, {server.process.pid}, 19))
print(attempt(os.sched_setaffinity, {server.process.pid}, {{0}}))
print(attempt(socket.socket(socket.AF_UNIX).connect, "/run/any.sock"))
child = subprocess.Popen(["sleep", "60"]); child.terminate(); print(child.wait())
open("file", "w").write("x"); os.rename("file", "other"); print(os.listdir())
"""
        result = server.python(code)
        denied = "PermissionError"
        assert result["stdout"].splitlines() == [
            f"{denied} {denied}",
            f"{denied} {denied}",
            *[denied] * 4,
            str(-signal.SIGTERM),
            "['main.py', 'other']",
        ], result
        server.must_be_clean()


@pytest.mark.skipif(not ROOT, reason="only the server of root gives every run a user of its own")
def test_runs_that_are_users_of_their_own() -> None:
    container = (*LAUNCHER, "--refuse", "namespaces", "landlock")
    with serve_in(container, "--python", python_of_all_users()) as server:
        assert server.health["isolation"] == "rlimits"
        assert "a user of its own per run" in server.health["isolation_details"]
        assert server.python(KILLER.format(server=server.process.pid))["status"] == "Finished"
        assert server.process.poll() is None
        assert server.python("print(6 * 7)")["stdout"] == "42\n"


def test_a_container_in_which_a_program_could_end_the_service() -> None:
    needs_filter()
    needs_namespaces()
    container = (*LAUNCHER, "--user", "1000", "--refuse", "namespaces", "landlock", "--")
    refused = subprocess.run([*container, *COMMAND], capture_output=True, text=True, check=False)
    told = " ".join(refused.stderr.replace("│", " ").split())
    assert refused.returncode == 2, told
    assert "could end the server" in told
    assert "--allow-weak-isolation" in told
    assert "docs/services.md" in told
    with serve_in(container[:-1], "--allow-weak-isolation") as server:  # accidents are still held back
        assert server.health["isolation"] == "rlimits"
        for language, code in (("python", "import os; os.kill(-1, 9)"), ("bash", "kill -9 -1")):
            assert server.run(code, language)["status"] == "Failed"
        assert server.process.poll() is None
        assert server.python("print(6 * 7)")["stdout"] == "42\n"


def test_a_container_of_one_user_that_may_make_namespaces() -> None:
    with serve_in((*LAUNCHER, "--user", "0")) as server:
        health = server.health
        assert health["isolation"] in ("bubblewrap", "namespaces")
        assert "user namespace" in health["isolation_details"]
        assert server.python("import os; print(os.getuid())")["stdout"] == "1000\n"
        assert server.python(KILLER.format(server=server.process.pid))["status"] == "Finished"
        assert server.run("echo a > b; cat b", "bash")["run_result"]["stdout"] == "a\n"
        server.must_be_clean()


@pytest.mark.skipif(not ROOT, reason="only the server of root has capabilities to drop")
def test_root_that_may_make_user_namespaces_only() -> None:
    """As root of a container with Docker's capabilities under a filter that permits namespaces."""
    needs_namespaces()
    with serve_in((*LAUNCHER, "--drop", "21")) as server:  # CAP_SYS_ADMIN
        assert server.health["isolation"] in ("bubblewrap", "namespaces")
        assert "user namespace" in server.health["isolation_details"]
        assert server.python("import os; print(os.getuid())")["stdout"] == "1000\n"
        server.must_be_clean()


@pytest.mark.skipif(not ROOT, reason="only root's runs have users")
@pytest.mark.parametrize(
    ("id_map", "first", "end"),
    [
        ("         0          0 4294967295\n", 1_000_000, 1_000_000 + 10_000 * UIDS_PER_SERVER),
        ("0 100000 65536\n", 10_000, 65_000),
        ("0 1000 1\n1 100000 65536\n", 10_000, 65_000),
        ("0 100000 11500\n", 10_000, 11_000),
        ("0 1000 1\n", None, None),
        ("0 100000 1000\n", None, None),
        ("", None, None),
    ],
)
def test_the_users_that_a_container_has(
    monkeypatch: pytest.MonkeyPatch, id_map: str, first: int | None, end: int | None
) -> None:
    files = {"/proc/self/uid_map": id_map, "/proc/self/gid_map": id_map, "/proc/self/status": f"CapEff:\t{'f' * 16}\n"}
    monkeypatch.setattr(user_range, "_read", lambda path: files.get(path, ""))
    users, reason = find_users()
    if first is None or end is None:
        assert users is None
        assert "uid_map" in reason
        return
    assert users is not None
    assert first <= users[0] <= users[-1] < end
    assert len(users) == UIDS_PER_SERVER


@pytest.mark.skipif(not ROOT, reason="only root's runs have users")
def test_a_container_that_lacks_a_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_range, "_read", lambda path: "CapEff:\t00000000a80425db\n" if "status" in path else "")
    assert "CAP_KILL" in find_users()[1]
