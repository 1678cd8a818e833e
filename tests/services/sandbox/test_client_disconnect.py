"""Clients that close the connection: nobody would read the answer, so their place goes to those who wait."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from sandbox_service import Server

SLEEP = "import time; time.sleep(60)"
RUN = {"code": SLEEP, "language": "python", "run_timeout": 60}


def ask_and_go(server: Server, path: str, body: dict[str, Any], patience_s: float = 0.5) -> None:
    with httpx.Client(base_url=server.url, timeout=patience_s) as http, pytest.raises(httpx.ReadTimeout):
        http.post(path, json=body)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/run_code", RUN),
        ("/run_code", {**RUN, "code": "sleep 60", "language": "bash"}),
        ("/judge", {"code": SLEEP, "tests": [{"input": "1", "output": ""}] * 3, "timeout": 60}),
        ("/run_jupyter", {"cells": [SLEEP], "cell_timeout": 60, "total_timeout": 60}),
    ],
)
def test_what_runs_for_them_is_ended(server: Server, path: str, body: dict[str, Any]) -> None:
    ask_and_go(server, path, body)
    server.must_be_clean()
    assert f'{{method="POST",route="{path}",status="499"}}' in server.http.get("/metrics").text


def test_what_waits_for_them_is_not_begun(server: Server) -> None:
    requests = 24
    with ThreadPoolExecutor(requests) as pool:
        for done in [pool.submit(ask_and_go, server, "/run_code", RUN, 1.0) for _ in range(requests)]:
            done.result()
    began = time.monotonic()
    assert server.python("print(1)")["stdout"] == "1\n"
    assert time.monotonic() - began < 20
    server.must_be_clean()


def test_a_session_goes_on(server: Server) -> None:
    """Its variables must be what the code made them, or the next run would find half of it."""
    path = f"/sessions/{server.http.post('/sessions').json()['session_id']}"
    ask_and_go(server, f"{path}/run", {"code": "import time; time.sleep(1.5); x = 5"})
    answer = server.http.post(f"{path}/run", json={"code": "print(x)"}).json()
    assert answer["run_result"]["stdout"] == "5\n"
    server.http.delete(path)
