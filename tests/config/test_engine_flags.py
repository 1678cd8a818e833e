"""`engine_kwargs` gives any flag of an engine but those that other keys give; nothing is given twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config import RunConfig, load_config
from agentrl.config.engine_choice import CONTEXT_MARGIN
from agentrl.config.engine_flags import (
    _VLLM_NEVER,
    SGLANG_FLAGS,
    SGLANG_GPU_FLAGS,
    VLLM_FLAGS,
    VLLM_GPU_FLAGS,
    check_engine_flags,
)
from agentrl.errors import ConfigError
from agentrl.inference import sglang
from agentrl.inference.sglang import launch_command

ROLLOUT = "actor_rollout_ref.rollout."
KWARGS = f"{ROLLOUT}engine_kwargs."
UNNAMED = {"uvicorn-log-level", "worker-extension-cls", "enable-sleep-mode"}
"""Flags of vLLM that a user may well give again: the last one counts."""
UNNAMED |= {"sleep-on-idle", "disable-overlap-schedule", "enable-memory-saver"}
"""And of SGLang, where a switch that is given twice is on."""


def config_with(engine: str, device: str = "cpu", **flags: object) -> RunConfig:
    rollout = {"name": engine, "engine_kwargs": {engine: flags}}
    return RunConfig.model_validate({"actor_rollout_ref": {"rollout": rollout}, "trainer": {"device": device}})


@pytest.mark.parametrize(
    ("engine", "flag", "message"),
    [
        ("sglang", "context_length", r"sglang\.context_length: agentrl gives this flag itself: set .*max_model_len$"),
        ("sglang", "context-length", r"sglang\.context-length: .*max_model_len$"),
        ("sglang", "base_gpu_id", r"sglang\.base_gpu_id: cannot be given: each engine sees GPUs of its own"),
        ("sglang", "gpu_id_step", r"sglang\.gpu_id_step: cannot be given: each engine sees GPUs of its own"),
        ("sglang", "pp_size", r"pp_size: cannot be given: give an engine more GPUs with .*tensor_model_parallel_size"),
        ("sglang", "pipeline_parallel_size", r"cannot be given: give an engine more GPUs with "),
        ("vllm", "pipeline_parallel_size", r"cannot be given: give an engine more GPUs with "),
        ("vllm", "prefill-context-parallel-size", r"cannot be given: give an engine more GPUs with "),
        ("vllm", "nnodes", r"vllm\.nnodes: cannot be given: each engine is on one machine"),
        ("vllm", "kv_cache_memory_bytes", r"cannot be given: set .*gpu_memory_utilization, by which the memory"),
        ("vllm", "num_gpu_blocks_override", r"cannot be given: set .*gpu_memory_utilization"),
        ("sglang", "dp_size", r"dp_size: cannot be given: set .*server\.launch for more engines"),
        (
            "vllm",
            "no_enable_prefix_caching",
            r"vllm\.no_enable_prefix_caching: .*set .*rollout\.enable_prefix_caching$",
        ),
        ("vllm", "logprobs_mode", r"vllm\.logprobs_mode: cannot be given: training needs"),
    ],
)
def test_a_flag_of_another_key_is_refused_by_name(engine: str, flag: str, message: str) -> None:
    (problem,) = check_engine_flags(config_with(engine, **{flag: 1}))
    with pytest.raises(ConfigError, match=message):
        raise ConfigError(problem)
    assert not list(check_engine_flags(config_with(engine, **{flag: None})))


def test_it_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine_kwargs\.sglang\.port: agentrl gives this flag itself"):
        load_config(None, ["data.train_files=a.parquet", f"{ROLLOUT}name=sglang", f"+{KWARGS}sglang.port=1"])
    for name, given, flag in (
        ("sglang", "--base-gpu-id=4", "--base-gpu-id"),
        ("sglang", "--api-key,secret", "--api-key"),
        ("sglang", "--pp-size=2", "--pp-size"),
        ("vllm", "--logprobs-mode=raw_logprobs", "--logprobs-mode"),
        ("vllm", "-pp=2", "-pp"),
    ):
        settings = [f"{ROLLOUT}name={name}", f"{ROLLOUT}server.python=python", f"{ROLLOUT}server.args=[{given}]"]
        with pytest.raises(ConfigError, match=rf"server\.args: got {flag}, but "):
            load_config(None, ["data.train_files=a.parquet", *settings])


@pytest.mark.parametrize(
    ("engine", "argument", "key"),
    [
        ("sglang", "--port=4", "rollout.server.port"),
        ("sglang", "--host", "rollout.server.host"),
        ("sglang", "--model-path=other", "model.path"),
        ("sglang", "--tp-size=4", "rollout.tensor_model_parallel_size"),
        ("vllm", "--tensor_parallel_size=4", "rollout.tensor_model_parallel_size"),
        ("vllm", "-tp", "rollout.tensor_model_parallel_size"),
        ("vllm", "--model", "model.path"),
    ],
)
def test_arguments_do_not_move_a_server_or_its_model(engine: str, argument: str, key: str) -> None:
    """The last one counts: the run would wait at another port, or train on what another model says."""
    config = config_with(engine, device="cuda")
    config.actor_rollout_ref.rollout.server.args = [argument]
    (problem,) = check_engine_flags(config)
    assert problem.endswith(f"but the run relies on its own: set actor_rollout_ref.{key}")
    config.actor_rollout_ref.rollout.server.args = ["--mem-fraction-static=0.3", "--log-level", "warning"]
    assert not list(check_engine_flags(config))


def test_on_a_cpu_flags_of_gpus_are_the_users_own() -> None:
    """There agentrl gives none of them, and the keys that stand for them do nothing."""
    for flag in ("mem_fraction_static", "tp_size"):
        assert not list(check_engine_flags(config_with("sglang", **{flag: 2})))
        assert list(check_engine_flags(config_with("sglang", "cuda", **{flag: 2})))


def with_args(config: RunConfig, *args: str) -> RunConfig:
    config.actor_rollout_ref.rollout.server.args = list(args)
    return config


def test_a_cache_in_tokens_holds_a_trajectory() -> None:
    """The default of prompts and responses together, and what SGLang leaves unused."""
    plain = config_with("sglang")
    need = plain.data.max_prompt_length + plain.data.max_response_length + CONTEXT_MARGIN
    for config in (
        config_with("sglang", max_total_tokens=need - 1),
        config_with("sglang", **{"max-total-tokens": str(need - 1)}),
        with_args(config_with("sglang"), "--max-total-tokens", str(need - 1)),
        with_args(config_with("sglang", max_total_tokens=need), f"--max_total_tokens={need - 1}"),
    ):
        (problem,) = check_engine_flags(config)
        assert f"max_total_tokens: got {need - 1}, but a trajectory has up to {need - CONTEXT_MARGIN} tokens" in problem
        assert problem.endswith(f"wanted at least {need}")
    assert not list(check_engine_flags(config_with("sglang", max_total_tokens=need)))
    (odd,) = check_engine_flags(config_with("sglang", max_total_tokens="many"))
    assert "wanted a whole number of tokens" in odd


def test_servers_that_share_gpus_can_release_their_memory() -> None:
    for config in (
        config_with("sglang", "cuda", enable_memory_saver=False),
        config_with("vllm", "cuda", enable_sleep_mode=False),
        config_with("vllm", "cuda", no_enable_sleep_mode=True),
        with_args(config_with("vllm", "cuda"), "--no-enable-sleep-mode"),
    ):
        (problem,) = check_engine_flags(config)
        assert "but engines release their memory while ranks train: set actor_rollout_ref.rollout.free_cache" in problem
        config.actor_rollout_ref.rollout.free_cache_engine = False
        assert not list(check_engine_flags(config))
    assert not list(check_engine_flags(config_with("sglang", "cpu", enable_memory_saver=False)))
    assert not list(check_engine_flags(config_with("sglang", "cuda", enable_memory_saver=True)))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_every_flag_of_the_command_is_known(
    engine: str, device: str, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a command with everything on; and any other flag comes through."""
    monkeypatch.setattr(sglang, "sglang_installed", lambda: True)
    monkeypatch.setattr(sglang, "vllm_installed", lambda: True)
    config = config_with(engine, device, attention_backend="fa3", enable_metrics=True)
    policy, rollout = config.actor_rollout_ref, config.actor_rollout_ref.rollout
    policy.model.path, policy.model.tokenizer_path = str(tiny_model_dir), "t"
    policy.model.trust_remote_code = config.trainer.deterministic = rollout.enforce_eager = True
    policy.model.lora_rank, rollout.weight_sync = 8, "adapter"
    rollout.max_num_seqs, rollout.max_num_batched_tokens, rollout.load_format = 4, 64, "dummy"
    rollout.enable_prefix_caching = rollout.enable_chunked_prefill = False
    command = launch_command(config, 0, "h", 1)
    assert "--attention-backend fa3 --enable-metrics" in " ".join(command)
    known = {"sglang": {**SGLANG_FLAGS, **SGLANG_GPU_FLAGS}, "vllm": {**VLLM_FLAGS, **VLLM_GPU_FLAGS, **_VLLM_NEVER}}
    given = {each.removeprefix("--").removeprefix("no-") for each in command if each.startswith("--")}
    assert given - known[engine].keys() - UNNAMED == {"attention-backend", "enable-metrics"}
    assert len(given) > 12
