"""Main memory of machines: of ranks and engines on CPUs, and of what ranks on GPUs offload."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from made_up import AR, SEVEN, run_of

from agentrl.config import load_config
from agentrl.placement import Cluster, Machine, of_run, plan
from agentrl.placement.cluster import GIB
from agentrl.placement.forecast import forecast
from agentrl.placement.host_memory import PROCESS, host_memory, policy_gib
from agentrl.placement.lengths import Lengths
from agentrl.placement.verdict import memory_problems

HALF = "Qwen/Qwen2.5-0.5B"
EIGHT = {"trainer__n_gpus_per_node": 8}
ACTOR = f"{AR}.actor.fsdp_config."


def with_main_memory(cluster: str, gib: float | None) -> Cluster:
    machines = Cluster.parse(cluster).machines
    return Cluster(tuple(Machine(each.gpus, each.gpu_gib, host_gib=gib) for each in machines), "this machine")


def problems_of(cluster: str, gib: float | None, model: str = SEVEN, **changes: Any) -> list[str]:
    config = run_of(cluster, model, **changes)
    return memory_problems(config, plan(config, with_main_memory(cluster, gib)), Lengths.most(config))


def test_ranks_on_cpus_share_the_memory_of_their_machine() -> None:
    (problem,) = problems_of("1x0", 23.4, **EIGHT)
    assert problem.startswith("memory: machine 0 of this machine has 23.4 GiB of main memory, but the run needs ")
    assert "there: 8 ranks of global_pool (update) " in problem
    assert "+ weights of 1 engine 28.4 + Python and torch 2.7: take machines with more main memory" in problem
    assert problems_of("1x0", None, **EIGHT) == []
    assert problems_of("1x0", 8.0, HALF) != [] == problems_of("1x0", 64.0, HALF)


def test_what_a_machine_needs_is_the_sum_of_its_processes() -> None:
    config = run_of("1x0", HALF, trainer__n_gpus_per_node=2, R__server__launch=2)
    placement, lengths = plan(config, with_main_memory("1x0", 100.0)), Lengths.most(config)
    (host,), (rank,) = host_memory(config, placement, lengths), forecast(config, placement, lengths)
    weights = 4 * 494_032_768
    assert host.bytes == pytest.approx(2 * rank.peak.bytes + 2 * weights + 4 * PROCESS, rel=0.001)


def test_settings_that_are_enough_are_named() -> None:
    small = {"data__max_response_length": 2048, f"{AR}.model.enable_gradient_checkpointing": False}
    config = run_of("1x0", HALF, **small)
    need = [each.bytes / GIB for each in host_memory(config, plan(config, Cluster.parse("1x0")), Lengths.most(config))]
    (problem,) = problems_of("1x0", need[0] - 1, HALF, **small)
    assert problem.endswith("It fits with actor_rollout_ref.model.enable_gradient_checkpointing=true")


def test_what_gpus_offload_is_on_their_machine() -> None:
    whole = 7.6156 * 1e9 / GIB
    for key, each in (("optimizer_offload", 8), ("param_offload", 4), ("offload_policy", 16)):
        config = run_of("2x8x80", trainer__nnodes=2, **EIGHT, **{f"{ACTOR}{key}": True})
        hosts = host_memory(config, plan(config, Cluster.parse("2x8x80")), Lengths.most(config))
        assert [dict(host.parts)["offloaded by 8 ranks of global_pool"] / GIB for host in hosts] == [
            pytest.approx(each * whole / 2, rel=0.001)
        ] * 2
    (problem,) = problems_of("1x8x80", 32.0, **EIGHT, **{f"{ACTOR}optimizer_offload": True})
    assert "offloaded by 8 ranks of global_pool 56.7" in problem
    assert "or offload less (fsdp_config.param_offload" in problem
    assert problems_of("1x8x80", 256.0, **EIGHT, **{f"{ACTOR}optimizer_offload": True}) == []


def test_advice_offloads_no_more_than_a_machine_has() -> None:
    tight = {"R__gpu_memory_utilization": 0.35}
    assert "offload_policy=true (23 GiB of main" in problems_of("1x1x24", 64.0, "Qwen/Qwen2.5-1.5B", **tight)[-1]
    assert "offload_policy=true" not in problems_of("1x1x24", 16.0, "Qwen/Qwen2.5-1.5B", **tight)[-1]


def test_adapters_offload_their_own_moments_and_frozen_weights() -> None:
    config = run_of("1x1x80", **{f"{AR}.model.lora_rank": 16, f"{ACTOR}offload_policy": True})
    gib = policy_gib(config, plan(config, Cluster.parse("1x1x80")), Lengths.most(config))
    assert gib == pytest.approx(28.4 + 0.6, abs=0.3)


def test_a_run_on_cpus_is_warned_at_its_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(of_run, "this_machine", lambda: with_main_memory("1x0", 2.0))
    monkeypatch.setattr(of_run, "ray_is_connected", lambda: False)
    files = {"data.train_files": "rows.parquet", "trainer.device": "cpu"}
    with caplog.at_level(logging.WARNING):
        of_run.check_places(load_config({**files, f"{AR}.model.path": HALF}))
    assert "too large, by the forecast: memory: machine 0 of this machine has 2.0 GiB of main memory" in caplog.text
