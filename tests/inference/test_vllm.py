"""vLLM's words and flags: what its client sends and understands, and how a server is started. Real servers: see
test_engine_contract.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import RunConfig, load_config
from agentrl.errors import ConfigError, EngineError, EngineRequestError
from agentrl.inference import vllm
from agentrl.inference.clients import client_class
from agentrl.inference.protocol import parse_generation
from agentrl.inference.sglang import launch_command, resolve_engine
from agentrl.inference.vllm import render_flags
from agentrl.inference.vllm_client import VLLMClient, as_generation, vllm_sampling
from agentrl.testing.scripted_engine import ScriptedEngine

ROLLOUT = "actor_rollout_ref.rollout."
RECORDED: dict[str, Any] = {
    "request_id": "generate-tokens-abc",
    "model": "/models/tiny",
    "created": 1795941859,
    "usage": {
        "prompt_tokens": 3,
        "total_tokens": 5,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 1, "created_cache_tokens": None, "multimodal_tokens": None},
        "completion_tokens_details": None,
    },
    "prompt_logprobs": None,
    "prompt_token_ids": None,
    "metrics": None,
    "kv_transfer_params": None,
    "output_mode": "tokens",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "stop_reason": 113,
            "token_ids": [37, 113],
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": [{"version": "default", "start": 0, "end": 1}, {"version": "7", "start": 1, "end": 2}],
            "logprobs": {
                "content": [
                    {
                        "token_id": token,
                        "logprob": log_prob,
                        "rank": 1,
                        "top_logprobs": [{"token_id": token, "logprob": log_prob, "rank": 1}],
                    }
                    for token, log_prob in ((37, -2.0565922260284424), (113, -2.515040636062622))
                ]
            },
        }
    ],
}
"""What vLLM 0.32 answered to token_ids [1, 2, 3] with stop_token_ids [113], its weights replaced meanwhile."""


def recorded(**choice: Any) -> dict[str, Any]:
    return {**RECORDED, "choices": [{**RECORDED["choices"][0], **choice}]}


def test_an_answer_of_a_real_server() -> None:
    output = parse_generation(as_generation(RECORDED), 8)
    assert output.token_ids == [37, 113]
    assert output.log_probs == [-2.0565922260284424, -2.515040636062622]
    assert output.weight_versions == [-1, 7]
    assert (output.finish_reason, output.matched) == ("stop", 113)
    assert (output.prompt_tokens, output.cached_tokens) == (3, 1)
    own_end = parse_generation(as_generation(recorded(stop_reason=None)), 8)
    assert own_end.matched == 113, "the model's own end-of-turn id is not named"
    aborted = recorded(finish_reason="abort", token_ids=[], logprobs={"content": []}, weight_versions=[])
    assert parse_generation(as_generation(aborted), 8).finish_reason == "abort"
    cut = parse_generation(as_generation(recorded(finish_reason="length", stop_reason=None)), 8)
    assert (cut.finish_reason, cut.matched) == ("length", None)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"error": "x"}, "not one generation"),
        ([RECORDED], "not one generation"),
        ({**RECORDED, "choices": []}, "not one generation"),
        (recorded(weight_versions=None), "vLLM has them from 0.32 on"),
        (recorded(logprobs=None), "belong to other ids"),
        (recorded(token_ids=[37]), "belong to other ids"),
        (
            recorded(logprobs={"content": [{"token_id": 37, "logprob": -9999.0}, {"token_id": 113, "logprob": -1.0}]}),
            "without a log-prob",
        ),
    ],
)
def test_answers_that_cannot_be_trained_on(body: Any, says: str) -> None:
    with pytest.raises(EngineError, match=says):
        parse_generation(as_generation(body), 8)


def test_sampling_fields_have_other_names() -> None:
    given = {
        "max_new_tokens": 5,
        "min_new_tokens": 1,
        "sampling_seed": 3,
        "temperature": 0.5,
        "top_k": -1,
        "stop": [],
        "n": 1,
        "no_stop_trim": True,
        "min_p": None,
        "regex": "a+",
    }
    wanted = {"max_tokens": 5, "min_tokens": 1, "seed": 3, "temperature": 0.5, "top_k": -1, "stop": []}
    assert vllm_sampling(given) == {**wanted, "structured_outputs": {"regex": "a+"}}
    assert vllm_sampling({"sampling_seed": -1})["seed"] > 0, "vLLM takes -1 for no seed"


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"temprature": 1}, "Did you mean 'temperature'"),
        ({"custom_params": {}}, "vLLM has none"),
        ({"n": 2}, "wanted 1"),
    ],
)
def test_a_field_that_vllm_would_ignore_is_refused(params: dict[str, Any], says: str) -> None:
    with pytest.raises(EngineRequestError, match=says):
        vllm_sampling(params)


async def test_a_paused_engine_stays_paused_while_weights_change(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    engine = ScriptedEngine(lambda payload: ([5], "stop"))
    client = VLLMClient(await engine.start(), vocab_size=9)
    for paused in (True, False):
        await (client.pause() if paused else client.resume())
        await client.update_weights_from_disk(str(tmp_path), 2)
        assert await client._call("GET", "/is_paused") == {"is_paused": paused}
    with pytest.raises(EngineRequestError, match="got 'in_plce'"):
        await client.pause("in_plce")
    with pytest.raises(EngineRequestError, match=r"use rollout\.weight_sync=disk"):
        await client.update_weights_from_tensor({}, 2)
    await client.close()
    await engine.stop()


def test_flags() -> None:
    flags = {"swap_space": 8, "x": True, "y": False, "z": None, "many": [1, 2], "kv": {"a": 1}}
    assert render_flags(flags) == ["--swap-space", "8", "--x", "--no-y", "--many", "1", "2", "--kv", '{"a": 1}']
    assert render_flags({"y": False, "x": True}, negations=False) == ["--x"]
    with pytest.raises(ConfigError, match="wanted the name of a flag"):
        render_flags({"--x y": 1})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.config.engine_choice.vllm_installed", lambda: True)
    monkeypatch.setattr("agentrl.inference.sglang.vllm_installed", lambda: True)


def config(model: Path, *more: str) -> RunConfig:
    lengths = ["data.max_prompt_length=200", "data.max_response_length=56", "algorithm.adv_estimator=grpo"]
    rows = ["data.train_files=rows.parquet", f"actor_rollout_ref.model.path={model}"]
    return load_config(None, [*lengths, *rows, "trainer.device=cpu", f"{ROLLOUT}name=vllm", *more])


@pytest.mark.usefixtures("installed")
def test_the_command_on_a_cpu(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = [f"{ROLLOUT}max_num_seqs=7", f"{ROLLOUT}max_num_batched_tokens=64", f"{ROLLOUT}enable_chunked_prefill=false"]
    run = config(tiny_model_dir, *more, f"+{ROLLOUT}engine_kwargs.vllm.swap_space=8", f"{ROLLOUT}server.args=[--x]")
    assert resolve_engine(run) == "vllm"
    assert client_class(run) is VLLMClient
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "3")
    command = launch_command(run, 1, "h", 5)
    line = " ".join(command)
    assert command[0] == "env"
    assert {"VLLM_SERVER_DEV_MODE=1", "VLLM_CPU_KVCACHE_SPACE=3"} < set(command)
    assert f"{sys.executable} -m vllm.entrypoints.openai.api_server --model {tiny_model_dir} --host h --port 5" in line
    for flags in (
        "--max-model-len 256 --seed 2 --dtype float32",
        "--max-num-seqs 7 --max-num-batched-tokens 256 --no-enable-chunked-prefill",
        "--logprobs-mode processed_logprobs --generation-config vllm --enable-scale-out",
        "--enforce-eager --logprobs-mode",
        "--worker-extension-cls agentrl_vllm_worker.PresentHead",
    ):
        assert flags in line
    assert command[-3:] == ["--swap-space", "8", "--x"]
    assert "--tensor-parallel-size" not in line


@pytest.mark.usefixtures("installed")
def test_the_command_on_gpus(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "uses_cuda", lambda _: True)
    run = config(tiny_model_dir)
    rollout = run.actor_rollout_ref.rollout
    rollout.server.launch, rollout.tensor_model_parallel_size, rollout.gpu_memory_utilization = 2, 2, 0.4
    command = launch_command(run, 1, "h", 5)
    line = " ".join(command)
    assert "CUDA_VISIBLE_DEVICES" not in line  # its host sets it
    assert "--gpu-memory-utilization 0.4 --tensor-parallel-size 2" in line
    assert "--dtype bfloat16" in line
    assert "--enforce-eager" not in line
    rollout.enforce_eager = True
    assert "--enforce-eager" in launch_command(run, 0, "h", 5)


def test_without_vllm_its_name_is_read_as_auto(tiny_model_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert config(tiny_model_dir).actor_rollout_ref.rollout.name == "auto"
    assert f"{ROLLOUT}name: vllm is read as auto: vLLM is not installed here (pip install vllm, or name" in caplog.text


def test_where_vllm_is_named_it_is_meant(tiny_model_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = config(tiny_model_dir, f"{ROLLOUT}server.addresses=[http://h:1]")
    assert run.actor_rollout_ref.rollout.name == "vllm"
    run = config(tiny_model_dir, f"{ROLLOUT}server.python={sys.executable}")
    assert run.actor_rollout_ref.rollout.name == "vllm"
    assert "is read as" not in caplog.text
    with pytest.raises(ConfigError, match=r"server\.python: .* has no vllm: name the Python of an environment in"):
        resolve_engine(run)
    run.actor_rollout_ref.rollout.server.python = None
    with pytest.raises(ConfigError, match="got vllm, which is not installed"):
        resolve_engine(run)
