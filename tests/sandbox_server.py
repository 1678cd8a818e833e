"""A sandbox service for tests: speaks the protocol and really runs Python, without any isolation."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
import tempfile
import threading
import time
import traceback
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response


class Sandbox:
    """State that tests look at, and the answers they order."""

    def __init__(self) -> None:
        self.url = ""
        self.sessions: dict[str, dict[str, Any]] = {}
        self.opened = 0
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.orders: list[Response | float | dict[str, Any]] = []
        """What the next requests get instead: an answer, or seconds of delay before the real one."""


def result(
    status: str, stdout: str = "", stderr: str = "", code: int | None = 0, seconds: float = 0.0
) -> dict[str, Any]:
    return {"status": status, "stdout": stdout, "stderr": stderr, "return_code": code, "execution_time": seconds}


async def run_python(body: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in body["files"].items():
            (Path(folder) / name).write_bytes(b64decode(content))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", body["code"]),
            cwd=folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        started = time.monotonic()
        try:
            output = await asyncio.wait_for(process.communicate(body["stdin"].encode()), body["run_timeout"])
        except TimeoutError:
            process.kill()
            await process.wait()
            return result("TimeLimitExceeded", code=None)
    stdout, stderr = (part.decode() for part in output)
    return result("Finished", stdout, stderr, process.returncode, time.monotonic() - started)


def run_in(namespace: dict[str, Any], code: str) -> dict[str, Any]:
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(code, namespace)
    except Exception:
        return result("Finished", out.getvalue(), traceback.format_exc(limit=0), 1)
    return result("Finished", out.getvalue())


def answer(ran: dict[str, Any]) -> dict[str, Any]:
    good = ran["status"] == "Finished" and ran["return_code"] == 0
    return {"status": "Success" if good else "Failed", "message": "", "compile_result": None, "run_result": ran}


def make_app(state: Sandbox) -> FastAPI:
    app = FastAPI()

    async def ordered(path: str, body: dict[str, Any]) -> Any:
        state.requests.append((path, body))
        order = state.orders.pop(0) if state.orders else None
        if isinstance(order, float):
            await asyncio.sleep(order)
            return None
        return order

    @app.post("/run_code")
    async def run_code(request: Request) -> Any:
        body = await request.json()
        order = await ordered("/run_code", body)
        if order is not None:
            return order
        assert body["language"] == "python"
        return answer(await run_python(body))

    @app.post("/sessions")
    async def open_session(request: Request) -> Any:
        order = await ordered("/sessions", await request.json())
        if order is not None:
            return order
        state.opened += 1
        state.sessions[f"s{state.opened}"] = {}
        return {"session_id": f"s{state.opened}"}

    @app.post("/sessions/{session}/run")
    async def run_session(session: str, request: Request) -> Any:
        body = await request.json()
        order = await ordered("/sessions/run", body)
        if order is not None:
            return order
        if session not in state.sessions:
            raise HTTPException(404, "no such session")
        return answer(run_in(state.sessions[session], body["code"]))

    @app.delete("/sessions/{session}")
    async def close_session(session: str) -> Any:
        if session not in state.sessions:
            raise HTTPException(404, "no such session")
        del state.sessions[session]
        return {}

    return app


@contextmanager
def serve_sandbox() -> Iterator[Sandbox]:
    """A sandbox on a free port, in a thread."""
    state = Sandbox()
    config = uvicorn.Config(make_app(state), host="127.0.0.1", port=0, log_level="critical", loop="asyncio")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    state.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield state
    server.should_exit = True
    thread.join(10)
