"""The `ray` backend: each worker is an async actor with one event loop; a worker that died is replaced."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from agentrl.config.root import RunConfig
from agentrl.errors import AgentRLError, WorkerError
from agentrl.inference.engine_load import EngineLoad
from agentrl.rollout.pools.scheduling import ChunkFuture, WorkerLostError
from agentrl.rollout.records import ChunkResult, Job, StepInfo
from agentrl.rollout.setup import RolloutSetup
from agentrl.rollout.worker import AgentLoopWorker
from agentrl.single_controller.ray_machines import answering, lost_machine

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 15.0
FINISHED_TIMEOUT_S = 0.5
"""How long the count of what has ended may take: it is only shown."""
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class AgentLoopActor:
    """The content of a worker's process: an `AgentLoopWorker` and the set-up that all its trajectories share."""

    def __init__(self, config: RunConfig, addresses: Sequence[str], slots: int, workers: int) -> None:
        self._worker = AgentLoopWorker(RolloutSetup.load(config), addresses, slots, workers)

    async def ready(self) -> str:
        """Once the set-up is done, the id of its machine's Ray node."""
        return str(ray.get_runtime_context().get_node_id())

    async def run_chunk(self, jobs: Sequence[Job], step: StepInfo) -> ChunkResult:
        """See `AgentLoopWorker.run_chunk`."""
        return await self._worker.run_chunk(jobs, step)

    async def finished(self) -> int:
        """See `AgentLoopWorker.finished`."""
        return self._worker.finished

    async def set_addresses(self, addresses: Sequence[str]) -> None:
        """See `AgentLoopWorker.set_addresses`."""
        await self._worker.set_addresses(addresses)

    async def engine_loads(self) -> dict[str, EngineLoad]:
        """See `AgentLoopWorker.engine_loads`."""
        return await self._worker.engine_loads()

    async def cancel_all(self) -> None:
        """See `AgentLoopWorker.cancel_all`."""
        await self._worker.cancel_all()

    async def close(self) -> None:
        """See `AgentLoopWorker.close`."""
        await self._worker.close()


class RayPool:
    """Workers as Ray actors. They reserve no CPU: they wait on engines and tools most of the time.

    Args:
        config: the run.
        addresses: the engines.
        slots: of each worker, most trajectories at the same time.
    """

    def __init__(self, config: RunConfig, addresses: Sequence[str], slots: list[int]) -> None:
        self.slots = slots
        self._config = config
        self._addresses = list(addresses)
        self._actor_class = ray.remote(num_cpus=0, max_restarts=0, runtime_env={"env_vars": _ENVIRONMENT})(
            AgentLoopActor
        )
        self._ready: dict[int, Any] = {}
        self._ran_by: dict[ChunkFuture, tuple[Any, Any]] = {}
        machines = answering()
        self._actors = [self._start(index, machines) for index in range(len(slots))]
        self._is_started = False

    def submit(self, worker: int, jobs: Sequence[Job], step: StepInfo) -> ChunkFuture:
        """Start a chunk on a worker, or on a new one if the last died.

        Raises:
            UserInputError: the set-up of a worker failed.
            WorkerError: a worker did not start.
        """
        self._wait_for_start()
        if self._actors[worker] is None:
            self._actors[worker] = self._start(worker, answering())
        actor = self._actors[worker]
        future: ChunkFuture = actor.run_chunk.remote(list(jobs), step).future()
        self._ran_by[future] = actor, self._ready[worker]
        return future

    def result(self, worker: int, future: ChunkFuture) -> ChunkResult:
        """A finished chunk.

        Raises:
            WorkerLostError: the worker died; the next `submit` to it starts a new one.
        """
        actor, ready = self._ran_by.pop(future)
        try:
            return future.result()
        except RayActorError as error:
            if self._actors[worker] is actor:  # else it is replaced already: a dead worker may have had several chunks
                self._actors[worker] = None
            lost = lost_machine(_node_of(ready))
            reason = lost or str(error).strip().splitlines()[0]
            raise WorkerLostError(f"agent-loop worker {worker} died: {reason}", machine=lost is not None) from error
        except RayError as error:
            raise _own_error(error, f"agent-loop worker {worker} failed") from error

    def finished(self) -> int:
        """Trajectories that have ended so far, of all batches; a worker that does not answer now has ended none."""
        asked = [actor.finished.remote() for actor in self._actors if actor is not None]
        answered, _ = ray.wait(asked, num_returns=len(asked), timeout=FINISHED_TIMEOUT_S) if asked else ([], [])
        total = 0
        for answer in answered:
            with contextlib.suppress(RayError):  # it died: the chunks that it had tell
                total += ray.get(answer)
        return total

    def cancel(self) -> None:
        """End every running trajectory."""
        self._ask_all("cancel_all")
        self._ran_by.clear()

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Use these engines from now on."""
        self._addresses = list(addresses)
        self._ask_all("set_addresses", self._addresses)

    def engine_loads(self, timeout_s: float) -> list[dict[str, EngineLoad]]:
        """By worker, what each engine does for it."""
        asked = [actor.engine_loads.remote() for actor in list(self._actors) if actor is not None]
        answered, _ = ray.wait(asked, num_returns=len(asked), timeout=timeout_s) if asked else ([], [])
        loads: list[dict[str, EngineLoad]] = []
        for answer in answered:
            with contextlib.suppress(RayError):
                loads.append(ray.get(answer))
        return loads

    def shutdown(self) -> None:
        """End every trajectory and every worker. May be called twice."""
        self._ask_all("close")
        for actor in self._actors:
            if actor is not None:
                ray.kill(actor)
        self._actors = [None] * len(self.slots)

    def _wait_for_start(self) -> None:
        """Workers set themselves up while the run starts other processes; the first chunk waits for them."""
        if self._is_started:
            return
        self._is_started = True
        try:
            ray.get(list(self._ready.values()), timeout=START_TIMEOUT_S)
        except RayError as error:
            raise _own_error(error, "agent-loop workers did not start") from error

    def _start(self, index: int, machines: list[str]) -> Any:
        # In turns, not where Ray likes: it may put all on one machine, or take one that is lost for one with room.
        # Firmly: Ray 2.60 does not heed a soft wish for an actor with environment variables. No machines: Ray does not
        # run yet and starts itself with the first actor.
        place = NodeAffinitySchedulingStrategy(machines[index % len(machines)], soft=False) if machines else None
        actor = self._actor_class.options(name=None, scheduling_strategy=place).remote(
            self._config, self._addresses, self.slots[index], len(self.slots)
        )
        self._ready[index] = actor.ready.remote()
        return actor

    def _ask_all(self, method: str, *arguments: Any) -> None:
        """Call a method of every worker; dead or stuck workers are ignored."""
        calls = [getattr(actor, method).remote(*arguments) for actor in self._actors if actor is not None]
        for call in calls:
            with contextlib.suppress(RayError):
                ray.get(call, timeout=STOP_TIMEOUT_S)


def _node_of(ready: Any) -> str | None:
    """The Ray node of a worker, by its answer to `ready`; None: it died before it said so."""
    try:
        return str(ray.get(ready, timeout=0))
    except RayError:
        return None


def _own_error(error: RayError, what: str) -> AgentRLError:
    cause = error.cause if isinstance(error, RayTaskError) else None
    if isinstance(cause, AgentRLError):
        return cause
    return WorkerError(f"{what}: {str(cause or error).strip().splitlines()[-1]}")
