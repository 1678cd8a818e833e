"""Blocking functions of the user's, away from the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any


async def call_in_thread(function: Callable[[], Any]) -> Any:
    """Run `function` in a daemon thread of its own and wait for it.

    A thread of its own: one that hangs neither starves the others nor keeps the process from ending.
    """
    loop = asyncio.get_running_loop()
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
            outcome = function(), None
        except BaseException as error:  # handed to the caller, as every executor does
            outcome = None, error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="agentrl-score", daemon=True).start()
    return await future
