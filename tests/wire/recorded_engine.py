"""A proxy that records what an engine answers to the contract suite, and a server that answers it again.

Record anew, with a real SGLang that serves the first of `models` (docs/engines.md)::

    python tests/wire/recorded_engine.py --engine URL --models FOLDER

A recording is a list of events in the order in which they happened: requests (`path`, a `key` of method, path and body)
and answers (`to` the number of a request, status, content type, body). An answer is given again once every request that
came before it in the recording has come: a generation that ended because of an abort ends when the abort is sent.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

RECORDING = Path(__file__).with_name("recordings") / "sglang_contract.json.gz"
CONTEXT, LONGEST = 512, 60
SHAPE = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
"""Of the tiny models: SGLang and vLLM take heads of 32 features."""
_OPEN = ("/metrics", "/v1/loads", "/server_info", "/ready", "/ping", "/health", "/model_info")
"""Asked as often as one likes: the last answer is repeated."""
_RUNNING = re.compile(r"^sglang:num_running_reqs\{.*$", re.MULTILINE)


def models(folder: Path) -> list[Path]:
    """Two tiny models of one shape."""
    from agentrl.testing.models import build_tiny_model

    return [build_tiny_model(folder / str(seed), seed=seed, **SHAPE) for seed in (0, 5)]


def key_of(method: str, path: str, body: bytes, folder: str) -> str:
    """What two requests that are the same have in common; random request ids and the place of the models are not."""
    try:
        read = json.loads(body)
    except ValueError:
        return f"{method} {path} {body.decode('latin-1')}"
    if isinstance(read, dict) and re.fullmatch(r"[0-9a-f]{32}", str(read.get("rid"))):
        read["rid"] = "RANDOM"
    return f"{method} {path} {json.dumps(read, sort_keys=True)}".replace(folder, "MODELS")


class Recorder:
    """A proxy in front of an engine."""

    def __init__(self, engine: str, folder: str) -> None:
        self._engine, self._folder = engine, folder
        self.events: list[dict[str, Any]] = []
        self._session: aiohttp.ClientSession | None = None

    async def handle(self, request: web.Request) -> web.Response:
        """Pass a request on, and note it and its answer."""
        body = await request.read()
        number = len(self.events)
        self.events.append({"path": request.path, "key": key_of(request.method, request.path, body, self._folder)})
        self._session = self._session or aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        kind = request.headers.get("Content-Type")
        headers = {} if kind is None or kind == "application/octet-stream" else {"Content-Type": kind}
        sent = self._session.request(request.method, self._engine + request.path, data=body or None, headers=headers)
        async with sent as answer:
            text = (await answer.read()).decode()
        if request.path == "/metrics":
            text = "\n".join(_RUNNING.findall(text))
        elif request.path == "/server_info":
            text = json.dumps({"context_length": json.loads(text)["context_length"]})
        event = {"to": number, "status": answer.status, "type": answer.headers.get("Content-Type"), "text": text}
        self.events.append({**event, "text": text.replace(self._folder, "MODELS")})
        return web.Response(
            body=text.encode(), status=answer.status, headers=_headers(answer.headers.get("Content-Type"))
        )

    async def close(self) -> None:
        """Close the connections to the engine."""
        if self._session is not None:
            await self._session.close()


class Replayer:
    """Answers as recorded."""

    def __init__(self, events: list[dict[str, Any]], folder: str) -> None:
        self._folder = folder
        self._came = asyncio.Condition()
        self._left = {number for number, event in enumerate(events) if "key" in event}
        self._numbers: dict[str, list[int]] = defaultdict(list)
        self._answers: dict[int, dict[str, Any]] = {}
        self._needs: dict[int, set[int]] = {}
        seen: set[int] = set()
        for number, event in enumerate(events):
            if "key" in event:
                self._numbers[event["key"]].append(number)
                seen = seen if event["path"] in _OPEN else {*seen, number}
            else:
                self._answers[event["to"]] = event
                self._needs[event["to"]] = seen - {event["to"]}

    async def handle(self, request: web.Request) -> web.Response:
        """Answer a request that was recorded, when it is its time; 500 for another one."""
        key = key_of(request.method, request.path, await request.read(), self._folder)
        numbers = self._numbers.get(key, [])
        free = [number for number in numbers if number in self._left]
        if not free and not (numbers and request.path in _OPEN):
            return web.json_response({"error": f"not recorded: {key[:300]}"}, status=400)
        number = free[0] if free else numbers[-1]
        async with self._came:
            self._left.discard(number)
            self._came.notify_all()
        if number not in self._answers:  # its caller gave up before there was one
            await asyncio.Event().wait()
        needs = set() if request.path in _OPEN else self._needs[number]
        async with self._came:
            await self._came.wait_for(lambda: not (needs & self._left))
        answer = self._answers[number]
        text = answer["text"].replace("MODELS", self._folder)
        return web.Response(body=text.encode(), status=answer["status"], headers=_headers(answer["type"]))


def _headers(kind: str | None) -> dict[str, str]:
    return {} if kind is None else {"Content-Type": kind}


async def serve(handle: Any) -> tuple[web.AppRunner, str]:
    """A server of one handler on a free port."""
    app = web.Application(client_max_size=2**28)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    return runner, f"http://{host}:{port}"


async def record(engine: str, folder: Path) -> int:
    """Run the suite through the proxy and write the recording, unless a check fails."""
    from engine_contract import checks, make_case, run

    recorder = Recorder(engine, str(folder))
    runner, address = await serve(recorder.handle)
    case = make_case(address, folder / "0", folder / "5", CONTEXT, LONGEST)
    failed = await run(case, checks(seeds=False))
    await runner.cleanup()
    await recorder.close()
    if not failed:
        with gzip.GzipFile(RECORDING, "wb", mtime=0) as file:
            file.write(json.dumps(recorder.events).encode())
    return 1 if failed else 0


def load() -> list[dict[str, Any]]:
    """The events of the recording."""
    with gzip.open(RECORDING) as file:
        events: list[dict[str, Any]] = json.load(file)
    return events


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", help="http://host:port of a SGLang that serves FOLDER/0")
    parser.add_argument("--models", type=Path, required=True, help="where the tiny models are; written if missing")
    given = parser.parse_args()
    if not (given.models / "5" / "config.json").exists():
        models(given.models)
    sys.exit(asyncio.run(record(given.engine, given.models)) if given.engine else 0)
