"""Which requests may enter the engine, as SGLang's front end has it: none while it is paused or waits to be updated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from agentrl.errors import UserInputError


class Gate:
    """Requests go in through it, and weight updates. Use it in one event loop.

    Attributes:
        paused: nobody enters.
        rids: ids of the requests that wait here or are in the engine.
    """

    def __init__(self) -> None:
        self.paused = False
        self.rids: set[str] = set()
        self._inside = self._updates = 0
        self._change = asyncio.Condition()

    def check(self, rids: Collection[str]) -> None:
        """Refuse requests whose id another one has.

        Raises:
            UserInputError: names the id.
        """
        for rid in rids:
            if rid in self.rids:
                raise UserInputError(f"Duplicate request ID detected: {rid}")

    @asynccontextmanager
    async def request(self, rids: Collection[str]) -> AsyncIterator[None]:
        """Wait until requests may enter; they are inside until the block ends.

        Raises:
            UserInputError: another request has one of the ids.
        """
        self.check(rids)
        self.rids.update(rids)
        try:
            async with self._change:
                await self._change.wait_for(lambda: not (self.paused or self._updates))
                self._inside += 1
            try:
                yield
            finally:
                self._inside -= 1
                await self._tell()
        finally:
            self.rids.difference_update(rids)

    @asynccontextmanager
    async def update(self) -> AsyncIterator[None]:
        """Change the weights in this block: at once while paused, else when all requests inside have ended."""
        # A request of 30 s is inside: the update waits for it, and requests that come now wait for the update.
        if self.paused:
            yield
            return
        self._updates += 1
        try:
            async with self._change:
                await self._change.wait_for(lambda: not self._inside)
            yield
        finally:
            self._updates -= 1
            await self._tell()

    async def resume(self) -> None:
        """End the pause."""
        self.paused = False
        await self._tell()

    async def _tell(self) -> None:
        async with self._change:
            self._change.notify_all()
