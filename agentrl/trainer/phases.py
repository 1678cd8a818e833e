"""Turns on shared GPUs: engines have the memory while rollouts run, training ranks while they learn.

One step, from left to right; `-` has no memory on the GPU::

    engines   serve | rest, release |   -              -        | weights  weights |   -       | cache, serve
    ranks       -   |       -       | passes  keep,    update   |    -     send    | offload   |   -

Weights come back before the cache: new ones are written into them while the ranks still hold theirs, and only when
those have left is there room for the cache. An engine that fails on the way, or is left out of the weights, is ended,
since nobody knows what its memory holds, and started again afterwards; the others go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from agentrl.errors import EngineError
from agentrl.inference.client import EngineClient
from agentrl.single_controller import WorkerGroup

logger = logging.getLogger(__name__)

WEIGHTS, KV_CACHE = "weights", "kv_cache"
_REST_TRIES, _REST_PAUSE_S = 40, 0.25
"""An engine that was told to end its requests needs a moment until none is left."""


class Engines(Protocol):
    """The engines that the run started."""

    @property
    def kept(self) -> list[str]:
        """Where they are, well or not, but for those that are given up."""

    def tend(self, *, wait: bool = False) -> list[str]:
        """Start those again that ended; the addresses of those that are well. `wait`: for those that start."""

    def drop(self, address: str) -> None:
        """End one; a later `tend` starts it again."""


class Send(Protocol):
    """Gives engines, which have memory for weights, the actor's."""

    def __call__(self, version: int, addresses: list[str], *, resume: bool = True) -> list[str]:
        """Send them as this version; `resume`: let the engines go on.

        Returns:
            Addresses of those that took all of them, at least one.

        Raises:
            EngineError: none did.
        """


class Phases:
    """Owns the turns of engines and ranks.

    Args:
        engines: they take turns with the ranks.
        make_client: builds a client for an address.
        send: gives engines the actor's weights.
        use: rollouts use the engines at these addresses, and no others.
        actor: the ranks whose weights are sent.
        groups: all ranks on these GPUs.
        frees: whether engines release their memory at all; if not, every call does nothing.
        keeps_weights: engines release their cache only: what is sent does not replace all of their weights.
    """

    def __init__(
        self,
        engines: Engines,
        make_client: Callable[[str], EngineClient],
        send: Send,
        use: Callable[[list[str]], None],
        *,
        actor: WorkerGroup,
        groups: Sequence[WorkerGroup],
        frees: bool,
        keeps_weights: bool = False,
    ) -> None:
        self._engines, self._make_client, self._send, self._use = engines, make_client, send, use
        self._actor, self._groups = actor, groups
        self._frees = frees
        self._tags = (KV_CACHE,) if keeps_weights else (KV_CACHE, WEIGHTS)
        self._resting: list[str] | None = None
        """Engines whose memory is released; None: it is their turn."""
        self._seconds: dict[str, float] = {}

    def train(self) -> None:
        """The ranks' turn, if it is not yet: engines end their requests and release their memory."""
        if not self._frees or self._resting is not None:
            return
        began = time.perf_counter()
        self._resting = []  # from here on engines are brought back, whatever happens
        self._resting = self._tell(self._engines.kept, self._release)
        self._seconds["timing_s/release_engines"] = time.perf_counter() - began

    def load(self) -> None:
        """The actor's weights stay on the GPU from its update until they were sent."""
        if self._resting is not None:
            self._actor.keep_on_device()

    def serve(self, version: int) -> bool:
        """The engines' turn, if it is not yet: they get their memory back, and the actor's weights as `version`.

        Returns:
            Whether it was the ranks' turn.

        Raises:
            EngineError: no engine took the weights. All of them are ended.
        """
        if self._resting is None:
            return False
        began = time.perf_counter()
        rested, self._resting = self._resting, None
        ready = self._tell(rested, self._resume_weights) if WEIGHTS in self._tags else rested
        taken: list[str] = []
        try:
            if ready:  # without a cache they cannot even show that they are well
                taken = self._send(version, ready, resume=False)
        finally:
            try:
                self._offload()
            finally:
                for address in sorted(set(ready) - set(taken)):
                    self._end(address, "It did not take all of the new weights.")
                back = self._tell(taken, self._resume_cache)
        if len(back) < len(self._engines.kept):
            well = self._engines.tend(wait=True)  # it is ended again if it still starts when the ranks' turn comes
            back = back or self._send(version, well)
        self._use(back)
        self._seconds["timing_s/resume_engines"] = time.perf_counter() - began
        return True

    def take_seconds(self) -> dict[str, float]:
        """What the last turns took."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def _offload(self) -> None:
        for future in [group.submit("yield_device") for group in self._groups]:
            future.get()

    async def _release(self, client: EngineClient) -> None:
        await client.pause("abort")
        for left in reversed(range(_REST_TRIES)):
            try:
                await client.flush_cache()  # refused as long as a request runs, and a release would then end SGLang
                break
            except EngineError:
                if not left:
                    raise
                await asyncio.sleep(_REST_PAUSE_S)
        await client.release_memory(self._tags)

    async def _resume_weights(self, client: EngineClient) -> None:
        await client.resume_memory((WEIGHTS,))

    async def _resume_cache(self, client: EngineClient) -> None:
        await client.resume_memory((KV_CACHE,))
        await client.resume()

    def _tell(self, addresses: Sequence[str], call: Callable[[EngineClient], Awaitable[None]]) -> list[str]:
        """Tell all engines at once; those that did it. The others are ended."""
        outcomes = asyncio.run(self._tell_all(addresses, call))
        for address, error in outcomes.items():
            if error is not None:
                self._end(address, str(error))
        return [address for address, error in outcomes.items() if error is None]

    def _end(self, address: str, reason: str) -> None:
        logger.warning("%s\nEnding %s, which is started again for the next rollouts.", reason, address)
        self._engines.drop(address)

    async def _tell_all(
        self, addresses: Sequence[str], call: Callable[[EngineClient], Awaitable[None]]
    ) -> dict[str, EngineError | None]:
        async def tell(address: str) -> EngineError | None:
            client = self._make_client(address)
            try:
                await call(client)
            except EngineError as error:
                return error
            finally:
                await client.close()
            return None

        return dict(zip(addresses, await asyncio.gather(*map(tell, addresses)), strict=True))
