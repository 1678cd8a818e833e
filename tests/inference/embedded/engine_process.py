"""Engine servers as processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from engine_servers import free_port


def command(folder: Path, port: int, *more: str) -> list[str]:
    base = [sys.executable, "-m", "agentrl.inference.embedded", "--model", str(folder), "--port", str(port)]
    return [*base, "--threads", "1", "--device", "cpu", *more]


def wait_healthy(address: str, process: subprocess.Popen[Any]) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended"
        try:
            if httpx.get(f"{address}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("not healthy after five minutes")


@contextmanager
def serving(model: Path, *options: str) -> Iterator[httpx.Client]:
    """A client of a server that runs meanwhile."""
    port = free_port()
    with subprocess.Popen(command(model, port, *options)) as process:
        wait_healthy(f"http://127.0.0.1:{port}", process)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM)
