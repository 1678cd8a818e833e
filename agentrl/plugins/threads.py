"""Runs users' blocking functions outside the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any

from agentrl.errors import text_of

Work = Callable[[], None]


class SpareThreads:
    """Daemon threads that wait for work; one that hangs is simply never used again."""

    def __init__(self) -> None:
        self._idle: deque[SimpleQueue[Work]] = deque()
        os.register_at_fork(after_in_child=self._idle.clear)  # a child has none of its parent's threads

    def run(self, work: Work) -> None:
        """Run `work`, which must not raise, in a waiting thread, or else in a new one."""
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name="agentrl-plugin", daemon=True).start()
        inbox.put(work)

    def _serve(self, inbox: SimpleQueue[Work]) -> None:
        while True:
            inbox.get()()
            self._idle.append(inbox)


_THREADS = SpareThreads()


async def call_in_thread(function: Callable[[], Any]) -> Any:
    """Run `function` in a daemon thread of its own, and wait for it.

    A function that hangs blocks neither other functions nor the end of the process.
    """
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = context.run(function), None
        except BaseException as error:  # handed to the caller, as every executor does
            outcome = None, _bearable(error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    _THREADS.run(run)
    return await future


async def contained(work: Awaitable[Any]) -> Any:
    """Await a user's awaitable in its own task; `sys.exit` there is an error like any other.

    Raises:
        RuntimeError: instead of `SystemExit` and `KeyboardInterrupt`, which would end the event loop and everything
            that runs in it.
    """
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise _bearable(error) from error


def _bearable(error: BaseException) -> BaseException:
    """An exception that futures and event loops can pass on, with the trace of the one that they cannot."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {text_of(error)}").with_traceback(error.__traceback__)
