"""Which engine a run starts, and the command line that it starts it with."""

from __future__ import annotations

import itertools

import pytest

from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError
from agentrl.inference import sglang
from agentrl.inference.sglang import launch_command, resolve_engine


def test_which_engine(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = config.actor_rollout_ref.rollout
    assert resolve_engine(config) == "embedded"
    rollout.name = "sglang"
    monkeypatch.setattr(sglang, "sglang_installed", lambda: False)
    with pytest.raises(ConfigError, match="not installed"):
        resolve_engine(config)
    rollout.server.addresses = ["http://127.0.0.1:30000"]
    assert resolve_engine(config) == "sglang"
    rollout.name = "auto"
    assert resolve_engine(config) == "embedded"
    monkeypatch.setattr(sglang, "sglang_installed", lambda: True)
    assert resolve_engine(config) == "embedded"
    config.trainer.device = "cuda"
    assert resolve_engine(config) == "sglang"


def test_commands(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = config.actor_rollout_ref.rollout
    command = launch_command(config, 1, "127.0.0.1", 30001)
    pairs = dict(itertools.pairwise(command))
    assert pairs["-m"] == "agentrl.inference.embedded"
    assert pairs["--port"] == "30001"
    assert pairs["--max-context-length"] == "256"
    assert pairs["--threads"] == "1"
    assert pairs["--engines-here"] == "1"
    assert pairs["--device"] == "cpu"
    assert "--deterministic" not in command
    assert "--tokenizer-path" not in command
    config.actor_rollout_ref.model.tokenizer_path = "other"
    assert "--tokenizer-path other" in " ".join(launch_command(config, 1, "127.0.0.1", 30001))
    rollout.server.launch = 3
    assert "--engines-here 3" in " ".join(launch_command(config, 1, "127.0.0.1", 30001))
    config.trainer.nnodes = 2  # two engines on one machine, one on the other
    assert "--engines-here 2" in " ".join(launch_command(config, 1, "127.0.0.1", 30001))
    rollout.server.launch, config.trainer.nnodes = None, 1
    config.trainer.deterministic = True
    assert "--deterministic" in launch_command(config, 1, "127.0.0.1", 30001)
    config.trainer.device = "cuda"
    for engines in (1, 2):  # each server sees its own GPUs alone: see `test_each_server_has_gpus_of_its_own`
        rollout.server.launch = engines
        assert "--device cuda " in " ".join([*launch_command(config, 1, "127.0.0.1", 30001), ""])
    monkeypatch.setattr(sglang, "sglang_installed", lambda: True)
    rollout.name, config.trainer.device, rollout.server.launch = "sglang", "cuda", 2
    rollout.tensor_model_parallel_size, rollout.gpu_memory_utilization = 4, 0.6
    rollout.server.args = ["--log-level", "warning"]
    command = launch_command(config, 1, "127.0.0.1", 30001)
    pairs = dict(itertools.pairwise(command))
    assert pairs["-m"] == "sglang.launch_server"
    assert "--base-gpu-id" not in command
    assert pairs["--context-length"] == "264"  # SGLang leaves the last tokens of it unused
    assert pairs["--tp-size"] == "4"
    assert pairs["--mem-fraction-static"] == "0.6"
    assert pairs["--dtype"] == "bfloat16"  # never auto: SGLang would make float16 of a float32 folder
    assert command[-2:] == ["--log-level", "warning"]
    assert not {"--device", "--enable-metrics"} & set(command)
    config.trainer.prometheus_address = 9400  # SGLang has no page of metrics by itself
    assert "--enable-metrics" in launch_command(config, 1, "127.0.0.1", 30001)
    config.trainer.device = "cpu"
    words = " ".join(launch_command(config, 0, "127.0.0.1", 30001))
    for flag in ("--device cpu", "--attention-backend torch_native", "--disable-overlap-schedule", "--dtype float32"):
        assert flag in words
    rollout.engine_kwargs.sglang["attention_backend"] = "intel_amx"
    words = " ".join(launch_command(config, 0, "127.0.0.1", 30001))
    assert "--attention-backend intel_amx" in words
    assert "torch_native" not in words
    assert "--enable-lora" not in command
    config.actor_rollout_ref.model.lora_rank, rollout.weight_sync = 8, "adapter"
    flags = " ".join(launch_command(config, 0, "127.0.0.1", 30001))
    assert "--enable-lora --max-loras-per-batch 2 --max-lora-rank 8 --lora-target-modules all " in flags
    config.actor_rollout_ref.model.target_modules = ["v_proj", "self_attn.q_proj"]
    assert "--lora-target-modules q_proj v_proj " in " ".join(launch_command(config, 0, "127.0.0.1", 30001))


def test_keys_of_engines_are_flags_of_the_engine_that_runs(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def flags(**keys: object) -> str:
        for key, value in keys.items():
            setattr(rollout, key, value)
        return " ".join(launch_command(config, 0, "127.0.0.1", 1))

    rollout = config.actor_rollout_ref.rollout
    assert "--prefill-chunk 2048" in flags()
    assert "--prefill-chunk 64 " in flags(max_num_batched_tokens=64)
    assert "--prefill-chunk 256 " in flags(enable_chunked_prefill=False)  # the longest request
    assert "--max-running-requests 7" in flags(max_num_seqs=7)
    assert "--max-context-length 300" in flags(max_model_len=300)
    assert "--dtype bfloat16" in flags(dtype="bfloat16")
    monkeypatch.setattr(sglang, "sglang_installed", lambda: True)
    config.trainer.device = "cuda"
    given = flags(name="sglang")
    for flag in ("--chunked-prefill-size -1 --max-prefill-tokens 64", "--max-running-requests 7", "--dtype bfloat16"):
        assert flag in given
    for key, value, flag in (
        ("enforce_eager", True, "--disable-cuda-graph"),
        ("load_format", "dummy", "--load-format dummy"),
        ("enable_prefix_caching", False, "--disable-radix-cache"),
        ("enable_chunked_prefill", True, "--chunked-prefill-size 64"),
    ):
        assert flag not in given
        assert flag in flags(**{key: value})
