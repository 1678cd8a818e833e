"""Who may see the page: the Host that a browser names, and a token where others can reach the machine.

A page of another site must not read runs through its visitor's browser, although that runs on this machine:

- a name that somebody points to 127.0.0.1 (DNS rebinding) arrives as the `Host` of the request, and is refused;
- answers carry headers that keep other pages from embedding them, and the page itself from loading anything else.
"""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_CONTENT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": _CONTENT,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Access:
    """What a request needs.

    Attributes:
        host: the address that the server listens on.
        names: names of this machine that a request may call it by, besides addresses.
        token: None: none is needed, which is only safe on loopback.
    """

    host: str
    names: frozenset[str] = frozenset()
    token: str | None = None

    def allows_host(self, header: str) -> bool:
        """Whether a `Host` is this server's: an attacker's name is neither an address nor one of ours."""
        name = _name_in(header)
        if name == "localhost" or name in self.names or name == self.host.lower():
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not is_local(self.host)

    def allows_token(self, given: str | None) -> bool:
        """Whether a token is the right one."""
        return self.token is None or (given is not None and secrets.compare_digest(given.encode(), self.token.encode()))


def is_local(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """The application behind the checks; see the module.

    Args:
        app: the application.
        access: who may ask it.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-cache" if _is_file(scope) else "no-store")
            await send(message)

        await (self._app if refusal is None else refusal)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, access = Headers(scope=scope), self._access
        host = headers.get("host", "")
        if not access.allows_host(host):
            return json_answer({"error": f"got the Host {host!r}, wanted localhost or the address of this server"}, 421)
        if access.token is None:
            return None
        cookie = f"agentrl_view_{(scope.get('server') or ('', 0))[1]}"
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [None])[-1]
        if scope["path"] == "/" and asked is not None and access.allows_token(asked):
            answer = RedirectResponse("/", status_code=303)
            answer.set_cookie(cookie, access.token, httponly=True, samesite="strict")
            return answer
        if access.allows_token(_cookie(headers.get("cookie", ""), cookie) or _bearer(headers)):
            return None
        return json_answer({"error": "got no valid token, wanted the address that `agentrl view` printed"}, 401)


def json_answer(content: Any, status: int = 200) -> Response:
    """An answer as JSON, in which NaN is null."""
    return Response(orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS), status, media_type="application/json")


def _name_in(header: str) -> str:
    """`localhost:8000` -> `localhost`, `[::1]:8000` -> `::1`."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower().rstrip(".")


def _is_file(scope: Scope) -> bool:
    """The page and its files may be kept if the server is asked again; answers of the API may not."""
    return not scope["path"].startswith("/api")


def _cookie(header: str, name: str) -> str | None:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return None
    return None if found is None else found.value


def _bearer(headers: Headers) -> str | None:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token if kind.lower() == "bearer" else None
