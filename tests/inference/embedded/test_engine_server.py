"""The server as users run it: a process, spoken to over HTTP."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import torch
from engine_process import serving
from peft import LoraConfig, inject_adapter_in_model
from safetensors.torch import load_file, save, save_file
from transformers import AutoModelForCausalLM

from agentrl.testing.models import build_tiny_model
from agentrl.workers.lora_files import is_adapter, write_adapter

GREEDY = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module", params=["embedded", pytest.param("hf", marks=pytest.mark.slow)])
def server(tiny_model_dir: Path, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """Takes requests of 600 tokens: its context is 608, as SGLang's would be."""
    options = ("--max-context-length", "600", "--runner", request.param, "--weight-version", "0")
    with serving(tiny_model_dir, *options) as client:
        yield client


def test_generate(server: httpx.Client, tiny_model_dir: Path, check_greedy: Callable[..., None]) -> None:
    body = {"rid": "mine", "input_ids": [1, 2, 3], "sampling_params": GREEDY, "return_logprob": True}
    answer = server.post("/generate", json=body).json()
    check_greedy(tiny_model_dir, [1, 2, 3], answer)
    meta = answer["meta_info"]
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (3, 8, 0)
    assert meta["weight_versions"] == [{"version": meta["weight_version"], "start": 0, "end": 8}]
    assert meta["e2e_latency"] > 0
    assert (
        "output_token_logprobs"
        not in server.post("/generate", json=body | {"return_logprob": False}).json()["meta_info"]
    )


def test_concurrent_clients(
    server: httpx.Client, tiny_model_dir: Path, prompts: Callable[..., Any], check_greedy: Callable[..., None]
) -> None:
    batch = prompts(24, 1, 100)
    bodies = [{"input_ids": p, "sampling_params": GREEDY, "return_logprob": True} for p in batch]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda body: server.post("/generate", json=body).json(), bodies))
    for prompt, answer in zip(batch, answers, strict=True):
        check_greedy(tiny_model_dir, prompt, answer)


def test_lists_of_prompts_and_n(server: httpx.Client) -> None:
    body = {"input_ids": [[1, 2], [3, 4, 5]], "sampling_params": [GREEDY, GREEDY | {"max_new_tokens": 3}]}
    answers = server.post("/generate", json=body).json()
    assert [len(a["output_ids"]) for a in answers] == [8, 3]
    assert [a["meta_info"]["prompt_tokens"] for a in answers] == [2, 3]
    several = server.post(
        "/generate", json={"input_ids": [1], "sampling_params": {"n": 3, "max_new_tokens": 20}}
    ).json()
    assert len({tuple(a["output_ids"]) for a in several}) == 3


def test_text_prompts(server: httpx.Client) -> None:
    answer = server.post("/generate", json={"text": "hello", "sampling_params": GREEDY}).json()
    assert answer["meta_info"]["prompt_tokens"] == 5


def test_streaming(server: httpx.Client) -> None:
    body = {"input_ids": [1, 2, 3], "sampling_params": GREEDY, "return_logprob": True}
    whole = server.post("/generate", json=body).json()
    events = []
    with server.stream("POST", "/generate", json=body | {"stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line:
                assert line.startswith("data: ")
                events.append(line.removeprefix("data: "))
    assert events[-1] == "[DONE]"
    parts = [orjson.loads(event) for event in events[:-1]]
    assert [part["output_ids"] for part in parts] == [whole["output_ids"][:n] for n in range(1, 9)]
    assert [part["meta_info"]["finish_reason"] for part in parts[:-1]] == [None] * 7
    assert parts[-1]["text"] == whole["text"]
    assert [len(part["meta_info"]["output_token_logprobs"]) for part in parts] == list(range(1, 9))


BAD_BODIES: list[tuple[Any, str]] = [
    ({}, "input_ids"),
    ({"input_ids": [1], "lora_path": "x"}, "lora_path: got 'x', but no adapter is loaded"),
    ({"input_ids": []}, "non-empty"),
    ({"input_ids": [[]]}, "non-empty"),
    ({"input_ids": [1], "text": "a"}, "exactly one"),
    ({"input_ids": ["a"]}, "'a'"),
    ({"input_ids": [True]}, "True"),
    ({"input_ids": [1.0]}, "1.0"),
    ({"input_ids": [261]}, "vocabulary"),
    ({"input_ids": [-1]}, "vocabulary"),
    ({"input_ids": [2**70]}, "vocabulary"),
    ({"input_ids": "12"}, "non-empty list"),
    ({"text": ""}, "text"),
    ({"input_ids": [1] * 608}, "longer than the model's context length"),
    ({"input_ids": [1] * 602}, "exceeds the maximum allowed length (602 tokens)"),
    ({"input_ids": [1] * 598, "sampling_params": {"max_new_tokens": 11}}, "context length"),
    ({"input_ids": [[1], [2]], "rid": ["same", "same"]}, "Duplicate request IDs detected within the request"),
    ({"input_ids": [1], "sampling_params": {"temperature": -1}}, "temperature"),
    ({"input_ids": [1], "sampling_params": {"stop_token_ids": [9999]}}, "vocabulary"),
    ({"input_ids": [1], "sampling_params": {"max_tokens": 5}}, "unknown field 'max_tokens'"),
    ({"input_ids": [1], "sampling_params": 5}, "object"),
    ({"input_ids": [[1], [2]], "sampling_params": [{}]}, "got 1, wanted one for each of 2 prompts"),
    ({"input_ids": [1], "rid": 5}, "rid"),
    ({"input_id": [1]}, "Did you mean 'input_ids'?"),
    ({"input_ids": [1], "return_logprob": True, "logprob_start_len": "x"}, "logprob_start_len"),
    ({"input_ids": [1], "return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num"),
    ({"input_ids": [1], "stream": "yes"}, "stream"),
    ([1], "object"),
    (b"{not json", "not JSON"),
    (b"\xff\xfe", "not JSON"),
]


@pytest.mark.parametrize(("body", "message"), BAD_BODIES, ids=[str(b)[:50] for b, _ in BAD_BODIES])
def test_bad_bodies_get_400_and_the_server_lives(body: Any, message: str, server: httpx.Client) -> None:
    content = body if isinstance(body, bytes) else None
    if content is None:
        content = json.dumps(body).encode()
    response = server.post("/generate", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    assert server.post("/generate", json={"input_ids": [1], "sampling_params": GREEDY}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"input_ids": [1], "sampling_params": {"json_schema": "{}"}}),
        ("/generate", {"input_ids": [1], "sampling_params": {"regex": "a"}}),
    ],
)
def test_what_is_not_there_is_501_with_a_reason(path: str, body: Any, server: httpx.Client) -> None:
    response = server.post(path, json=body)
    assert response.status_code == 501
    assert len(response.json()["error"]["message"]) > 20


def test_answers_are_cut_two_tokens_before_the_end_of_the_context(server: httpx.Client) -> None:
    body = {"input_ids": [1] * 601, "sampling_params": {"max_new_tokens": 7, "ignore_eos": True}}
    answer = server.post("/generate", json=body).json()
    assert len(answer["output_ids"]) == 5
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 5}


@pytest.mark.parametrize("path", ["/generate", "/pause_generation", "/continue_generation", "/abort_request"])
def test_bodies_must_be_json_by_their_content_type(server: httpx.Client, path: str) -> None:
    assert server.post(path).status_code == 400
    plain = server.post(path, content=b'{"input_ids": [1]}', headers={"Content-Type": "text/plain"})
    assert plain.status_code == 400
    assert server.get("/ready").status_code == 200, "nothing was paused"


def test_information(server: httpx.Client, tiny_model_dir: Path) -> None:
    info = server.get("/model_info").json()
    assert info == server.get("/get_model_info").json()
    assert info["model_path"] == str(tiny_model_dir)
    assert not {"vocab_size", "context_length"} & set(info), "SGLang does not tell them here"
    assert server.get("/health_generate").status_code == 200
    stated = server.get("/server_info").json()
    assert (stated["max_context_length"], stated["context_length"]) == (600, 608)
    assert server.get("/v1/models").json()["data"][0]["max_model_len"] == 608
    page = server.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert float(values["sglang:generated_tokens_total"]) > 0
    assert float(values["sglang:num_running_reqs"]) == 0


def test_chat_completions(server: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hi"}]
    body = {"messages": messages, "max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    answer = server.post("/v1/chat/completions", json=body).json()
    [choice] = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert answer["usage"]["completion_tokens"] == len(choice["logprobs"]["content"])
    assert all(len(entry["top_logprobs"]) == 2 for entry in choice["logprobs"]["content"])
    text, reasons = "", []
    with server.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as response:
        for line in response.iter_lines():
            if line and line != "data: [DONE]":
                [part] = orjson.loads(line.removeprefix("data: "))["choices"]
                text += part["delta"]["content"]
                reasons.append(part["finish_reason"])
    assert text == choice["message"]["content"]
    assert reasons[-1] == choice["finish_reason"]
    for bad in (
        {"messages": []},
        {"messages": ["x"]},
        {"messages": messages, "max_tokns": 1},
        {"messages": [{"role": 5}]},
    ):
        assert server.post("/v1/chat/completions", json=bad).status_code == 400


def test_tools_reach_the_template(server: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tool = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}}
    plain = server.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1}).json()
    with_tool = server.post(
        "/v1/chat/completions", json={"messages": messages, "max_tokens": 1, "tools": [tool]}
    ).json()
    assert with_tool["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 20


def slow_generation(server: httpx.Client, rid: str, tokens: int = 597) -> Any:
    body = {"rid": rid, "input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
    return server.post("/generate", json=body).json()


def wait_for(server: httpx.Client, condition: Callable[[Any], bool]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if condition(server.get("/server_info").json()["internal_states"][0]):
            return
        time.sleep(0.01)
    raise AssertionError("it does not happen")


def test_pause_update_continue_abort(server: httpx.Client, tmp_path: Path, tiny_model_dir: Path) -> None:
    other = build_tiny_model(tmp_path / "other", seed=5)
    with ThreadPoolExecutor(2) as pool:
        pending = pool.submit(slow_generation, server, "slow")
        wait_for(server, lambda state: state["num_running_reqs"] == 1)
        assert server.post("/pause_generation", json={"mode": "in_place"}).status_code == 200
        assert server.get("/server_info").json()["internal_states"][0]["paused"]
        assert [server.get(path).status_code for path in ("/ready", "/ping")] == [503, 200]
        update = {"model_path": str(other), "weight_version": "1", "flush_cache": True}
        assert server.post("/flush_cache").status_code == 400
        answer = server.post("/update_weights_from_disk", json=update)
        assert answer.status_code == 400
        assert "the cache was not flushed because requests are still running" in answer.json()["message"]
        assert server.get("/model_info").json()["weight_version"] == "0"
        assert server.post("/pause_generation", json={"mode": "retract"}).status_code == 200
        answer = server.post("/update_weights_from_disk", json=update).json()
        assert answer == {"success": True, "message": "Weights updated.", "num_paused_requests": 1}
        assert not pending.done()
        assert server.post("/continue_generation", json={}).status_code == 200
        versions = pending.result(60)["meta_info"]["weight_versions"]
        assert [span["version"] for span in versions] == ["0", "1"]
        assert versions[1]["end"] == 597
        assert server.get("/ready").status_code == 200
        pending = pool.submit(slow_generation, server, "slow")
        wait_for(server, lambda state: state["num_running_reqs"] == 1)
        assert server.post("/abort_request", json={"rid": "slow"}).status_code == 200
        assert pending.result(60)["meta_info"]["finish_reason"]["type"] == "abort"
    assert server.get("/model_info").json()["weight_version"] == "1"
    blob = base64.b64encode(save(load_file(tiny_model_dir / "model.safetensors"))).decode()
    body = {
        "serialized_named_tensors": [blob],
        "load_format": "safetensors",
        "weight_version": "0",
        "flush_cache": True,
    }
    assert server.post("/update_weights_from_tensor", json=body).json()["success"]
    assert server.get("/model_info").json()["weight_version"] == "0"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/update_weights_from_disk", {"model_path": "/nowhere"}),
        ("/update_weights_from_disk", {}),
        ("/update_weights_from_disk", {"model_path": "x", "load_format": "dummy"}),
        ("/update_weights_from_disk", {"model_path": "x", "weight_version": 3}),
        ("/update_weights_from_disk", {"model_pth": "x"}),
        ("/update_weights_from_tensor", {"serialized_named_tensors": ["AAAA"]}),
        ("/update_weights_from_tensor", {"serialized_named_tensors": ["AAAA"], "load_format": "safetensors"}),
        ("/update_weights_from_tensor", {"serialized_named_tensors": ["!"], "load_format": "safetensors"}),
        ("/update_weights_from_tensor", {"serialized_named_tensors": [], "load_format": "safetensors"}),
        ("/pause_generation", {"mode": "softly"}),
        ("/abort_request", {"rid": 3}),
    ],
)
def test_bad_control_calls_change_nothing(path: str, body: Any, server: httpx.Client) -> None:
    response = server.post(path, json=body)
    assert response.status_code == 400
    assert response.json().get("message") or response.json()["error"]["message"]
    assert server.get("/model_info").json()["weight_version"] == "0"
    assert not server.get("/server_info").json()["internal_states"][0]["paused"]


@pytest.mark.parametrize("runner", ["embedded", pytest.param("hf", marks=pytest.mark.slow)])
def test_an_abort_ends_a_known_request_and_those_whose_ids_begin_with_its_id(runner: str, tiny_model_dir: Path) -> None:
    options = ("--max-context-length", "2000", "--runner", runner)
    with serving(tiny_model_dir, *options) as server, ThreadPoolExecutor(3) as pool:
        pending = {rid: pool.submit(slow_generation, server, rid, 1997) for rid in ("r", "r.2", "2.r")}
        wait_for(server, lambda state: state["num_running_reqs"] + state["num_waiting_reqs"] == 3)
        twice = {"input_ids": [1], "rid": "r"}
        assert server.post("/generate", json=twice).json()["error"]["message"] == "Duplicate request ID detected: r"
        for nobody in ({"rid": "2"}, {"rid": ""}, {}):
            assert server.post("/abort_request", json=nobody).status_code == 200
        assert server.post("/abort_request", json={"rid": "r"}).status_code == 200
        ends = {rid: each.result(60)["meta_info"]["finish_reason"]["type"] for rid, each in pending.items()}
    assert ends == {"r": "abort", "r.2": "abort", "2.r": "length"}


def test_a_weight_update_waits_for_running_requests_and_new_ones_for_it(
    server: httpx.Client, tiny_model_dir: Path
) -> None:
    update = {"model_path": str(tiny_model_dir), "weight_version": "0", "flush_cache": True}
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(slow_generation, server, "first")
        wait_for(server, lambda state: state["num_running_reqs"] == 1)
        updated = pool.submit(server.post, "/update_weights_from_disk", json={**update, "weight_version": "8"})
        spans = first.result(60)["meta_info"]["weight_versions"]
        assert spans == [{"version": "0", "start": 0, "end": 597}]
        assert updated.result(60).json()["success"]
        assert server.post("/generate", json={"input_ids": [1]}).json()["meta_info"]["weight_version"] == "8"
        assert server.post("/update_weights_from_disk", json=update).json()["success"]


def test_a_client_that_goes_away_frees_its_slot(server: httpx.Client) -> None:
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 597, "ignore_eos": True}, "stream": True}
    before = server.get("/server_info").json()["internal_states"][0]["counters"]["aborted"]
    with httpx.Client(base_url=server.base_url) as leaver, leaver.stream("POST", "/generate", json=body) as response:
        next(response.iter_lines())
    wait_for(server, lambda state: state["num_running_reqs"] == 0 and state["counters"]["aborted"] == before + 1)


def test_an_adapter_is_merged_while_it_is_loaded(server: httpx.Client, tiny_model_dir: Path, tmp_path: Path) -> None:
    lm = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    config = LoraConfig(r=4, lora_alpha=24, target_modules=["q_proj", "k_proj", "o_proj", "gate_proj", "down_proj"])
    torch.manual_seed(0)
    inject_adapter_in_model(config, lm)
    for name, parameter in lm.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.2)
    adapters = {name: p.detach() for name, p in lm.named_parameters() if is_adapter(name)}
    write_adapter(tmp_path / "own", adapters, config, str(tiny_model_dir))

    def sampled(**more: Any) -> httpx.Response:
        body = {"input_ids": [1, 2, 3], "sampling_params": GREEDY, "return_logprob": True, **more}
        return server.post("/generate", json=body)

    def post(path: str, **body: Any) -> httpx.Response:
        return server.post(path, json=body)

    before = sampled().json()
    load = {"lora_name": "own", "lora_path": str(tmp_path / "own")}
    if server.get("/server_info").json()["runner"] == "hf":
        assert "this runner takes no adapters" in post("/load_lora_adapter", **load).json()["error"]["message"]
        return
    assert post("/unload_lora_adapter", lora_name="own").status_code == 400
    assert post("/load_lora_adapter", **load).json() == {
        "success": True,
        "error_message": "",
        "loaded_adapters": {"own": load["lora_path"]},
    }
    assert post("/update_weight_version", new_version="7").json()["success"]
    merged = sampled(lora_path="own").json()
    with torch.no_grad():
        ids = torch.tensor([[1, 2, 3, *merged["output_ids"]]])
        expected = lm(ids).logits[0, 2:-1].log_softmax(-1).gather(1, ids[0, 3:, None])[:, 0]
    got = torch.tensor([entry[0] for entry in merged["meta_info"]["output_token_logprobs"]])
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
    assert merged["meta_info"]["weight_version"] == "7"
    assert merged["output_ids"] != before["output_ids"]
    assert "the weights are merged with 'own'" in sampled().json()["error"]["message"]
    assert server.get("/health_generate").status_code == 200
    again = post("/load_lora_adapter", lora_name="two", lora_path=load["lora_path"])
    assert (again.status_code, "'own' is loaded" in again.json()["error_message"]) == (400, True)
    assert post("/unload_lora_adapter", lora_name="own").json()["success"]
    assert sampled().json()["output_ids"] == before["output_ids"]
    good = load_file(tmp_path / "own" / "adapter_model.safetensors")
    save_file({name: pair.repeat(2, 2) for name, pair in good.items()}, tmp_path / "own" / "adapter_model.safetensors")
    larger = post("/load_lora_adapter", **load)
    assert (larger.status_code, "but the weight there is [" in larger.json()["error_message"]) == (400, True)
    assert sampled().json()["output_ids"] == before["output_ids"]
    (tmp_path / "own" / "adapter_config.json").write_text('{"peft_type": "LOHA"}')
    assert "wanted a plain LoRA adapter, got LOHA" in post("/load_lora_adapter", **load).json()["error_message"]
    assert "cannot be read" in post("/load_lora_adapter", lora_name="x", lora_path="/no").json()["error_message"]
