"""Routes for the memory that the engine gives back while others need it; see `memory`."""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from agentrl.errors import UserInputError, suggest
from agentrl.inference.embedded.engine import Engine
from agentrl.inference.embedded.http import Handler, read_object
from agentrl.inference.embedded.memory import TAGS


def memory_routes(engine: Engine) -> dict[tuple[str, str], Handler]:
    """Handlers by method and path."""
    return {
        ("POST", "/release_memory_occupation"): partial(_release, engine),
        ("POST", "/resume_memory_occupation"): partial(_resume, engine),
    }


async def _release(engine: Engine, request: HTTPRequest) -> Response:
    tags = await _tags(request)
    await asyncio.wrap_future(engine.call(lambda: engine.occupation.release(tags, paused=engine.paused)))
    return Response(status_code=200)


async def _resume(engine: Engine, request: HTTPRequest) -> Response:
    tags = await _tags(request)
    await asyncio.wrap_future(engine.call(lambda: engine.occupation.resume(tags)))
    return Response(status_code=200)


async def _tags(request: HTTPRequest) -> list[str]:
    """What is meant; everything where nothing is named."""
    tags = (await read_object(request, ("tags",))).get("tags") or list(TAGS)
    unknown = [tag for tag in tags if tag not in TAGS] if isinstance(tags, list) else [tags]
    if unknown:
        raise UserInputError(f"tags: got {unknown[0]!r}.{suggest(str(unknown[0]), TAGS)}")
    return tags
