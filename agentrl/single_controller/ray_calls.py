"""Waits for Ray calls, and turns failures into one readable error."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from agentrl.errors import AgentRLError, WorkerError
from agentrl.single_controller.ray_machines import lost_machine

GRACE_S = 5.0
"""How long to wait for the other ranks after one failed: the first error is often not the cause."""


class RayCall:
    """One method running on several ranks.

    Args:
        refs: of the calls.
        worker: name of the class, for errors.
        method: for errors.
        world_size: for errors.
        nodes: the Ray node of each call, where it is known: an error names the machine of a rank that died.
    """

    def __init__(
        self, refs: list[Any], worker: str, method: str, world_size: int, nodes: Sequence[str | None] = ()
    ) -> None:
        self._refs = refs
        self._worker = worker
        self._method = method
        self._world_size = world_size
        self._nodes = nodes or [None] * len(refs)

    def done(self) -> bool:
        """True when every rank has answered or failed."""
        ready, _ = ray.wait(self._refs, num_returns=len(self._refs), timeout=0, fetch_local=False)
        return len(ready) == len(self._refs)

    def results(self, timeout_s: float | None = None) -> list[Any]:
        """Wait for all ranks; after a failure wait only `GRACE_S` for the others and raise the most informative error.

        Rank 1 runs out of memory: rank 0 may report first that a peer closed the connection. Both errors arrive within
        the grace period, and rank 1's is raised.
        """
        errors: list[AgentRLError] = []
        pending = list(self._refs)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while pending:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, pending = ray.wait(pending, num_returns=1, timeout=left)
            if not ready:
                break
            for ref in ready:
                rank = self._refs.index(ref)
                error = failure_of(ref, self._worker, self._method, rank, self._world_size, self._nodes[rank])
                if error is not None:
                    errors.append(error)
                    deadline = time.monotonic() + GRACE_S if len(errors) == 1 else deadline
        if errors:
            raise min([*errors, *self._lost(pending)], key=_rank_of_error)
        if pending:
            raise WorkerError(
                f"{self._worker}.{self._method}: no answer from {len(pending)} ranks within {timeout_s:g} s"
            )
        return list(ray.get(self._refs))

    def _lost(self, pending: Sequence[Any]) -> Iterator[AgentRLError]:
        """Ranks that do not answer because their machine is lost, which Ray may not know yet: others failed by that."""
        for rank in map(self._refs.index, pending):
            if (lost := lost_machine(self._nodes[rank])) is not None:
                where = f"rank {rank} of {self._world_size} ({self._worker})"
                yield DeadRankError(f"{where} died in {self._method}: {lost}")


def failure_of(
    ref: Any, worker: str, method: str, rank: int, world_size: int, node: str | None = None
) -> AgentRLError | None:
    """The failure of a finished call, as an agentrl error that names the rank; None if it succeeded."""
    where = f"rank {rank} of {world_size} ({worker})"
    try:
        ray.get(ref)
    except RayTaskError as error:
        return _own_error(error, where, method)
    except RayActorError as error:
        return DeadRankError(f"{where} died in {method}: {lost_machine(node) or _death(error)}")
    except RayError as error:
        if (lost := lost_machine(node)) is not None:  # and with it what the rank has answered
            return DeadRankError(f"{where} died in {method}: {lost}")
        return WorkerError(f"{where} failed in {method}: {type(error).__name__}: {str(error).splitlines()[0]}")
    return None


def _own_error(error: RayTaskError, where: str, method: str) -> AgentRLError:
    """The worker's own agentrl error, else a `WorkerError`; both have the rank's traceback as a note."""
    cause = error.cause
    text = f"{type(cause).__name__}: {cause}" if cause is not None else str(error).strip().splitlines()[-1]
    own = cause if isinstance(cause, AgentRLError) else WorkerError(f"{where} failed in {method}: {text}")
    own.add_note(f"raised in {where}, {method}:\n{error}")
    return own


class DeadRankError(WorkerError):
    """The process of a rank has ended."""


def _rank_of_error(error: AgentRLError) -> int:
    """Order of errors: a worker's own, then a death, then effects on other ranks (a peer closed the connection)."""
    if isinstance(error, DeadRankError):
        return 1
    return 2 if isinstance(error, WorkerError) else 0


def _death(error: RayActorError) -> str:
    """The informative part of Ray's report, which is a page of possible reasons."""
    text = str(error)
    if "memory monitor" in text:
        return "Ray's memory monitor ended it: the machine ran short of memory"
    if "connection error code 2" in text:
        return "its process was killed or crashed (by a signal, or by the kernel when memory ran out)"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "exit detail" in line.lower()), lines[0])
