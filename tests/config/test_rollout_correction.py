"""`algorithm.rollout_correction` as verl's users write it: read, bounded, or refused with the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipes import overrides, write

from agentrl.config import load_config
from agentrl.config.rollout_correction import RolloutCorrectionConfig
from agentrl.config.root import CHOOSES_TOKENS, RunConfig
from agentrl.errors import ConfigError

SECTION = "algorithm.rollout_correction"


def load(*given: str) -> RolloutCorrectionConfig:
    texts = [each if "." in each.partition("=")[0] else f"{SECTION}.{each}" for each in given]
    return load_config(None, overrides(*texts)).algorithm.rollout_correction


@pytest.mark.parametrize(
    ("kinds", "thresholds", "rules"),
    [
        ("token_k1", "0.6_1.4", [("token_k1", 0.6, 1.4)]),
        ("token_k1", "0.5_2", [("token_k1", 0.5, 2.0)]),  # YAML reads 0.5_2 as the number 0.52
        ("seq_mean_k1", "2.0", [("seq_mean_k1", 0.5, 2.0)]),
        ("seq_mean_k3", "0.005", [("seq_mean_k3", 0.0, 0.005)]),
        ("token_k1,seq_max_k2", "0.6_1.6,2.5", [("token_k1", 0.6, 1.6), ("seq_max_k2", 0.0, 2.5)]),
        ("token_k2,seq_sum_k3,token_k2", "3", [("token_k2", 0.0, 3.0), ("seq_sum_k3", 0.0, 3.0)]),
        ("[token_k1,seq_max_k3]", "['0.5_2',1]", [("token_k1", 0.5, 2.0), ("seq_max_k3", 0.0, 1.0)]),
        ("geometric", "1.01", [("geometric", 1 / 1.01, 1.01)]),
    ],
)
def test_kinds_and_thresholds_of_verl(kinds: str, thresholds: str, rules: list[tuple[str, float, float]]) -> None:
    correction = load(f"rollout_rs={kinds}", f"rollout_rs_threshold={thresholds}")
    assert correction.rules() == rules
    assert correction.corrects


def test_the_older_keys_of_verl() -> None:
    correction = load(
        *("rollout_is=sequence", "rollout_is_threshold=3", "rollout_is_batch_normalize=true", "rollout_rs=geometric"),
        *("rollout_rs_threshold=1.01", "rollout_rs_threshold_lower=0.98", "rollout_token_veto_threshold=1e-4"),
    )
    assert correction.rules() == [("geometric", 0.98, 1.01)]
    assert correction.options() == {
        "is_level": "sequence",
        "is_threshold": 3.0,
        "is_batch_normalize": True,
        "rs": None,
        "veto_threshold": 1e-4,
    }
    nothing = load(
        *(f"{key}=null" for key in ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold")),
        *("rollout_rs_threshold_lower=null", "rollout_token_veto_threshold=null", "loss_type=null"),
    )
    assert not nothing.corrects


def test_weights_may_have_two_bounds(tmp_path: Path) -> None:
    assert load("is_level=token", "rollout_is_threshold=0.5_5").weight_bounds() == (0.5, 5.0)
    recipe = write(tmp_path, "run.yaml", f"{SECTION}: {{is_level: token, rollout_is_threshold: '0.5_5.0'}}\n")
    assert load_config(recipe, overrides()).algorithm.rollout_correction.weight_bounds() == (0.5, 5.0)


def test_bounds_need_no_quotes_in_a_file(tmp_path: Path) -> None:
    keys = "{is_level: token, is_threshold: 2_5, rollout_rs: 'token_k1,geometric', rollout_rs_threshold: [0.5_2, 2_5]}"
    correction = load_config(
        write(tmp_path, "run.yaml", f"{SECTION}: {keys}\n"), overrides()
    ).algorithm.rollout_correction
    assert correction.weight_bounds() == (2.0, 5.0)
    assert correction.rules() == [("token_k1", 0.5, 2.0), ("geometric", 2.0, 5.0)]


def test_bypass_mode_with_both_losses(caplog: pytest.LogCaptureFixture) -> None:
    clip = load("bypass_mode=true", "loss_type=ppo_clip", "rollout_rs=seq_mean_k3", "rollout_rs_threshold=0.005")
    assert clip.corrects
    own = load("bypass_mode=true", "loss_type=reinforce", "rollout_is=token", "rollout_is_batch_normalize=true")
    assert own.options()["is_level"] == "token"
    assert "no effect" not in caplog.text
    load("bypass_mode=true", "loss_type=reinforce", "actor_rollout_ref.actor.policy_loss=gspo")
    assert "actor_rollout_ref.actor.policy_loss has no effect here" in caplog.text
    caplog.clear()
    load("bypass_mode=true", "actor_rollout_ref.actor.policy_loss.loss_mode=bypass_mode")
    assert "bypass_mode is read as vanilla" in caplog.text
    caplog.clear()
    load("loss_type=reinforce")
    assert "loss_type has no effect here: algorithm.rollout_correction.bypass_old_log_prob is false" in caplog.text


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["rollout_rs=seq_mean_k4", "rollout_rs_threshold=1"], ".rollout_rs: got 'seq_mean_k4'. Did you mean"),
        (["rollout_rs=seq_max_k1", "rollout_rs_threshold=1"], ".rollout_rs: got 'seq_max_k1'. Did you mean"),
        (["rollout_rs=token_k1"], ".rollout_rs_threshold: not given, wanted a threshold for rollout_rs (token_k1)"),
        (["rollout_rs=token_k1,token_k2", "rollout_rs_threshold=1,2,3"], "got 3 thresholds for 2 kinds"),
        (["rollout_rs=token_k2", "rollout_rs_threshold=0.5_2"], "'0.5_2' for token_k2, wanted one number above 0"),
        (["rollout_rs=token_k1", "rollout_rs_threshold=2_0.5"], "which is 2 to 0.5, wanted 0 < lower <= upper"),
        (["rollout_rs=token_k1", "rollout_rs_threshold=low_2"], "got 'low_2', wanted a number, or LOW_HIGH"),
        (["rs=[0.5,2]", "rollout_rs=token_k2", "rollout_rs_threshold=1"], ".rs: got [0.5, 2.0], but rollout_rs is"),
        (["is_level=token", "is_threshold=0"], ".is_threshold: got 0"),
        (["is_level=token", "is_threshold=5_0.5"], ".is_threshold: got 5_0.5, wanted a number above 0, or LOW_HIGH"),
        (["is_level=token", "is_threshold=nan"], ".is_threshold: got 'nan', wanted a number, or LOW_HIGH"),
        (["is_level=token", "is_threshold=0.5_nan"], ".is_threshold: got '0.5_nan', wanted a number, or LOW_HIGH"),
        (["rollout_rs=token_k2", "rollout_rs_threshold=nan"], "got 'nan', wanted a number, or LOW_HIGH"),
        (["is_level=tokn"], ".is_level: got 'tokn'"),
        (["rollout_token_veto_threshold=0"], ".rollout_token_veto_threshold: got 0, wanted a number above 0"),
        (["bypass_mode=true", "rollout_is=token"], "or set loss_type=reinforce"),
        (["loss_type=ppo"], ".loss_type: got 'ppo', wanted one of 'ppo_clip', 'reinforce'"),
    ],
)
def test_what_means_nothing_is_refused(given: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(*given)
    assert len(caught.value.problems) == 1
    assert problem in caught.value.problems[0]


def test_where_old_log_probs_are_computed() -> None:
    from agentrl.algorithms import SCORES_OF_LOSS

    assert set(CHOOSES_TOKENS) == set(SCORES_OF_LOSS)

    def needs(*given: str) -> bool:
        one = ["data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4"]
        config: RunConfig = load_config(None, overrides(*one, *given))
        return config.needs_old_log_probs

    assert not needs()
    assert not needs("actor_rollout_ref.actor.use_kl_loss=true")
    assert not needs(f"{SECTION}.bypass_mode=true", f"{SECTION}.rs=[0.5,2]")
    for given in (
        "actor_rollout_ref.actor.ppo_epochs=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=3",
        "actor_rollout_ref.actor.policy_loss=kl_cov",
        "algorithm.use_kl_in_reward=true",
        f"{SECTION}.is_level=token",
        f"{SECTION}.rs=[0.5,2]",
    ):
        assert needs(given), given
    assert needs("algorithm.adv_estimator=gae", "trainer.critic_warmup=1")


def test_the_pass_that_is_saved_has_no_micro_batches(caplog: pytest.LogCaptureFixture) -> None:
    one = ["data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4"]
    key = "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu"
    load_config(None, overrides(*one, f"{key}=9999"))
    assert f"{key} has no effect here: actor.ppo_mini_batch_size is data.train_batch_size" in caplog.text
