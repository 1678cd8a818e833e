"""`trainer.resource_pools` and `role_pools`: what they mean, what is refused, what is told."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from agentrl.config import RunConfig, load_config
from agentrl.config.resource_pools import Pool, pool_of, pools_in_use, total_ranks
from agentrl.errors import ConfigError

BASE: dict[str, Any] = {
    "data.train_files": "rows.parquet",
    "data.train_batch_size": 4,
    "actor_rollout_ref.model.path": "model",
    "actor_rollout_ref.actor.use_kl_loss": True,
}
"""PPO with actor, reference and critic."""


def load(*overrides: str, **trainer: Any) -> RunConfig:
    return load_config({**BASE, "trainer": {**trainer, "device": "cpu"}}, overrides)


def test_without_pools_there_is_one_of_all_machines() -> None:
    config = load("ray_init.address=auto", nnodes=2, n_gpus_per_node=4)
    assert pools_in_use(config) == [Pool("global_pool", (4, 4), ("actor", "ref", "critic"))]
    assert total_ranks(config) == 8


@pytest.mark.parametrize(
    ("spec", "ranks"),
    [
        ({"n_gpus": 3}, (3,)),
        ({"nnodes": 2, "n_gpus": 3}, (3, 3)),
        ({"nnodes": 2, "n_gpus_per_node": 1}, (1, 1)),
        ({"process_on_nodes": [4, 2]}, (4, 2)),
        ([4, 2], (4, 2)),
    ],
)
def test_spellings_of_a_pool(spec: Any, ranks: tuple[int, ...]) -> None:
    config = load("ray_init.address=auto", resource_pools={"critic": spec}, role_pools={"critic": "critic"})
    assert pool_of(config, "critic") == Pool("critic", ranks, ("critic",))
    assert pool_of(config, "actor") == Pool("global_pool", (1,), ("actor", "ref"))
    assert total_ranks(config) == 1 + sum(ranks)


def test_pools_from_the_command_line() -> None:
    config = load(
        "trainer.resource_pools.small.n_gpus=2", "trainer.role_pools.ref=small", "+trainer.role_pools.critic=small"
    )
    assert [(pool.name, pool.process_on_nodes, pool.roles) for pool in pools_in_use(config)] == [
        ("global_pool", (1,), ("actor",)),
        ("small", (2,), ("ref", "critic")),
    ]


def test_a_recipe_may_say_itself_what_the_global_pool_is() -> None:
    """As verl's `resource_pool_spec` does."""
    config = load(resource_pools={"global_pool": [2]}, role_pools={"actor_rollout": "global_pool"})
    assert pools_in_use(config) == [Pool("global_pool", (2,), ("actor", "ref", "critic"))]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"n_gpu": 1}, ".n_gpu: unknown key. Did you mean 'n_gpus'?"),
        ({"n_gpus": 0}, ".n_gpus: got 0, wanted a whole number at least 1"),
        ({"n_gpus": 99999999999}, ".n_gpus: got 99999999999, wanted a whole number at least 1 and at most 1024"),
        (
            {"nnodes": 99999999999, "n_gpus": 1},
            ".nnodes: got 99999999999, wanted a whole number at least 1 and at most",
        ),
        ({"n_gpus": "2"}, ".n_gpus: got '2', wanted a whole number at least 1"),
        ({"nnodes": 2}, ".n_gpus: not given, wanted {nnodes: 1, n_gpus: 2} (the ranks of each machine)"),
        ({"n_gpus": 1, "n_gpus_per_node": 1}, ": got n_gpus and n_gpus_per_node, wanted one of them"),
        ({"nnodes": 1, "process_on_nodes": [1]}, ".nnodes: given, but process_on_nodes has one entry for each machine"),
        ([1, True], ": got [1, true], wanted a list of whole numbers at least 1"),
        (2, ": got 2, wanted {nnodes: 1, n_gpus: 2}"),
        ({}, ": got an empty section, wanted {nnodes: 1"),
        (None, ": got null, wanted {nnodes: 1"),
        ([1, 1], ": got 2 machines, but without ray_init.address the run starts a private Ray on this machine alone"),
    ],
)
def test_a_pool_that_is_written_wrong(spec: Any, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(resource_pools={"small": spec}, role_pools={"critic": "small"})
    assert f"trainer.resource_pools.small{problem}" in str(caught.value)


@pytest.mark.parametrize(
    ("pools", "roles", "message"),
    [
        ({}, {"critic": "smal"}, "role_pools.critic: got 'smal', which is no pool. Known: global_pool."),
        ({"small": [1]}, {"critic": "smal"}, "role_pools.critic: got 'smal', which is no pool. Did you mean 'small'?"),
        ({}, {"critc": "x"}, "unknown key (given 'x'). Did you mean 'trainer.role_pools.critic'?"),
        ({}, {"critic": None}, "role_pools.critic: got null, wanted text"),
        (
            {"small": [1]},
            {},
            "resource_pools.small: no role is in this pool: name it in trainer.role_pools, whose roles",
        ),
    ],
)
def test_roles_and_pools_that_do_not_find_each_other(pools: Any, roles: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(resource_pools=pools, role_pools=roles)
    assert message in str(caught.value)


RM = {"enable": True, "model": {"path": "rm"}, "enable_resource_pool": True}


def test_the_pool_of_verl_s_reward_model() -> None:
    section = {**RM, "nnodes": 2, "n_gpus_per_node": 4}
    config = load_config({**BASE, "reward_model": section, "ray_init.address": "auto"})
    assert pool_of(config, "reward_model") == Pool("reward_pool", (4, 4), ("reward_model",))
    off = load_config({**BASE, "reward_model": {**section, "enable_resource_pool": False}})
    assert pool_of(off, "reward_model").name == "global_pool"


@pytest.mark.parametrize(
    ("section", "trainer", "message"),
    [
        ({}, {}, "reward_model.n_gpus_per_node: got 0, wanted at least 1: reward_model.enable_resource_pool is true"),
        ({"nnodes": 2, "n_gpus_per_node": 1}, {}, "reward_model.nnodes: got 2, but without ray_init.address the run"),
        ({"nnodes": 0, "n_gpus_per_node": 1}, {}, "reward_model.nnodes: got 0, wanted at least 1"),
        (
            {"n_gpus_per_node": 1},
            {"resource_pools": {"small": [1]}, "role_pools": {"reward_model": "small"}},
            "reward_model.enable_resource_pool: got true, but trainer.role_pools.reward_model is 'small': give one",
        ),
        (
            {"n_gpus_per_node": 1},
            {"resource_pools": {"reward_pool": [1]}},
            "reward_model.enable_resource_pool: got true, but trainer.resource_pools has a reward_pool too: give one",
        ),
    ],
)
def test_the_pool_of_a_reward_model_that_does_not_fit(section: Any, trainer: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({**BASE, "reward_model": {**RM, **section}, "trainer": {**trainer, "device": "cpu"}})
    assert message in str(caught.value)


def test_a_mesh_fits_the_pool_of_its_model() -> None:
    pools = {"n_gpus_per_node": 4, "resource_pools": {"small": [1]}, "role_pools": {"critic": "small"}}
    half = "fsdp_config.ulysses_sequence_parallel_size=2"
    load(f"actor_rollout_ref.actor.{half}", **pools)
    with pytest.raises(ConfigError, match=r"critic.fsdp_config: got .* but the run has 1 rank, "):
        load(f"critic.{half}", **pools)


def test_in_this_process_there_is_one_rank_in_every_pool() -> None:
    with pytest.raises(ConfigError, match=r"got 'local' with 2 ranks \(small: trainer.resource_pools.small\); local"):
        load(backend="local", resource_pools={"small": [2]}, role_pools={"critic": "small"})


@pytest.mark.parametrize(
    ("trainer", "overrides", "notes"),
    [
        (
            {"resource_pools": {"small": [1]}, "role_pools": {"critic": "small"}},
            ["algorithm.adv_estimator=grpo"],
            [
                "trainer.role_pools.critic has no effect here: the run has no critic",
                "trainer.resource_pools has no effect here: the run has none of the roles that are in these pools",
            ],
        ),
        (
            {"resource_pools": {"small": [1]}, "role_pools": {"ref": "small"}},
            ["actor_rollout_ref.model.lora_rank=8"],
            ["trainer.role_pools.ref has no effect here: the policy has LoRA, so that the reference is the actor"],
        ),
        (
            {"backend": "local", "resource_pools": {"small": [1]}, "role_pools": {"critic": "small"}},
            [],
            [
                "trainer.resource_pools and trainer.role_pools.critic have no effect here: trainer.backend is local: "
                "every role runs in this process"
            ],
        ),
        (
            {
                "n_gpus_per_node": 2,
                "resource_pools": {"all": [1]},
                "role_pools": dict.fromkeys(("actor", "ref", "critic"), "all"),
            },
            [],
            ["trainer.n_gpus_per_node has no effect here: no role is in the pool of these keys, global_pool"],
        ),
    ],
)
def test_what_does_nothing_is_told(
    trainer: Any, overrides: list[str], notes: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    load(*overrides, **trainer)
    for note in notes:
        assert note in caplog.text
