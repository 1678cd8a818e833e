"""Where the hosts of a run's engines live: `LocalPlace` in this process; `ray_hosts.RayPlace` in Ray actors."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from agentrl.config.root import RunConfig
from agentrl.errors import EngineUnavailable
from agentrl.inference.engine_host import EngineHost, Seat


class HostLostError(EngineUnavailable):
    """The process of a host, or its machine, has ended, and with it the engine."""


class HostPlace(Protocol):
    """A place with one `EngineHost`; the same calls for a host in this process and for one far away."""

    index: int
    """Number of the engine."""
    is_remote: bool
    """Whether the host is in another process, so that its server may be out of this one's reach."""

    def submit(self, method: str) -> Future[Any]:
        """Call a method of the host, without waiting for its result."""

    def result(self, future: Future[Any], timeout_s: float) -> Any:
        """What a call returned.

        Raises:
            AgentRLError: what it raised.
            HostLostError: the host has ended, or does not answer in time; says where it was.
        """

    def move(self) -> str | None:
        """After a loss, make a new host, elsewhere if need be; where it is, or None: there is no room for it."""

    def close(self) -> None:
        """End the host. May be called twice."""


class LocalPlace:
    """A host in this process; its server is a subprocess.

    Args:
        config: the run.
        seat: which server it is, and its GPUs.
        log: file for what the server writes.
    """

    is_remote = False

    def __init__(self, config: RunConfig, seat: Seat, log: Path) -> None:
        self.index = seat.index
        self._host = EngineHost(config, seat, log)
        # Two: `stop` must not wait for a health check.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix=f"engine-{seat.index}")

    def submit(self, method: str) -> Future[Any]:
        """Call a method of the host in a thread."""
        call: Callable[[], Any] = getattr(self._host, method)
        return self._threads.submit(call)

    def result(self, future: Future[Any], timeout_s: float) -> Any:
        """What a call returned; it always ends."""
        return future.result()

    def move(self) -> str | None:
        """A host in this process is not lost."""
        return None

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False)
