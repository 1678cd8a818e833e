"""JSON over HTTP to a service behind a plug-in, with deadlines and retries; then it is a `ToolServiceError`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx

from agentrl.clients.scope import WorkerScope
from agentrl.errors import ToolServiceError

_SHOWN = 200
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Failures after which the service has certainly not begun."""
_NOT_THERE = (404, 405, 410)
Refuse = Callable[[Any], str | None]
"""Returns why a decoded answer must not be used and the request is retried; None: the answer is good."""


class ServiceClient:
    """Calls one service.

    Busy answers (429), failures of the service (5xx), lost connections and missed deadlines are retried after a pause
    that doubles each time and varies at random; `Retry-After` is honoured up to `max_backoff_s`.

    Args:
        url: base address.
        timeout_s: deadline of one attempt, from connecting to the last byte.
        retries: attempts after the first.
        backoff_s: the first pause.
        max_backoff_s: the longest pause.
        headers: sent with every request.

    Raises:
        ValueError: the address is not http(s).
    """

    def __init__(
        self,
        url: Any,
        *,
        timeout_s: float = 10.0,
        retries: int = 3,
        backoff_s: float = 0.5,
        max_backoff_s: float = 30.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise ValueError(f"must be an http(s) address, got {url!r}")  # the caller puts the setting's name in front
        self.url = url.rstrip("/")
        self.scope: WorkerScope | None = None
        """Where connections are kept; None: in the client's own scope, which `aclose` closes."""
        self._timeout_s = timeout_s
        self._retries = retries
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._headers = dict(headers or {})
        self._own_scope: WorkerScope | None = None

    async def post(
        self,
        path: str,
        body: Any,
        *,
        timeout_s: float | None = None,
        repeatable: bool = True,
        refuse: Refuse | None = None,
        may_lack: bool = False,
    ) -> Any:
        """`POST` a JSON body and decode the JSON answer.

        Args:
            path: below the base address.
            body: JSON.
            timeout_s: replaces the client's deadline.
            repeatable: False if running the same request twice would do harm: it is retried only when the service has
                certainly not begun.
            refuse: says why a decoded answer must not be used.
            may_lack: return None if the service has no such path.

        Raises:
            ToolServiceError: no good answer after all attempts.
        """
        request = _Request("POST", self.url + path, body, timeout_s or self._timeout_s, refuse, may_lack)
        return await self._call(request, repeatable)

    async def delete(self, path: str) -> None:
        """`DELETE`; a resource that is already gone is fine.

        Raises:
            ToolServiceError: no good answer after all attempts.
        """
        await self._call(_Request("DELETE", self.url + path, None, self._timeout_s, None, may_lack=True), True)

    async def aclose(self) -> None:
        """Close the connections that this client opened for itself; shared ones stay."""
        if self._own_scope is not None:
            await self._own_scope.close()
            self._own_scope = None

    async def _call(self, request: _Request, repeatable: bool) -> Any:
        failure, attempt = "", 0
        for attempt in range(1, self._retries + 2):
            answer = await self._attempt(request)
            if not isinstance(answer, _Failure):
                return answer
            failure = answer.text
            if not (answer.not_begun or (answer.passing and repeatable)):
                break
            if attempt <= self._retries:
                # 0.5 s, 1 s, 2 s, ..., each varied by half: trajectories that failed together do not retry together.
                pause_s = self._backoff_s * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)
                await asyncio.sleep(min(max(answer.wait_s, pause_s), self._max_backoff_s))
        raise ToolServiceError(f"{request.url} failed after {attempt} attempt{'s' * (attempt > 1)}: {failure}")

    async def _attempt(self, request: _Request) -> Any:
        client = await self._connections()
        try:
            async with asyncio.timeout(request.timeout_s):
                response = await client.request(request.method, request.url, json=request.body, headers=self._headers)
        except TimeoutError:
            return _Failure(f"no answer within {request.timeout_s:g} s", passing=True)
        except httpx.TransportError as error:
            return _Failure(f"{type(error).__name__}: {error}", passing=True, not_begun=isinstance(error, _NOT_SENT))
        if not response.is_success:
            if request.may_lack and response.status_code in _NOT_THERE:
                return None
            busy = response.status_code == 429
            return _Failure(
                f"HTTP {response.status_code}: {response.text[:_SHOWN]}",
                passing=busy or response.status_code >= 500,
                not_begun=busy,
                wait_s=retry_after_s(response.headers.get("retry-after", "")),
            )
        if request.method == "DELETE":
            return None
        try:
            answer = response.json()
        except ValueError:
            return _Failure(f"the answer is not JSON: {response.text[:_SHOWN]}")
        reason = request.refuse(answer) if request.refuse is not None else None
        return answer if reason is None else _Failure(reason, passing=True)

    async def _connections(self) -> httpx.AsyncClient:
        scope = self.scope
        if scope is None:
            scope = self._own_scope = self._own_scope or WorkerScope()
        parts = urlsplit(self.url)
        return await scope.get(("http", parts.scheme, parts.netloc), lambda: _connections(parts.scheme == "https"))


@dataclass(frozen=True, slots=True)
class _Request:
    """One request, the same at every attempt."""

    method: str
    url: str
    body: Any
    timeout_s: float
    refuse: Refuse | None
    may_lack: bool


class _Failure:
    """One attempt that gave no usable answer."""

    def __init__(self, text: str, *, passing: bool = False, not_begun: bool = False, wait_s: float = 0.0) -> None:
        self.text = text
        self.passing = passing
        """A retry may succeed."""
        self.not_begun = not_begun
        """The service has not started on the request."""
        self.wait_s = wait_s


@asynccontextmanager
async def _connections(secure: bool) -> AsyncIterator[httpx.AsyncClient]:
    """A pool without its own limit: the trajectories in flight and the tool's limits bound it."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    # Loading certificates takes time, and a plain http service needs none.
    async with httpx.AsyncClient(timeout=None, limits=limits, verify=secure) as client:
        yield client


def retry_after_s(value: str) -> float:
    """Seconds of a `Retry-After` header: a number or an HTTP date; 0 when it is neither."""
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    return max(0.0, (when - datetime.now(UTC)).total_seconds()) if when.tzinfo else 0.0
