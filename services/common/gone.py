"""Work for a client that has gone away is given up: its place belongs to those who still wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

T = TypeVar("T")
GONE = 499
"""How nginx, too, logs what nobody was there to read."""


async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work of a request whose body is read; cancel it when the client closes the connection.

    Raises:
        ClientDisconnect: it did.
    """
    task, gone = asyncio.create_task(work), asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def answer_nobody(_: Request, error: Exception) -> Response:
    """For the log alone."""
    assert isinstance(error, ClientDisconnect)
    return Response(status_code=GONE)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
