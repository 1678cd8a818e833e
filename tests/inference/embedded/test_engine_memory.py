"""An engine gives its memory back while ranks train, and serves afterwards as if nothing had been."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillOpen
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from engine_process import command, wait_healthy
from engine_servers import free_port
from simulated_cuda import gpu_or_simulated

from agentrl.inference.embedded.engine import Engine
from agentrl.inference.embedded.options import EngineOptions
from agentrl.inference.embedded.protocol import parse_generate

GREEDY = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
BODY = {"input_ids": [1, 2, 3, 4, 5, 6, 7, 8], "sampling_params": GREEDY, "return_logprob": True}
BOTH = {"tags": ["kv_cache", "weights"]}
ENDLESS = {"input_ids": [1], "sampling_params": {"max_new_tokens": 500, "ignore_eos": True}, "rid": "long"}


@pytest.fixture(scope="module", params=["embedded", pytest.param("hf", marks=pytest.mark.slow)])
def server(tiny_model_dir: Path, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    port = free_port()
    options = ("--max-context-length", "600", "--runner", request.param)
    with subprocess.Popen(command(tiny_model_dir, port, *options)) as process:
        wait_healthy(f"http://127.0.0.1:{port}", process)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM)


def state(server: httpx.Client) -> dict[str, Any]:
    (found,) = server.get("/server_info").json()["internal_states"]
    return dict(found)


def post(server: httpx.Client, call: str, body: Any = BOTH) -> int:
    return server.post(f"/{call}_memory_occupation", json=body).status_code


def test_the_cache_is_freed_and_requests_wait(server: httpx.Client) -> None:
    before = server.post("/generate", json=BODY).json()
    assert post(server, "release") == 200
    assert (state(server)["kv_slots"], state(server)["released"]) == (0, ["kv_cache", "weights"])
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: server.post("/generate", json=BODY).json())
        with pytest.raises(StillOpen):
            answer.result(0.3)
        assert post(server, "resume", {"tags": ["weights"]}) == 200
        with pytest.raises(StillOpen):
            answer.result(0.3)
        assert post(server, "resume", {"tags": ["kv_cache"]}) == 200
        after = answer.result(30)
    assert after["output_ids"] == before["output_ids"]
    assert after["meta_info"]["cached_tokens"] == 0, "the prefix cache is empty"


def test_release_and_resume_twice_change_nothing(server: httpx.Client) -> None:
    assert [post(server, call, {}) for call in ("release", "release", "resume", "resume")] == [200] * 4
    assert state(server)["released"] == []


def test_a_busy_engine_and_unknown_tags_are_refused(server: httpx.Client) -> None:
    answer = server.post("/release_memory_occupation", json={"tags": ["kv_cach"]})
    assert (answer.status_code, "Did you mean 'kv_cache'?" in answer.json()["error"]["message"]) == (400, True)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: server.post("/generate", json=ENDLESS).json())
        while not state(server)["num_running_reqs"]:
            assert not running.done()
        refused = server.post("/release_memory_occupation", json=BOTH)
        if refused.status_code == 200:  # it ended between the two calls
            post(server, "resume")
        else:
            assert "pause the engine in abort mode first" in refused.json()["error"]["message"]
        server.post("/pause_generation", json={"mode": "abort"})
        assert running.result(30)["meta_info"]["id"] == "long"
    assert post(server, "release") == post(server, "resume") == 200
    server.post("/continue_generation", json={})


def test_weights_are_not_updated_while_they_are_released(server: httpx.Client, tiny_model_dir: Path) -> None:
    post(server, "release")
    body = {"model_path": str(tiny_model_dir), "weight_version": "3"}
    refused = server.post("/update_weights_from_disk", json=body)
    assert (refused.status_code, "resume them before" in refused.text) == (400, True)
    post(server, "resume", {"tags": ["weights"]})
    assert server.post("/update_weights_from_disk", json=body).status_code == 200
    post(server, "resume", {"tags": ["kv_cache"]})
    assert server.post("/generate", json=BODY).json()["meta_info"]["weight_version"] == "3"


def test_weights_leave_a_gpu_and_come_back(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpu_or_simulated(monkeypatch):
        engine = Engine(EngineOptions(model=str(tiny_model_dir), device="cuda", dtype="float32"), lambda heard: None)

        def sampled() -> list[int]:
            (request,) = parse_generate(BODY, engine, number=0).requests
            engine.submit([request])
            engine.drain()
            while request.finish is None:
                engine.step()
            return request.ids

        before = sampled()
        weights = engine.scheduler.model.tensors()
        copies = [weight.cpu().clone() for weight in weights]
        engine.occupation.release(("kv_cache", "weights"), paused=False)
        assert {weight.untyped_storage().nbytes() for weight in weights} == {0}
        engine.occupation.resume(("weights", "kv_cache"))
        assert all(torch.equal(weight.cpu(), copy) for weight, copy in zip(weights, copies, strict=True))
        assert {weight.device.type for weight in weights} == {"cuda"}
        assert sampled() == before
