"""An OpenAI-compatible endpoint, a real HTTP server that replies as a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[["JudgeEndpoint", str], str | int]
"""Of the endpoint and the text that it is asked: what it answers, or the status of an error."""


class JudgeEndpoint:
    """What was asked, and the answers."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.most_at_once = 0
        self.asked = threading.local()
        """`body` and `key` of the request that is answered in this thread."""
        self._at_once = 0
        self._lock = threading.Lock()

    @property
    def texts(self) -> list[str]:
        """What was asked, in the order of arrival."""
        return [body["messages"][-1]["content"] for body in self.bodies]

    def answer(self, body: dict[str, Any], key: str | None) -> str | int:
        with self._lock:
            self.bodies.append(body)
            self.keys.append(key)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        self.asked.body, self.asked.key = body, key
        try:
            return self.reply(self, body["messages"][-1]["content"])
        finally:
            with self._lock:
                self._at_once -= 1


@contextmanager
def judging(reply: Reply) -> Iterator[JudgeEndpoint]:
    """Serve on a free port."""
    endpoint = JudgeEndpoint(reply)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said = endpoint.answer(body, self.headers.get("Authorization"))
            status = said if isinstance(said, int) else 200
            found = {"choices": [{"message": {"role": "assistant", "content": said}}]}
            told = {"error": f"status {status}, key {self.headers.get('Authorization')}"}
            data = json.dumps(found if status == 200 and self.path == "/v1/chat/completions" else told).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(ConnectionError):  # whoever asked has given up
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
