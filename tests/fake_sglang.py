"""A stand-in for the Python of an environment with SGLang: its server is healthy, and records how it was started."""

from __future__ import annotations

import http.server
import itertools
import json
import os
import socketserver
import sys
from pathlib import Path
from typing import Any

RECORDED = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


def make_python(folder: Path) -> Path:
    """An executable for `rollout.server.python`; each server that it starts writes a file to its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{__file__}" "{folder}" "$@"\n')
    python.chmod(0o755)
    return python


def starts_of(folder: Path) -> list[dict[str, Any]]:
    """What the servers of a folder were started with, by the order of their seeds: `argv`, `flags` and `env`."""
    found = [json.loads(file.read_text()) for file in folder.glob("start_*.json")]
    for each in found:
        each["flags"] = dict(itertools.pairwise(each["argv"]))
    return sorted(found, key=lambda each: (int(each["flags"]["--random-seed"]), each["number"]))


def main(folder: Path, argv: list[str]) -> None:
    """Answer `-c CODE` as a Python that has the package; else serve."""
    if argv[0] == "-c":
        return
    flags = dict(itertools.pairwise(argv))
    number = len(list(folder.glob("start_*.json")))
    start = {"number": number, "argv": argv, "env": {name: os.environ.get(name) for name in RECORDED}}
    part = folder / f"{os.getpid()}.part"
    part.write_text(json.dumps(start))
    part.rename(folder / f"start_{os.getpid()}.json")
    with Server((flags["--host"], int(flags["--port"])), Healthy) as server:
        server.serve_forever()


class Server(socketserver.ThreadingTCPServer):
    """Takes the port that its host keeps for it."""

    allow_reuse_address = True
    daemon_threads = True


class Healthy(http.server.BaseHTTPRequestHandler):
    """Answers 200 to every GET."""

    def do_GET(self) -> None:
        """Healthy."""
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
