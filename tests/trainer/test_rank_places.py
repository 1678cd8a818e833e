"""The places of training ranks: which roles share them, and how many threads a rank has."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from agentrl.config import RunConfig, load_config
from agentrl.errors import ConfigError
from agentrl.placement.of_run import check_places
from agentrl.trainer.pools import make_pools
from agentrl.trainer.processes import RunProcesses


def config_of(**trainer: Any) -> RunConfig:
    base = {"data.train_files": "rows.parquet", "data.train_batch_size": 4, "actor_rollout_ref.model.path": "model"}
    return load_config({**base, "trainer": {"device": "cpu", **trainer}})


def pools_of(**trainer: Any) -> Any:
    return make_pools(config_of(**trainer))


APART = {"n_gpus_per_node": 2, "resource_pools": {"small": [1]}, "role_pools": {"critic": "small"}}


def test_roles_in_one_pool_share_its_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(12), raising=False)
    together, apart = pools_of(n_gpus_per_node=2), pools_of(**APART)
    assert together["actor"] is together["critic"]
    assert apart["actor"] is not apart["critic"]
    assert [(pool.world_size, pool.threads_per_rank) for pool in apart.values()] == [(2, 4), (1, 4)]
    assert together["actor"].threads_per_rank == 6


def test_threads_are_those_of_the_cores_that_a_run_may_use_unless_they_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3), raising=False)  # `taskset -c 0-2` on 12 cores
    assert [pools_of(n_gpus_per_node=ranks)["actor"].threads_per_rank for ranks in (1, 2, 4)] == [3, 1, 1]
    assert pools_of(threads_per_rank=2)["actor"].threads_per_rank == 2
    assert pools_of(deterministic=True)["actor"].threads_per_rank == 1
    demo = load_config("demo", ["trainer.device=cpu"])  # ranks and the engine take turns: neither leaves a core idle
    assert make_pools(demo)["actor"].threads_per_rank == 3


def test_in_this_process_all_roles_are_on_one_rank() -> None:
    pools = pools_of(**{**APART, "n_gpus_per_node": 1, "backend": "local"})
    assert pools["actor"] is pools["critic"]


def test_a_machine_with_fewer_gpus_than_ranks_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.placement.of_run.ray_is_connected", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_places(config_of(device="cuda", n_gpus_per_node=2))
    check_places(config_of(**APART))
    with pytest.raises(ConfigError, match=r"3 ranks need 3 GPUs \(global_pool 2 \+ small 1\), but this machine has 2"):
        check_places(config_of(device="cuda", **APART))
    with pytest.raises(ConfigError, match="4 ranks need 4 GPUs, but this machine has 2: lower trainer"):
        check_places(config_of(device="cuda", n_gpus_per_node=4))


def test_an_engine_of_agentrls_own_is_one_rank_of_a_weight_group(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(device="cuda")
    config.actor_rollout_ref.rollout.tensor_model_parallel_size = 2
    for installed, ranks in ((True, 2), (False, 1)):
        monkeypatch.setattr("agentrl.config.machine.sglang_installed", lambda installed=installed: installed)
        assert RunProcesses(config, 10, 1)._engine_ranks == ranks
    config.actor_rollout_ref.rollout.server.addresses = ["http://gpu-host:30000"]
    assert RunProcesses(config, 10, 1)._engine_ranks == 2


def test_threads_as_the_run_asks() -> None:
    assert {pool.threads_per_rank for pool in pools_of(**APART, threads_per_rank=3).values()} == {3}
    assert {pool.threads_per_rank for pool in pools_of(**APART, deterministic=True).values()} == {1}
