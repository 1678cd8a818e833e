"""The HTTP server: SGLang's native routes over one engine. Other routes: `admin` and `chat_api`."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count

import orjson
import uvicorn
from fastapi import FastAPI
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response, StreamingResponse

from agentrl.inference.embedded import admin, chat_api
from agentrl.inference.embedded.frontend import Frontend
from agentrl.inference.embedded.http import Handler, answer, guarded, read_json_body, refuse
from agentrl.inference.embedded.options import EngineOptions
from agentrl.inference.embedded.protocol import GenerateCall, parse_generate, render_answer

ENGINE_FAILED, PORT_TAKEN = 1, 3
"""Exit codes: an error ended the engine's thread; the address cannot be listened on."""
SHUTDOWN_S = 2
"""Seconds that open requests get at shutdown."""


def create_app(frontend: Frontend) -> FastAPI:
    """Build the application. The engine's thread starts and ends with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        frontend.start()
        yield
        frontend.engine.stop()

    app = FastAPI(title="agentrl embedded engine", lifespan=lifespan)
    routes: dict[tuple[str, str], Handler] = {("POST", "/generate"): _generate_route(frontend)}
    routes |= admin.admin_routes(frontend)
    routes |= chat_api.chat_routes(frontend)
    for (method, path), handler in routes.items():
        app.add_route(path, guarded(handler), methods=[method])
    return app


def _generate_route(frontend: Frontend) -> Handler:
    calls = count()

    async def generate(request: HTTPRequest) -> Response:
        body, number = await read_json_body(request), next(calls)
        parse = partial(parse_generate, body, frontend.engine, number=number)
        # Pictures take milliseconds to decode: other requests go on meanwhile.
        shows = isinstance(body, dict) and body.get("image_data")
        call = await asyncio.to_thread(parse) if shows else parse()
        if call.stream:
            frontend.gate.check([each.rid for each in call.requests])
            return StreamingResponse(_events(call, frontend), media_type="text/event-stream")
        done = await frontend.finished(call.requests, request.is_disconnected)
        if frontend.engine.failed:
            return refuse(frontend.engine.failed, 503)
        answers = [render_answer(p, frontend.engine, return_logprob=call.return_logprob) for p in done]
        return answer(answers if call.as_list else answers[0])

    return generate


async def _events(call: GenerateCall, frontend: Frontend) -> AsyncIterator[bytes]:
    """Server-sent events with the output so far; in a call of several requests, `index` says which one it is."""
    places = {id(request): place for place, request in enumerate(call.requests)}
    async for progress in frontend.stream(call.requests):
        content = render_answer(progress, frontend.engine, return_logprob=call.return_logprob)
        if call.as_list:
            content["index"] = places[id(progress.request)]
        yield b"data: " + orjson.dumps(content) + b"\n\n"
    yield b"data: [DONE]\n\n"


def run_engine_server(options: EngineOptions) -> int:
    """Run a server until it is told to stop.

    Returns:
        Exit code: 0, 1 when the engine failed, 3 when the address is taken.

    Raises:
        UserInputError: the model folder cannot be used.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            # Bind before the model loads: a taken port is reported at once, and nobody can take it meanwhile.
            listener.bind((options.host, options.port))
        except OSError as error:
            sys.stderr.write(f"cannot listen on {options.host}:{options.port}: {error.strerror}\n")
            return PORT_TAKEN
        frontend = Frontend(options)
        config = uvicorn.Config(
            create_app(frontend), log_level="warning", access_log=False, timeout_graceful_shutdown=SHUTDOWN_S
        )
        server = uvicorn.Server(config)

        def shut_down() -> None:
            server.should_exit = True

        frontend.engine.on_failure = shut_down
        gc.freeze()  # objects made at start live as long as the process: the collector need not scan them again
        server.run(sockets=[listener])
    return ENGINE_FAILED if frontend.engine.failed else 0
