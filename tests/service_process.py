"""Both services as a user starts them: `agentrl serve NAME`, in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from needs import needs_filter, python_of_all_users, trouble_with_namespaces

START_S = 60


@dataclass
class Service:
    """A running service."""

    url: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self.process.kill()
        self.process.wait()


@contextmanager
def serve(name: str, *options: str) -> Iterator[Service]:
    """`agentrl serve NAME` on a free port; unless it was killed, it must end well when it is told to."""
    if name == "sandbox":
        needs_filter()
    if name == "sandbox" and trouble_with_namespaces():
        options += ("--python", python_of_all_users())
    command = [sys.executable, "-c", "from agentrl.cli import main; main()", "serve", name, "--port", "0", *options]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stderr=log)
        try:
            service = Service(wait_for_url(process, log), process)
            yield service
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait()


def wait_for_url(process: subprocess.Popen[bytes], log: IO[str]) -> str:
    """Where a service that has just been started listens, by what it logs."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        log.seek(0)
        for line in log:
            if '"serving"' in line:
                return str(json.loads(line)["url"])
        time.sleep(0.05)
    log.seek(0)
    raise AssertionError(log.read())
