"""Whether an engine is well. A paused one is; one that samples nothing although nobody paused it is not.

SGLang's `/health` wants a token, which a paused server does not give: it answers 503 after 20 s. But any answer of its
scheduler makes a health check good that is under way. So a server that is not ready is asked for its state meanwhile:

    paused:   /ready 503, /health with /server_info 200, /ready still 503   -> well
    hung:     /ready 503, /health with /server_info 503 or no answer        -> ill
    was ill:  /ready 503, /health with /server_info 200, /ready 200         -> `/health` alone decides
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import httpx

Status = Callable[[str], Awaitable[int]]
"""Sends GET to a path; the status, 0 if there is no answer."""
_HEAD_START_S, _AGAIN_S = 0.2, 0.5
"""The state is asked for so long after the health check has begun, and again in this interval."""


async def is_well(status: Status, path: str) -> bool:
    """Whether an engine is well, paused or not.

    Args:
        status: asks it; bounds how long each answer may take.
        path: its health check, in which it has to sample.
    """
    if await status("/ready") == 503:  # 404: an engine that does not know the question
        if not await _shows_signs(status):
            return False
        if await status("/ready") == 503:
            return True
    return await status(path) == 200


async def _shows_signs(status: Status) -> bool:
    health = asyncio.ensure_future(status("/health"))
    try:
        await asyncio.wait({health}, timeout=_HEAD_START_S)
        while not health.done():
            await status("/server_info")
            await asyncio.wait({health}, timeout=_AGAIN_S)
        return health.result() == 200
    finally:
        health.cancel()


def quick_client(timeout_s: float) -> httpx.Client:
    """For short questions to servers."""
    return httpx.Client(timeout=timeout_s, trust_env=False, verify=_certificates())


@cache
def _certificates() -> ssl.SSLContext:
    """Loading them takes longer than the questions, so it is done once in a process."""
    return httpx.create_ssl_context(trust_env=False)


def is_well_now(http: httpx.Client, address: str, path: str) -> bool:
    """As `is_well`, for callers without an event loop; each answer may take as long as `http` allows."""

    def get(where: str) -> int:
        try:
            return http.get(address + where).status_code
        except (httpx.HTTPError, RuntimeError):  # the latter: `http` was closed
            return 0

    async def ask() -> bool:
        return await is_well(lambda where: asyncio.to_thread(get, where), path)

    with ThreadPoolExecutor(1) as thread:  # the caller's thread may have a loop
        return thread.submit(asyncio.run, ask()).result()
