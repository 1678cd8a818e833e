"""Hosts of engines as Ray actors, on the machines that have the GPUs."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from agentrl.config.machine import uses_cuda
from agentrl.config.root import RunConfig
from agentrl.errors import AgentRLError, EngineUnavailable
from agentrl.inference.engine_host import EngineHost, Seat
from agentrl.inference.hosts import HostLostError, HostPlace
from agentrl.single_controller.engine_bundles import EngineBundles
from agentrl.single_controller.ray_machines import alive, answering, is_lost, lost_machine, machine_name, several

_PLAIN: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
# One call for the server's health, and a `stop` that does not wait for it.
_CONCURRENCY = {"max_concurrency": 2}
_GPUS_TIMEOUT_S = 300.0


class HostActor:
    """The content of a host's process."""

    def __init__(
        self, config: RunConfig, seat: Seat, log: Path, one_machine: bool, unset: tuple[str, ...] = ()
    ) -> None:
        for name in unset:
            os.environ.pop(name, None)
        self._node = ray.get_runtime_context().get_node_id()
        machine = None if one_machine else ray.util.get_node_ip_address()
        self._host = EngineHost(config, replace(seat, machine=machine), log)

    def node(self) -> str:
        """The id of its machine's Ray node."""
        return str(self._node)

    def call(self, method: str) -> Any:
        """Call a method of the host."""
        return getattr(self._host, method)()


def visible_here() -> list[str]:
    """The GPUs of a bundle, as CUDA_VISIBLE_DEVICES names them where a task runs in it."""
    return [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]


class RayPlace:
    """A host in a Ray actor.

    Args:
        config: the run; its device is settled.
        index: number of the engine.
        log: file for what the server writes, on the machine of the host.
        bundles: where its GPUs are reserved; None: on the CPU of `node`.
        node: id of the Ray node; None: where the bundles are.
        taken: by Ray node, the engines that are there; kept up to date.
    """

    is_remote = True

    def __init__(
        self,
        config: RunConfig,
        index: int,
        log: Path,
        *,
        bundles: EngineBundles | None = None,
        node: str | None = None,
        taken: dict[str, int] | None = None,
    ) -> None:
        self.index = index
        self._config, self._log, self._bundles = config, log, bundles
        self._one_machine = not several()
        self._taken = {} if taken is None else taken
        self._actor: Any = None
        self._node: str | None = None
        self._start(node)

    def submit(self, method: str) -> Future[Any]:
        """Call a method of the host."""
        if self._actor is None:  # `move` found no room
            lost: Future[Any] = Future()
            lost.set_exception(HostLostError(f"engine {self.index} has no host"))
            return lost
        future: Future[Any] = self._actor.call.remote(method).future()
        return future

    def result(self, future: Future[Any], timeout_s: float) -> Any:
        """What a call returned.

        Raises:
            AgentRLError: what it raised.
            HostLostError: the actor or its machine has ended, or there is no answer in time.
        """
        try:
            answer = future.result(timeout_s)
            if self._node is None:  # an error shall name its machine
                self._node = self._ask_node()
            return answer
        except concurrent.futures.TimeoutError as error:
            raise HostLostError(f"{self._what()} gives no answer in {timeout_s:g} s") from error
        except RayActorError as error:
            reason = lost_machine(self._node) or f"its host died on {self._where()}"
            raise HostLostError(f"engine {self.index} is lost: {reason}") from error
        except RayTaskError as error:
            if isinstance(error.cause, AgentRLError):
                raise error.cause from None
            raise EngineUnavailable(f"{self._what()} failed: {str(error).strip().splitlines()[-1]}") from error
        except RayError as error:
            raise HostLostError(f"{self._what()} is not reached: {str(error).splitlines()[0]}") from error

    def move(self) -> str | None:
        """Make a new actor: where the old one was if its machine lives, else on another machine.

        On CPUs that is the one with the fewest engines; on GPUs, one with as many free ones. An engine that shares GPUs
        with ranks is lost together with them.
        """
        lost = self._node is None or is_lost(self._node)
        self.close()
        if self._bundles is None:
            self._start(min(answering(), key=lambda node: self._taken.get(node, 0)))
        elif not lost or self._bundles.renew():
            self._start(None)
        else:
            return None
        return self._where()

    def close(self) -> None:
        """End the actor; the guard of its server ends the server."""
        if self._actor is None:
            return
        ray.kill(self._actor)
        self._actor = None
        if self._node in self._taken:
            self._taken[self._node] -= 1

    def _start(self, node: str | None) -> None:
        gpus = None if self._bundles is None else self._find_gpus(self._bundles)
        if self._bundles is not None:
            options = self._bundles.options(0)
        else:
            options = {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
        # Ray sets OMP_NUM_THREADS to the CPUs that an actor reserves; the server shall have what the user has set.
        unset = () if "OMP_NUM_THREADS" in os.environ else ("OMP_NUM_THREADS",)
        actor_class = ray.remote(HostActor).options(**_PLAIN, **_CONCURRENCY, **options)
        seat = Seat(self.index, gpus)
        self._actor = actor_class.remote(self._config, seat, self._log.resolve(), self._one_machine, unset)
        self._node = node
        if node is not None:
            self._taken[node] = self._taken.get(node, 0) + 1

    def _find_gpus(self, bundles: EngineBundles) -> tuple[str, ...] | None:
        """Names of its GPUs, where they are in several bundles; None: Ray shows the actor of one bundle its own."""
        if len(bundles.indices) == 1:
            return None
        task = ray.remote(max_calls=0)(visible_here)  # or each would cost a process
        asked = [task.options(num_cpus=0, **bundles.options(place)).remote() for place in range(len(bundles.indices))]
        try:
            found = ray.get(asked, timeout=_GPUS_TIMEOUT_S)
        except RayError as error:
            raise EngineUnavailable(f"engine {self.index}: Ray does not give it its GPUs: {error}") from error
        return tuple(name for names in found for name in names)

    def _what(self) -> str:
        return f"the host of engine {self.index} on {self._where()}"

    def _where(self) -> str:
        if self._node is None and self._actor is not None:
            self._node = self._ask_node()
        return "a machine of the Ray cluster" if self._node is None else f"machine {machine_name(self._node)}"

    def _ask_node(self) -> str | None:
        try:
            return str(ray.get(self._actor.node.remote(), timeout=_GPUS_TIMEOUT_S))
        except RayError:
            return None


def ray_places(
    config: RunConfig, logs: Sequence[Path], bundles: Mapping[int, EngineBundles] | None = None
) -> list[HostPlace]:
    """Hosts in Ray actors.

    Args:
        config: the run.
        logs: a file for each engine.
        bundles: on GPUs, where each engine's are reserved; None: engines are dealt over the machines in turn, this one
            first.
    """
    settled = _with_device(config)
    if bundles is not None:
        return [RayPlace(settled, index, log, bundles=bundles[index]) for index, log in enumerate(logs)]
    nodes, taken = [node["NodeID"] for node in alive()], dict[str, int]()
    return [
        RayPlace(settled, index, log, node=nodes[index % len(nodes)], taken=taken) for index, log in enumerate(logs)
    ]


def _with_device(config: RunConfig) -> RunConfig:
    """The run with its device as this machine understands it: `auto` may mean another one on other machines."""
    settled = config.model_copy(deep=True)
    settled.trainer.device = "cuda" if uses_cuda(config) else "cpu"
    return settled
