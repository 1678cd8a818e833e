"""The curl lines of the retrieval section of docs/services.md work as written."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
from fastapi import FastAPI

from agentrl.services.retrieval.holder import IndexHolder
from agentrl.services.retrieval.index import Index
from agentrl.services.retrieval.options import ServerOptions
from agentrl.services.retrieval.server import create_app

Running = Callable[[FastAPI], AbstractContextManager[httpx.Client]]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "services.md"


def test_curl_lines(running: Running, sample_folder: Path) -> None:
    section = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = next(part for part in section if part.startswith("Retrieval\n")).splitlines()
    curls = [line for line in lines if line.startswith("curl ")]
    token = "secret"
    answers: list[str] = []

    def make(secret: str | None) -> FastAPI:
        return create_app(IndexHolder(lambda: Index(sample_folder), 0), ServerOptions(), secret)

    with running(make(None)) as open_server, running(make(token)) as guarded:
        for line in curls:
            client = guarded if "Authorization" in line else open_server
            command = line.replace("http://127.0.0.1:8000", str(client.base_url).rstrip("/"))
            environment = {"AGENTRL_SERVICE_TOKEN": token, "PATH": "/usr/bin:/bin", "no_proxy": "127.0.0.1"}
            done = subprocess.run(
                ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=30, check=True
            )
            answers.append(done.stdout)
    assert len(answers) == 5
    two, one, health, metrics, reloaded = answers
    assert [hits[0]["document"]["id"] for hits in json.loads(two)["result"]] == ["sample-1", "sample-11"]
    assert "Apollo 11" in json.loads(one)["result"][0][0]["contents"]
    assert json.loads(health)["status"] == "ok"
    assert "agentrl_retrieval_queries_total 3.0" in metrics
    assert json.loads(reloaded)["generation"] == 2
