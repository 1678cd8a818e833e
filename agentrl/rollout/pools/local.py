"""The `local` backend: one worker in this process, on an event loop in its own thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from agentrl.inference.engine_load import EngineLoad
from agentrl.rollout.pools.scheduling import ChunkFuture
from agentrl.rollout.records import ChunkResult, Job, StepInfo
from agentrl.rollout.setup import RolloutSetup
from agentrl.rollout.worker import AgentLoopWorker

logger = logging.getLogger(__name__)

T = TypeVar("T")
STOP_TIMEOUT_S = 15.0


class LoopThread:
    """An event loop that runs in a daemon thread until it is stopped."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine there."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @property
    def running(self) -> bool:
        """Whether the loop still accepts work."""
        return self._loop.is_running()

    def stop(self) -> None:
        """Stop the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        if not self._thread.is_alive():
            self._loop.close()


class LocalPool:
    """One worker; all trajectories share its event loop.

    Args:
        setup: what all trajectories share.
        addresses: the engines.
        slots: most trajectories at the same time.
    """

    def __init__(self, setup: RolloutSetup, addresses: Sequence[str], slots: int) -> None:
        self.slots = [slots]
        self._thread = LoopThread("agentrl-rollout")
        self._worker = AgentLoopWorker(setup, addresses, slots)

    def submit(self, worker: int, jobs: Sequence[Job], step: StepInfo) -> ChunkFuture:
        """Start a chunk."""
        return self._thread.submit(self._worker.run_chunk(jobs, step))

    def result(self, worker: int, future: ChunkFuture) -> ChunkResult:
        """A finished chunk."""
        return future.result()

    def finished(self) -> int:
        """Trajectories that have ended so far, of all batches."""
        return self._worker.finished

    def cancel(self) -> None:
        """End every running trajectory."""
        self._wait(self._worker.cancel_all(), "trajectories did not end")

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Use these engines from now on."""
        self._thread.submit(self._worker.set_addresses(addresses)).result(STOP_TIMEOUT_S)

    def engine_loads(self, timeout_s: float) -> list[dict[str, EngineLoad]]:
        """What each engine does for the worker."""
        with suppress(concurrent.futures.TimeoutError):
            return [self._thread.submit(self._worker.engine_loads()).result(timeout_s)] if self._thread.running else []
        return []

    def shutdown(self) -> None:
        """End every trajectory, the connections and the thread. May be called twice."""
        if self._thread.running:
            self._wait(self._worker.close(), "the worker did not close")
            self._thread.stop()

    def _wait(self, work: Coroutine[Any, Any, None], problem: str) -> None:
        """Run the worker's own clean-up; one that hangs must not hide why the run stops."""
        try:
            self._thread.submit(work).result(STOP_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            logger.warning("%s within %g s", problem, STOP_TIMEOUT_S)
