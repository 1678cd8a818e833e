"""The `ray` backend: one Ray actor per rank, joined by one process group."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import psutil
import ray
from torch._C._distributed_c10d import Store, TCPStore

from agentrl.data_proto import DataProto
from agentrl.errors import WorkerError
from agentrl.single_controller.dispatch import DispatchPlan, RankCall
from agentrl.single_controller.named_range import named_range
from agentrl.single_controller.ray_calls import RayCall, failure_of
from agentrl.single_controller.ray_placement import acquire, release
from agentrl.single_controller.ray_runtime import require_ray
from agentrl.single_controller.resource_pool import ResourcePool, cores
from agentrl.single_controller.worker import Placement, Worker
from agentrl.timeline import Timeline, TraceContext, current_trace

START_TIMEOUT_S = 300.0
CLOSE_TIMEOUT_S = 2.0
EXIT_TIMEOUT_S = 10.0


class RankHost:
    """The process of one rank (a Ray actor): holds the worker and the store through which the ranks meet."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self._worker: Worker | None = None
        self._timelines: list[Timeline] = []

    def pid(self) -> tuple[str, int]:
        """This rank's node id and process id."""
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def open_store(self, world_size: int, one_node: bool) -> tuple[str, int]:
        """On rank 0: listen on a free port; returns host and port."""
        host = "127.0.0.1" if one_node else ray.util.get_node_ip_address()
        store = TCPStore(host, 0, world_size, is_master=True, wait_for_workers=False)
        self._store = store
        return host, store.port

    def build(self, placement: Placement, worker_cls: type[Worker], call: RankCall) -> None:
        """Build the worker."""
        args, kwargs = call
        if placement.master_addr == "127.0.0.1" and os.path.exists("/sys/class/net/lo"):
            # gloo would otherwise resolve the host name, which fails or is slow on machines without a network.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        placement.apply_to_process()
        if placement.world_size > 1 and self._store is None:
            self._store = TCPStore(
                placement.master_addr, placement.master_port, placement.world_size, wait_for_workers=False
            )
        self._worker = worker_cls.place(placement, self._store, *args, **kwargs)

    def call(self, method: str, call: RankCall, trace: TraceContext | None, *_after: object) -> Any:
        """Run one registered method; Ray sends the call when the results of others (`_after`) are there."""
        args, kwargs = call
        timeline = Timeline(trace)
        if trace is not None:
            self._timelines.append(timeline)
        with timeline.current(), named_range(method):
            return getattr(self._worker, method)(*args, **kwargs)

    def take_timelines(self) -> list[Timeline]:
        """Those of the calls that were traced, once."""
        taken, self._timelines = self._timelines, []
        return taken

    def close(self) -> None:
        """Leave the process group."""
        if self._worker is not None:
            self._worker.close()


class RayBackend:
    """One `RankHost` actor per rank.

    Raises:
        ConfigError: Ray is not running, or the cluster has too few GPUs or machines.
        WorkerError: a rank died during its start.
    """

    def __init__(self, pool: ResourcePool, worker_cls: type[Worker], *args: Any, **kwargs: Any) -> None:
        require_ray()
        self.world_size = pool.world_size
        self._name = worker_cls.__name__
        self._pool = pool
        self._actors = [ray.remote(RankHost).options(**options).remote() for options in acquire(pool)]
        self._pids: list[tuple[str, int]] = []
        try:
            self._start_ranks(pool, worker_cls, (args, kwargs))
        except BaseException:
            self.shutdown()
            raise

    def _start_ranks(self, pool: ResourcePool, worker_cls: type[Worker], call: RankCall) -> None:
        self._pids = self._pending("start", [actor.pid.remote() for actor in self._actors]).results(START_TIMEOUT_S)
        host, port = "127.0.0.1", 0
        if self.world_size > 1:
            one_node = len({node for node, _ in self._pids}) == 1
            opened = [self._actors[0].open_store.remote(self.world_size, one_node)]
            host, port = self._pending("start", opened).results(START_TIMEOUT_S)[0]
        shared = ray.put(call)
        builds = []
        for rank, (node, local) in enumerate(pool.rank_slots()):
            local_size = pool.process_on_nodes[node]
            threads = pool.threads_per_rank or max(1, cores() // local_size)
            placement = Placement(rank, self.world_size, local, local_size, host, port, pool.use_gpu, threads)
            builds.append(self._actors[rank].build.remote(placement, worker_cls, shared))
        self._pending("__init__", builds).results()

    def start(self, method: str, plan: DispatchPlan, after: Sequence[RayBackend] = ()) -> RayCall:
        """Send the calls to their ranks."""
        # A rank does one thing at a time: an answer to `pid` says that what was sent before has ended.
        ended = [actor.pid.remote() for backend in after for actor in backend._actors]
        # Without `put`, Ray would serialise a batch that goes to 8 ranks 8 times.
        calls: dict[int, Any] = dict(plan.calls)
        if plan.shared and _holds_data(plan.calls[0]):
            calls = dict.fromkeys(calls, ray.put(plan.calls[0]))
        trace = current_trace()
        sent = [self._actors[rank].call.remote(method, call, trace, *ended) for rank, call in calls.items()]
        return self._pending(method, sent, list(calls))

    def check(self) -> None:
        """Ask every rank whether it is alive; a busy rank counts as alive.

        Raises:
            WorkerError: a rank is dead.
        """
        refs = [actor.pid.remote() for actor in self._actors]
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0.5)
        for ref in ready:
            rank = refs.index(ref)
            error = failure_of(ref, self._name, "check", rank, self.world_size, self._pids[rank][0])
            if error is not None:
                raise error

    def wait_until_free(self, timeout_s: float | None) -> None:
        """Wait until every rank answers: a rank does one thing at a time.

        Raises:
            WorkerError: a rank is dead, or still busy after `timeout_s`.
        """
        self._pending("check", [actor.pid.remote() for actor in self._actors]).results(timeout_s)

    def take_timelines(self, timeout_s: float) -> list[list[Timeline]]:
        """By rank, those of the calls that were traced."""
        return self._pending("trace", [actor.take_timelines.remote() for actor in self._actors]).results(timeout_s)

    def shutdown(self) -> None:
        """Let every rank close, then end the processes and wait until they have exited."""
        if not ray.is_initialized():  # they ended with the connection; Ray would start another cluster to ask it
            return
        closing = [actor.close.remote() for actor in self._actors]
        ray.wait(closing, num_returns=len(closing), timeout=CLOSE_TIMEOUT_S)
        for actor in self._actors:
            ray.kill(actor)
        here = ray.get_runtime_context().get_node_id()
        _wait_for_exit([pid for node, pid in self._pids if node == here])
        release(self._pool)

    def _pending(self, method: str, refs: list[Any], ranks: Sequence[int] | None = None) -> RayCall:
        """A call of these ranks; None: of the first ones."""
        nodes = [self._pids[rank][0] for rank in (range(len(refs)) if ranks is None else ranks)] if self._pids else ()
        return RayCall(refs, self._name, method, self.world_size, nodes)


def _holds_data(call: RankCall) -> bool:
    """Whether the arguments are large enough to send to the object store once instead of once per rank."""
    args, kwargs = call
    return any(isinstance(value, DataProto) for value in (*args, *kwargs.values()))


def _wait_for_exit(pids: list[int]) -> None:
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    while any(psutil.pid_exists(pid) and _running(pid) for pid in pids):
        if time.monotonic() > deadline:
            raise WorkerError(f"worker processes {pids} did not end within {EXIT_TIMEOUT_S:g} s")
        time.sleep(0.02)


def _running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
