"""What the engines of a run do for its routers, of which each agent-loop worker has one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from agentrl.inference.router import Router


class EngineLoad(NamedTuple):
    """One engine, as one router sees it; or as several do, in sum."""

    trajectories: int
    """Trajectories that stick to it."""
    waiting: int
    """Requests that wait for its answer."""
    answers: int
    """Requests that it has answered since it was last admitted."""
    out: int
    """Routers that do not use it now."""


def loads_of(router: Router) -> dict[str, EngineLoad]:
    """By address of the engine."""
    return {
        server.client.address: EngineLoad(
            len(server.trajectories), len(server.waiting), server.answers, int(server.reason_out is not None)
        )
        for server in router._servers
    }


def sum_of(routers: Iterable[Mapping[str, EngineLoad]]) -> dict[str, EngineLoad]:
    """The engines as all routers see them together."""
    total: dict[str, EngineLoad] = {}
    for loads in routers:
        for address, load in loads.items():
            before = total.get(address, EngineLoad(0, 0, 0, 0))
            total[address] = EngineLoad(*(a + b for a, b in zip(before, load, strict=True)))
    return total
