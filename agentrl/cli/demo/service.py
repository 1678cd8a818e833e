"""A service that a demo needs, started by the demo on a free port and ended with it, however the demo ends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from agentrl.errors import UserInputError
from agentrl.inference.guard import GRACE_S

START_S = 60.0
"""How long a service may take to start."""
_POLL_S = 0.05
_SHOWN_LINES = 5


@contextmanager
def running_service(name: str, options: Sequence[str], log: Path) -> Iterator[str]:
    """Run `agentrl serve NAME`; gives its address.

    Args:
        name: of the service.
        options: of its command line.
        log: file for what it writes.

    Raises:
        UserInputError: it does not start.
    """
    served = [sys.executable, "-m", "agentrl", "serve", name, "--port", "0", *options]
    # The guard ends the service when its standard input closes: also when this process is killed. In a session of its
    # own, so that Ctrl-C in a terminal reaches the run alone, which ends first.
    command = [sys.executable, "-m", "agentrl.inference.guard", *served]
    with log.open("wb") as written:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=written, start_new_session=True
        )
        try:
            yield _address(name, process, log)
        finally:
            _end(process)


def _address(name: str, process: subprocess.Popen[bytes], log: Path) -> str:
    """Where it listens, by the line that it logs when it does."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        for line in lines:
            with suppress(ValueError):  # a line that is no JSON: a warning of a library
                said = json.loads(line)
                if isinstance(said, dict) and said.get("event") == "serving":
                    return str(said["url"])
        if ended:
            shown = "\n".join(lines[-_SHOWN_LINES:])
            raise UserInputError(f"`agentrl serve {name}` ended before it served; the end of {log}:\n{shown}")
        time.sleep(_POLL_S)
    raise UserInputError(f"`agentrl serve {name}` does not serve after {START_S:.0f} s: see {log}")


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(2 * GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()  # the kernel then kills the service too
        process.wait()
