"""A sandbox service, started as a user starts it, and what it must look like when nothing runs."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from needs import SYSTEM_PATH, needs, needs_filter, needs_namespaces, python_of_all_users, trouble_with_namespaces
from service_process import wait_for_url

COMMAND = (sys.executable, "-c", "from agentrl.cli import main; main()", "serve", "sandbox", "--port", "0")
APART = ("bubblewrap", "namespaces")
"""The levels of isolation at which code has a file system of its own."""
SERVED = ("rlimits",) if trouble_with_namespaces() else APART
"""The levels of the services that most tests ask: the weakest only where there is no other."""
PROGRAMS = {"nodejs": "node", "cpp": "g++", "c": "gcc"}
"""Programs of languages that are not called as their language is."""


def needs_level(level: str) -> None:
    """Skip the test where the machine does not allow the level."""
    needs_filter()
    if level == "bubblewrap":
        needs("bwrap")
    if level in APART:
        needs_namespaces()


def needs_language(language: str) -> None:
    """Skip the test unless the language's program is where sandboxed code sees it."""
    if language != "python":
        needs(PROGRAMS.get(language, language), path=SYSTEM_PATH)


class Server:
    """A running service."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.url, self.process = url, process
        self.exit_code = 0
        """With what it must end."""
        self.http = httpx.Client(base_url=url, timeout=60)

    def run(self, code: str, language: str = "python", **fields: Any) -> dict[str, Any]:
        return self._post("/run_code", {"code": code, "language": language, **fields})

    def python(self, code: str, **fields: Any) -> dict[str, Any]:
        """The `run_result` of Python code."""
        result = self.run(code, **fields)["run_result"]
        assert isinstance(result, dict)
        return result

    def judge(self, code: str, tests: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        return self._post("/judge", {"code": code, "tests": tests, **fields})

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    @property
    def health(self) -> dict[str, Any]:
        return self.http.get("/health").json()  # type: ignore[no-any-return]

    @property
    def folder(self) -> Path:
        """Where the folders of its runs are."""
        held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        inodes = {parts[5].split(":")[2] for parts in held if parts[4] == str(self.process.pid)}
        for lock in Path(tempfile.gettempdir()).glob("agentrl-sandbox-*/lock"):
            if str(lock.stat().st_ino) in inodes:
                return lock.parent
        raise AssertionError("it has no folder")

    def must_be_clean(self) -> None:
        """Nothing is left of the runs so far, or soon will be."""
        deadline = time.monotonic() + 10
        while (left := self.left_over()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not left, left

    def left_over(self) -> str:
        """What is there beyond sandboxes that wait for a job; empty: nothing."""
        health = self.health
        folders = len(list(self.folder.glob("run-*")))
        trees = [pid for pid in children(self.process.pid) if not is_zygote(pid)]
        if health["running"] or health["waiting"]:
            return f"{health['running']} run, {health['waiting']} wait"
        if folders != health["warm"] or len(trees) != health["warm"]:
            return f"{folders} folders and {len(trees)} process trees for {health['warm']} warm sandboxes"
        busy = [pid for tree in trees if len(pids := [tree, *descendants(tree)]) > 3 for pid in pids]
        return f"processes {busy}" if busy else ""


def is_zygote(pid: int) -> bool:
    """One of the interpreters that fork sandboxes, which itself is in none."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        is_apart = len(_numbers(pid)) > len(_numbers(os.getpid()))
    except (FileNotFoundError, ProcessLookupError):
        return False
    return arguments[3:4] != [] and arguments[3].endswith(b"/zygote.py") and not is_apart


def _numbers(pid: int) -> list[str]:
    """Of a process, one per pid namespace that it is in."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1:] for line in lines if line.startswith("NSpid:"))


def process_flags() -> tuple[int, int]:
    """Whether others may read this process's memory, and whether it takes in orphans."""
    libc, adopts = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(37, ctypes.byref(adopts), 0, 0, 0)
    return libc.prctl(3, 0, 0, 0, 0), adopts.value


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def descendants(pid: int) -> list[int]:
    try:
        return [one for child in children(pid) for one in (child, *descendants(child))]
    except FileNotFoundError:
        return []


@contextmanager
def serve(*options: str, environment: dict[str, str] | None = None, within: Sequence[str] = ()) -> Iterator[Server]:
    """Start the service with these options, by another program or not; it must end well when it is told to."""
    needs_filter()
    if trouble_with_namespaces():
        options += ("--python", python_of_all_users())
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([*within, *COMMAND, *options], stderr=log, env={**os.environ, **(environment or {})})
        try:
            server = Server(wait_for_url(process, log), process)
            with server.http:
                while server.http.get("/ready").status_code != 200 or server.health["warm"] == 0:
                    time.sleep(0.02)
                yield server
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == server.exit_code
        finally:
            process.kill()
            process.wait()
