"""Helpers for the routes: JSON in and out, and the status of each kind of error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from agentrl.errors import UserInputError
from agentrl.inference.embedded.sampling_params import UnsupportedFeatureError
from agentrl.types import JsonDict

Handler = Callable[[Request], Awaitable[Response]]


def answer(content: Any, status: int = 200) -> Response:
    """A JSON response."""
    return Response(orjson.dumps(content), status, media_type="application/json")


def refuse(message: str, status: int) -> Response:
    """An error in the shape that SGLang uses."""
    return answer({"error": {"message": message, "code": status}}, status)


async def read_json_body(request: Request) -> Any:
    """The body as JSON.

    Raises:
        UserInputError: no body, not JSON, or not sent as JSON.
    """
    body = await request.body()
    if not body:
        raise UserInputError("the body: got none, wanted JSON")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not (kind == "application/json" or kind.endswith("+json")):
        raise UserInputError(f"the content type: got {kind or 'none'}, wanted application/json")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UserInputError(f"the body is not JSON: {error}") from None


async def read_object(request: Request, known: tuple[str, ...]) -> JsonDict:
    """The body as a JSON object with known fields only.

    Raises:
        UserInputError: anything else.
    """
    body = await read_json_body(request)
    if not isinstance(body, dict):
        raise UserInputError(f"the body: got {type(body).__name__}, wanted a JSON object")
    unknown = [name for name in body if name not in known]
    if unknown:
        raise UserInputError(f"unknown field '{unknown[0]}'. Known: {', '.join(known) or 'none'}.")
    return body


def guarded(handler: Handler) -> Handler:
    """Answer 501 when the engine does not support a feature, and 400 when the request cannot be used."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except UnsupportedFeatureError as error:
            return refuse(str(error), 501)
        except UserInputError as error:
            return refuse(str(error), 400)

    return handle
