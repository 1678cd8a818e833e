"""What a trajectory asks of services and engines continues its trace; waiting for a busy one is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agentrl.inference.client import EngineClient
from agentrl.interfaces import ServiceClient
from agentrl.timeline import Timeline, TraceContext

ANSWER = {"text": "", "output_ids": [5], "meta_info": {"finish_reason": {"type": "stop"}, "prompt_tokens": 1}}
ANSWER["meta_info"] |= {"output_token_logprobs": [[-0.5, 5, None]], "weight_version": "0"}  # type: ignore[operator]


class Server(ThreadingHTTPServer):
    busy = 0
    """Requests that it refuses from now on."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append(self.headers["traceparent"])
        self.server.busy -= 1
        body = json.dumps(ANSWER).encode()
        self.send_response(429 if self.server.busy >= 0 else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
        yield found
        found.shutdown()


async def test_the_header_names_the_span_that_asks(server: Server) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    service, engine = ServiceClient(url), EngineClient(url, vocab_size=100)
    traced = Timeline(TraceContext("ab" * 16, "cd" * 8))
    for timeline in (Timeline(), traced):
        with timeline.span("tool", "search"):
            await service.post("/retrieve", {})
        with timeline.span("generate", "turn 1"):
            await engine.generate([1], {"max_new_tokens": 2})
    await service.post("/retrieve", {})
    await engine.close()
    await service.aclose()
    tool, generation = (f"00-{'ab' * 16}-{span.span_id}-01" for span in traced.spans)
    assert server.seen == [None, None, tool, generation, None]


async def test_the_line_at_a_busy_service_is_a_wait(server: Server) -> None:
    server.busy = 2
    timeline = Timeline()
    client = ServiceClient(f"http://127.0.0.1:{server.server_port}", backoff_s=0.05)
    with timeline.span("tool", "search"):
        await client.post("/retrieve", {})
    await client.aclose()
    waits = [span for span in timeline.records() if span["name"] == "wait"]
    assert {span["detail"] for span in waits} == {f"{client.url} is busy"}
    (tool,) = [span for span in timeline.records() if span["name"] == "tool"]
    assert 0.02 < sum(span["seconds"] for span in waits) <= tool["seconds"]
