"""The event loop's side of the engine: awaits the engine thread's reports, one wake-up per step."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from agentrl.inference.embedded.engine import Engine
from agentrl.inference.embedded.gate import Gate
from agentrl.inference.embedded.options import EngineOptions
from agentrl.inference.embedded.request import GenerationRequest, Progress

Gone = Callable[[], Awaitable[bool]]
GONE_CHECK_S = 2.0


class Frontend:
    """Submits requests from an event loop and awaits their answers.

    Args:
        options: options of the engine; it is built here and started by `start`.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.engine = Engine(options, self._heard)
        self.gate = Gate()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start the engine's thread; call it from the event loop that awaits the answers."""
        self._loop = asyncio.get_running_loop()
        self.engine.start()

    async def finished(self, requests: list[GenerationRequest], gone: Gone | None = None) -> list[Progress]:
        """Run requests until they end.

        Args:
            requests: the requests.
            gone: called every `GONE_CHECK_S`; when it returns true, nobody is waiting and the requests are aborted.

        Raises:
            UserInputError: another request has the id of one of them.
        """
        async with self.gate.request([request.rid for request in requests]):
            return await self._finished(requests, gone)

    async def _finished(self, requests: list[GenerationRequest], gone: Gone | None) -> list[Progress]:
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Progress]] = []
        for request in requests:
            future: asyncio.Future[Progress] = loop.create_future()
            request.sink = future.set_result
            futures.append(future)
        self.engine.submit(requests)
        pending: set[asyncio.Future[Progress]] = set(futures)
        try:
            while pending:
                _, pending = await asyncio.wait(pending, timeout=GONE_CHECK_S if gone else None)
                if pending and gone is not None and await gone():
                    self._abort(requests)
                    gone = None
        except asyncio.CancelledError:
            self._abort(requests)
            raise
        return [future.result() for future in futures]

    async def stream(self, requests: list[GenerationRequest]) -> AsyncIterator[Progress]:
        """Run requests and yield after each of their tokens; the last report of each request has `finish` set.

        Raises:
            UserInputError: as `finished`.
        """
        async with self.gate.request([request.rid for request in requests]):
            async for progress in self._stream(requests):
                yield progress

    async def _stream(self, requests: list[GenerationRequest]) -> AsyncIterator[Progress]:
        queue: asyncio.Queue[Progress] = asyncio.Queue()
        for request in requests:
            request.stream, request.sink = True, queue.put_nowait
        self.engine.submit(requests)
        left = len(requests)
        try:
            while left:
                progress = await queue.get()
                left -= progress.finish is not None
                yield progress
        finally:
            if left:
                self._abort(requests)

    def _abort(self, requests: list[GenerationRequest]) -> None:
        for request in requests:
            self.engine.abort_one(request)

    def _heard(self, heard: list[Progress]) -> None:
        """Called from the engine's thread."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is waiting
            self._loop.call_soon_threadsafe(_pass_on, heard)


def _pass_on(heard: list[Progress]) -> None:
    for progress in heard:
        progress.request.sink(progress)
