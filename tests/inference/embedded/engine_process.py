"""Engine servers as processes of their own."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx


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
