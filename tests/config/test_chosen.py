"""Values that other keys decide where the user gave none, each with a note."""

from __future__ import annotations

import logging

import pytest

from agentrl.config import RunConfig, check_run_config, dump_config, load_config
from agentrl.config.chosen import GROUP_ESTIMATORS

LEAST = ["actor_rollout_ref.model.path=/models/tiny", "data.train_files=/data/train.parquet"]
N = "actor_rollout_ref.rollout.n"
MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"


def test_a_run_without_an_estimator_is_ppo_with_its_critic(caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(None, [*LEAST, "critic.optim.lr=1e-5", "critic.model.path=/models/tiny"])
    assert (config.algorithm.adv_estimator, config.needs_critic, config.actor_rollout_ref.rollout.n) == ("gae", True, 1)
    assert caplog.messages == []


@pytest.mark.parametrize("estimator", sorted(GROUP_ESTIMATORS))
def test_rollouts_of_a_group_where_none_are_written(estimator: str, caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(None, [*LEAST, f"algorithm.adv_estimator={estimator}"])
    assert config.actor_rollout_ref.rollout.n == 8
    assert caplog.messages == [
        f"{N} is 8: it is not given, and algorithm.adv_estimator {estimator} compares the rollouts of a prompt"
    ]


@pytest.mark.parametrize(("given", "n"), [(f"{N}=4", 4), ("algorithm.adv_estimator=reinforce_plus_plus", 1)])
def test_rollouts_that_nobody_needs_to_choose(given: str, n: int, caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(None, [*LEAST, "algorithm.adv_estimator=grpo", given])
    assert config.actor_rollout_ref.rollout.n == n
    assert caplog.messages == []


def test_a_mini_batch_is_no_larger_than_the_batch(caplog: pytest.LogCaptureFixture) -> None:
    assert load_config(None, [*LEAST, "data.train_batch_size=512"]).actor_rollout_ref.actor.ppo_mini_batch_size == 256
    assert caplog.messages == []
    assert load_config(None, [*LEAST, "data.train_batch_size=16"]).actor_rollout_ref.actor.ppo_mini_batch_size == 16
    assert caplog.messages == [
        f"{MINI} is 16, as data.train_batch_size: it is not given, and its default is 256",
    ]


def test_what_is_chosen_can_be_named_by_other_keys() -> None:
    rows = "ppo_micro_batch_size_per_gpu=4"
    config = load_config(
        None,
        [
            *(*LEAST, "algorithm.adv_estimator=grpo", f"actor_rollout_ref.actor.{rows}", f"critic.{rows}"),
            "critic.use_dynamic_bsz=${actor_rollout_ref.actor.use_dynamic_bsz}",
            f"actor_rollout_ref.rollout.val_kwargs.n=${{{N}}}",
            "actor_rollout_ref.rollout.val_kwargs.do_sample=true",
            "actor_rollout_ref.rollout.val_kwargs.temperature=1",
        ],
    )
    assert not config.critic.use_dynamic_bsz
    assert config.actor_rollout_ref.rollout.val_kwargs.n == 8


def test_a_configuration_of_python_and_its_dump(caplog: pytest.LogCaptureFixture) -> None:
    config = RunConfig.model_validate(
        {
            "algorithm": {"adv_estimator": "rloo"},
            "actor_rollout_ref": {"model": {"path": "/m"}},
            "data": {"train_files": "/data/x.parquet"},
        }
    )
    with caplog.at_level(logging.WARNING):
        check_run_config(config)
        check_run_config(config)
    assert (config.actor_rollout_ref.rollout.n, len(caplog.messages)) == (8, 1)
    assert "n: 8" in dump_config(config)
    config.algorithm.adv_estimator = "gae"
    check_run_config(config)
    assert config.actor_rollout_ref.rollout.n == 1


def test_a_validation_compares_nothing(caplog: pytest.LogCaptureFixture) -> None:
    val = ["trainer.val_only=true", "data.val_files=/data/val.parquet", "actor_rollout_ref.model.path=/m"]
    load_config(None, [*val, "algorithm.adv_estimator=grpo"])
    assert caplog.messages == []
