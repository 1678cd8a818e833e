"""Cancels work for a client that has disconnected, to free its place for waiting clients."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

T = TypeVar("T")
CLIENT_CLOSED_REQUEST = 499
"""How nginx, too, logs what nobody was there to read."""


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work of a request whose body is read; cancel it when the client closes the connection.

    Raises:
        ClientDisconnect: it did.
    """
    task, disconnect = asyncio.create_task(work), asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, disconnect):
            each.cancel()
        await asyncio.gather(task, disconnect, return_exceptions=True)


async def answer_disconnected(_: Request, error: Exception) -> Response:
    """For the log alone."""
    assert isinstance(error, ClientDisconnect)
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
