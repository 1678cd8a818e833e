"""JSON over HTTP to a service behind a plug-in, with deadlines and retries; then it is a `ToolServiceError`."""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx

from agentrl.clients.scope import WorkerScope
from agentrl.clients.service_line import STALLED_S, ServiceLine, Stalled, line_of
from agentrl.errors import ToolServiceError
from agentrl.own_time import queueing
from agentrl.timeline import note_wait, trace_headers

_SHOWN = 200
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Failures after which the service has certainly not begun."""
_NOT_THERE = (404, 405, 410)
THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
OwnSeconds = Callable[[Any], float]
Refuse = Callable[[Any], str | None]
"""Returns why a decoded answer must not be used and the request is retried; None: the answer is good."""


class ServiceClient:
    """Calls one service.

    Failures of the service (5xx), lost connections and missed deadlines are retried after a pause that doubles each
    time and varies at random; `Retry-After` is honoured up to `max_backoff_s`. A busy answer (429) is no attempt: the
    request waits in line, as long as the service answers others (see `service_line`), and the wait does not count
    against the limit of the tool, the score or the trajectory that waits.

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

    @staticmethod
    def bearer(variable: str | None) -> dict[str, str]:
        """The headers of requests whose key is in an environment variable; None: no key.

        Raises:
            ValueError: the variable is not set.
        """
        if variable is None:
            return {}
        key = os.environ.get(variable)
        if not key:
            raise ValueError(f"the environment variable '{variable}' is not set")
        return {"Authorization": f"Bearer {key}"}

    async def post(
        self,
        path: str,
        body: Any,
        *,
        timeout_s: float | None = None,
        repeatable: bool = True,
        refuse: Refuse | None = None,
        may_lack: bool = False,
        line: str = "",
        own_seconds: OwnSeconds | None = None,
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
            line: what is scarce there: requests of other lines do not wait behind this one.
            own_seconds: how many seconds of a request were work for this caller, by its answer; the rest, which the
                request waited within the service, does not count against the caller's limits. None: all of them.

        Raises:
            ToolServiceError: no good answer after all attempts, or the service is busy and does not move.
        """
        request = _Request(
            *("POST", self.url + path, body, timeout_s or self._timeout_s, refuse, may_lack), line, own_seconds
        )
        return await self._call(request, repeatable)

    async def chat(self, body: Mapping[str, Any]) -> str:
        """The reply of an OpenAI-compatible endpoint, without its thinking.

        Args:
            body: of `POST /chat/completions`: `model`, `messages`, ….

        Raises:
            ToolServiceError: no reply with text after all attempts, or the endpoint is busy and does not move.
        """
        answer = await self.post("/chat/completions", body, refuse=_no_text)
        text: str = answer["choices"][0]["message"]["content"]
        return THINKING.sub("", text).strip()

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
        failure, attempt = "", 1
        line = line_of(self.url, request.line)
        ticket = line.ticket()
        while True:
            answer = await self._in_turn(request, line, ticket)
            if not isinstance(answer, _Failure):
                return answer
            if answer.busy:
                continue
            failure = answer.text
            if attempt > self._retries or not (answer.not_begun or (answer.passing and repeatable)):
                break
            # 0.5 s, 1 s, 2 s, ..., each varied by half: trajectories that failed together do not retry together.
            pause_s = self._backoff_s * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)
            await asyncio.sleep(min(max(answer.wait_s, pause_s), self._max_backoff_s))
            attempt += 1
        raise ToolServiceError(f"{request.url} failed after {attempt} attempt{'s' * (attempt > 1)}: {failure}")

    async def _in_turn(self, request: _Request, line: ServiceLine, ticket: int) -> Any:
        """One attempt, when it is the request's turn; only the time of the work counts against the caller's limits."""
        with queueing() as watch:
            try:
                asked = time.perf_counter()
                await line.enter(ticket)
                note_wait(f"{self.url} is busy", asked)
                began = time.monotonic()
                settled = False
                try:
                    answer = await self._attempt(request)
                    settled = True
                    if isinstance(answer, _Failure) and answer.busy:
                        line.refused(answer.wait_s, self._backoff_s, self._max_backoff_s)
                        return answer
                    if isinstance(answer, _Failure):
                        line.failed()
                    else:
                        line.answered()
                finally:
                    if not settled:
                        line.failed()
            except Stalled:
                raise ToolServiceError(
                    f"{request.url}: busy (HTTP 429), and it has answered nobody for {STALLED_S:g} s"
                ) from None
            spent_s = time.monotonic() - began
            if request.own_seconds is not None and not isinstance(answer, _Failure):
                spent_s = min(spent_s, request.own_seconds(answer))
            watch.spend(spent_s)
            return answer

    async def _attempt(self, request: _Request) -> Any:
        client = await self._connections()
        try:
            async with asyncio.timeout(request.timeout_s):
                headers = self._headers | trace_headers()
                response = await client.request(request.method, request.url, json=request.body, headers=headers)
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
                busy=busy,
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


def _no_text(answer: Any) -> str | None:
    try:
        text = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        text = None
    return None if isinstance(text, str) and text.strip() else f"the answer holds no text: {str(answer)[:_SHOWN]}"


@dataclass(frozen=True, slots=True)
class _Request:
    """One request, the same at every attempt."""

    method: str
    url: str
    body: Any
    timeout_s: float
    refuse: Refuse | None
    may_lack: bool
    line: str = ""
    own_seconds: OwnSeconds | None = None


class _Failure:
    """One attempt that gave no usable answer."""

    def __init__(
        self, text: str, *, passing: bool = False, not_begun: bool = False, busy: bool = False, wait_s: float = 0.0
    ) -> None:
        self.text = text
        self.passing = passing
        """A retry may succeed."""
        self.not_begun = not_begun
        """The service has not started on the request."""
        self.busy = busy
        """It has no place for the request now."""
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
