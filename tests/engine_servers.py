"""Engine servers as processes of a test."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx


@contextmanager
def serve_embedded(model: Path, log_dir: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[Any]]]:
    """An embedded engine on a free port: its address and its process."""
    log = log_dir / "engine.log"
    port = free_port()
    command = [sys.executable, "-m", "agentrl.inference.embedded", "--model", str(model), "--port", str(port)]
    command += ["--device", "cpu", "--threads", "1", "--die-with-parent", *options]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        address = f"http://127.0.0.1:{port}"
        try:
            wait_until_well(address, process, log)
            yield address, process
        finally:
            process.kill()


def wait_until_well(address: str, process: subprocess.Popen[Any], log: Path, limit_s: float = 300) -> None:
    """Wait for a server's first good health check."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(encoding="utf-8", errors="replace")
        try:
            if httpx.get(f"{address}/health", trust_env=False, timeout=25).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(f"{address} is not healthy: {log.read_text(encoding='utf-8', errors='replace')}")


def free_port() -> int:
    """A port that nobody listens on now, and that the system gives to nobody who does not ask for it by number.

    A port of the system's own range could be taken by any process before the server has started.
    """
    while True:
        port = random.SystemRandom().randrange(21_000, 32_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    """Wait until something has happened."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
