"""Deadlines that hold whatever a plug-in does with its cancellation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar, cast

logger = logging.getLogger(__name__)

T = TypeVar("T")
GRACE_S = 1.0
"""How long a plug-in that was cancelled may take to clean up."""


async def within(timeout_s: float | None, work: Awaitable[T]) -> T:
    """Wait for a plug-in's coroutine, at the longest until the deadline, or until the caller is cancelled.

    `asyncio.timeout` cancels once and then waits for as long as the coroutine likes: one that catches everything in a
    retry loop would hold its trajectory, and so the step, for ever. Here it is left behind after `GRACE_S`.

    Args:
        timeout_s: None: no deadline.
        work: what a plug-in's method returned.

    Raises:
        TimeoutError: the deadline passed.
        BaseException: whatever the coroutine raised, `SystemExit` included, which would end the event loop elsewhere.
    """
    task = asyncio.create_task(_outcome(work))
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    finally:
        if not task.done():
            task.cancel()
            stopped, _ = await asyncio.wait({task}, timeout=GRACE_S)
            if not stopped:
                logger.warning("%s goes on although it was cancelled: left behind", work)
    if not done:
        raise TimeoutError
    result, error = task.result()
    if error is not None:
        raise error
    return cast(T, result)


async def _outcome(work: Awaitable[T]) -> tuple[T | None, BaseException | None]:
    try:
        return await work, None
    except BaseException as error:  # raised again by the caller
        return None, error
