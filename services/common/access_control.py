"""Controls access to a service: bearer tokens, hosts other than loopback, web pages, and the size of a body."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Collection, Mapping
from urllib.parse import urlsplit

from fastapi import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl.errors import UserInputError

OPEN_PATHS = frozenset({"/health", "/ready"})
"""Probes of a load balancer carry no token."""
MAX_BODY_BYTES = 8 * 1024 * 1024

RequestHeaders = Mapping[bytes, bytes]
"""By name in lower case; of several of one name, the first."""
RequestCheck = Callable[[RequestHeaders], HTTPException | None]
"""Says why a request is refused, from its headers."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_unprotected_host(host: str, token: str | None, insecure: bool) -> None:
    """Refuse to open a service to other machines without a token.

    Raises:
        UserInputError: other machines can reach the address, and neither a token nor `insecure` is given; or the token
            is empty.
    """
    if token is not None and not token.strip():
        raise UserInputError("--token: got an empty text, wanted a secret (is the variable that holds it set?)")
    if token is None and not insecure and not is_loopback(host):
        raise UserInputError(
            f"--host {host or repr(host)}: other machines would reach this service without a token. "
            "Give --token SECRET (or the variable AGENTRL_SERVICE_TOKEN), or --insecure if the network is trusted."
        )


def bearer_auth(token: str | None) -> RequestCheck:
    """A check of `Authorization: Bearer TOKEN`; without a token, of requests that web pages send.

    A page in the user's browser can post to a loopback port; no client of the protocols sends `Origin`.
    """
    if token is None:
        return _refuse_foreign_pages
    wanted = token.strip().encode()  # a variable filled from a file ends in a line end, which no header can

    def check(headers: RequestHeaders) -> HTTPException | None:
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), wanted):
            return None
        problem = "wrong token" if given else "no token"
        return HTTPException(401, f"{problem}: send `Authorization: Bearer TOKEN`", {"WWW-Authenticate": "Bearer"})

    return check


def _refuse_foreign_pages(headers: RequestHeaders) -> HTTPException | None:
    if b"origin" not in headers:
        return None
    origin, host = headers[b"origin"].decode("latin-1"), headers.get(b"host", b"").decode("latin-1")
    if urlsplit(origin).netloc == host and _is_address(urlsplit(origin).hostname):
        return None
    return HTTPException(403, f"a web page of {origin[:100]!r} may not use this service; start it with --token")


def _is_address(host: str | None) -> bool:
    """Whether this is an address or `localhost`: a name may be one that somebody else lets point at this machine."""
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host or "")
    except ValueError:
        return False
    return True


class AccessControl:
    """Middleware that refuses requests: no token, a foreign web page, a body over the limit.

    Args:
        app: what is guarded.
        check: see `bearer_auth`.
        open_paths: paths that need no token.
        max_body_bytes: most bytes of a request's body.
    """

    def __init__(self, app: ASGIApp, check: RequestCheck, open_paths: Collection[str], max_body_bytes: int) -> None:
        self._app, self._check, self._open, self._max = app, check, frozenset(open_paths), max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: RequestHeaders = dict(reversed(scope["headers"]))
        refusal = None if scope["path"] in self._open else self._check(headers)
        declared = headers.get(b"content-length", b"")
        if refusal is None and declared.isdigit() and int(declared) > self._max:
            refusal = self._too_large()
        if refusal is not None:
            content = {"detail": refusal.detail}
            await JSONResponse(content, refusal.status_code, refusal.headers)(scope, receive, send)
            return
        await self._app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Callable[[], Awaitable[Message]]:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max:
                raise self._too_large()
            return message

        return counted

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"the body: got more than the limit of {self._max} bytes")
