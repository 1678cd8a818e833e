"""Engines in a weight update: they go through its phases together, and one that fails in any of them is out.

Out means: not resumed, not in use, until a later update has gone through all phases from the start. While weights are
on their way, an engine serves a version that no run asks for (`updating-7`), so that one which was left half-way is
never taken for one that is in step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from agentrl.errors import EngineError, EngineTimeout, EngineUnavailable, WeightVersionError
from agentrl.inference.client import EngineClient
from agentrl.inference.protocol import name_version
from agentrl.inference.weights.calls import UpdateCalls, each
from agentrl.timeline import span_here

logger = logging.getLogger(__name__)
Call = Callable[[EngineClient], Coroutine[Any, Any, None]]


class EnginesInUpdate:
    """The engines of one update. A context manager.

    Args:
        make_client: builds a client for an engine's address.
        addresses: of the engines.
        timeout_s: limit of each phase. An engine that needs longer is out; the others get as much for the next phase.

    Attributes:
        left: engines that came through all phases so far.
        out: why the others did not.
    """

    def __init__(self, make_client: Callable[[str], EngineClient], addresses: Sequence[str], timeout_s: float) -> None:
        self.left = list(addresses)
        self.out: dict[str, EngineError] = {}
        self.timeout_s, self._make_client = timeout_s, make_client
        self._runner = asyncio.Runner()
        self._clients: dict[str, EngineClient] = {}

    def __enter__(self) -> Self:
        """Connect when needed."""
        self._runner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""

        async def close() -> None:
            await asyncio.gather(*(client.close() for client in self._clients.values()))

        self._runner.run(close())
        self._runner.close()

    def run(self, phase: str, call: Call) -> None:
        """Let all engines go through a phase at the same time."""
        if self.left:
            with span_here(f"sync: {phase}"):
                self.drop(phase, self._runner.run(self._each(phase, call)))

    def drop(self, phase: str, failed: Mapping[str, EngineError]) -> None:
        """Leave engines out that failed in a phase."""
        for address, error in failed.items():
            logger.warning("weights, phase '%s': continuing without the engine %s: %s", phase, address, error)
        self.out |= failed
        self.left = [address for address in self.left if address not in failed]

    def check_any_left(self) -> None:
        """See that the update can go on.

        Raises:
            EngineError: no engine is left: what one of them refused, or else that none can be reached.
        """
        if self.left:
            return
        for error in self.out.values():
            if not isinstance(error, EngineUnavailable | EngineTimeout):
                raise error
        raise EngineUnavailable("no engine took the new weights: " + "; ".join(map(str, self.out.values())))

    async def _each(self, phase: str, call: Call) -> dict[str, EngineError]:
        for address in self.left:
            self._clients.setdefault(address, self._make_client(address))

        async def limited(address: str) -> None:
            try:
                async with asyncio.timeout(self.timeout_s):
                    await call(self._clients[address])
            except TimeoutError:
                raise EngineTimeout(f"{address} gave no answer within {self.timeout_s:g} s") from None

        return await each({address: limited(address) for address in self.left})


async def begin_update(client: EngineClient, version: int, limit_s: float) -> None:
    """Open an update of weights that come bucket by bucket."""
    calls = UpdateCalls(client, limit_s)
    await calls.name_version(f"updating-{version}")
    await calls.begin()


async def end_update(client: EngineClient, version: int, limit_s: float) -> None:
    """Close it, and name what came."""
    calls = UpdateCalls(client, limit_s)
    await calls.end()
    await calls.name_version(str(version))


async def check_version(client: EngineClient, version: int) -> None:
    """See that an engine serves a version.

    Raises:
        WeightVersionError: it serves another one.
    """
    served = await client.weight_version()
    if served != version:
        raise WeightVersionError(
            f"{client.address} serves weight version {name_version(served)} after an update to {version}: "
            "is another run using this server?"
        )
