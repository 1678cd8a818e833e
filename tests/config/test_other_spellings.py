"""Keys and values as users of other versions write them: used, told in one note, or refused with the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipes import overrides, write

from agentrl.config import load_config
from agentrl.errors import ConfigError

ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"


def problems(*given: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides(*given))
    return "\n".join(caught.value.problems)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("ppo", "PPO's estimator is 'gae'."),
        ("DAPO", "It is grpo with actor_rollout_ref.actor.clip_ratio_high="),
        ("dr_grpo", "It is grpo with algorithm.norm_adv_by_std_in_grpo=false"),
        ("gspo", "It is a loss: set algorithm.adv_estimator=grpo and actor_rollout_ref.actor.policy_loss=gspo."),
        ("reinforce++", "Its name here is 'reinforce_plus_plus'."),
        ("grpo_vectorized", "Its name here is 'grpo'."),
        ("GRPO", "Did you mean 'grpo'?"),
    ],
)
def test_names_of_algorithms_that_are_no_estimator(name: str, way: str) -> None:
    assert f"algorithm.adv_estimator: got '{name}'. {way}" in problems(f"algorithm.adv_estimator={name}")


@pytest.mark.parametrize(
    "given",
    [
        *("lora.enable=true", "lora.r=8", f"{ACTOR}.lora=true", f"{ACTOR}.lora.r=8"),
        *("actor_rollout_ref.model.lora.enable=true", "actor_rollout_ref.model.lora.r=8"),
    ],
)
def test_lora_acts_wherever_it_is_written(given: str) -> None:
    model = load_config(None, overrides(given)).actor_rollout_ref.model
    assert (model.adapts, model.lora_rank) == (True, 8 if given.endswith("r=8") else 16)


@pytest.mark.parametrize("section", ["lora", f"{ACTOR}.lora", "actor_rollout_ref.model.lora"])
def test_lora_that_is_off_asks_for_nothing(section: str, caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(None, overrides(f"{section}.enable=false", f"{section}.r=8"))
    assert not config.actor_rollout_ref.model.adapts
    key = "actor_rollout_ref.model.lora_"
    assert f"{key}rank has no effect here: {key}enable is false, so all weights are trained" in caplog.text


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        (f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bf16", f"{ACTOR}.fsdp_config.compute_dtype", "bfloat16"),
        (f"{ACTOR}.ppo_infer_max_token_len_per_gpu=999", f"{ROLLOUT}.log_prob_max_token_len_per_gpu", 999),
        (f"{ACTOR}.use_rollout_log_probs=true", "algorithm.rollout_correction.bypass_old_log_prob", True),
        ("generator.apply_overlong_filtering=true", "algorithm.mask_truncated_completions", True),
        ("mask_truncated_completions=true", "algorithm.mask_truncated_completions", True),
        (f"{ROLLOUT}.top_k=0", f"{ROLLOUT}.top_k", -1),
        (f"{ROLLOUT}.val_kwargs.top_k=0", f"{ROLLOUT}.val_kwargs.top_k", -1),
        (f"{ROLLOUT}.name=vllm_async", f"{ROLLOUT}.name", "auto"),
        (f"{ROLLOUT}.name=sglang_async", f"{ROLLOUT}.name", "sglang"),
    ],
)
def test_a_key_that_acts_under_another_name(given: str, key: str, value: object) -> None:
    found: object = load_config(None, overrides(given))
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


@pytest.mark.parametrize(
    ("given", "way"),
    [
        ("algorithm.rollout_is=true", "set algorithm.rollout_correction.is_level=token"),
        (f"{ACTOR}.tis_imp_ratio_cap=2", "set algorithm.rollout_correction.is_level=token"),
        ("algorithm.rollout_correction.rollout_rs=token_k1", "wanted a threshold for rollout_rs (token_k1)"),
        ("reward_model.overlong_buffer.enable=true", "set reward_model.reward_manager=dapo"),
        ("reward.reward_model.enable=true", "reward_model.model.path: not given"),
        (f"{ROLLOUT}.quantization=fp8", "give the engine's flags in `server.args`"),
        ("transfer_queue.enable=true", "rows travel through Ray itself"),
        ("model.path=x", "It is 'actor_rollout_ref.model.path' here"),
        ("learning_rate=1e-6", "It is 'actor_rollout_ref.actor.optim.lr' here"),
        ("trainer.logger=console,wandb", "A list is written [console,wandb]"),
        ("trainer.save_freq=None", "wanted a whole number; nothing is written null"),
    ],
)
def test_what_is_refused_names_the_way(given: str, way: str) -> None:
    assert way in problems(given)


OFF = f"""
transfer_queue.enable=False
reward.num_workers=8
{ACTOR}.use_prefix_grouper=False
{ACTOR}.router_replay.mode=disabled
{ACTOR}.tis_imp_ratio_cap=-1
{ACTOR}.freeze_vision_tower=False
{ACTOR}.fsdp_config.full_determinism=False
{ACTOR}.fsdp_config.mixed_precision.reduce_dtype=fp32
actor_rollout_ref.model.mtp.enable=False
{ROLLOUT}.prometheus.enable=False
{ROLLOUT}.checkpoint_engine.backend=naive
{ROLLOUT}.nnodes=0
{ROLLOUT}.quantization=null
{ROLLOUT}.skip.enable=False
{ROLLOUT}.agent.agent_loop_manager_class=null
algorithm.rollout_correction.rollout_rs=null
"""


def test_newer_keys_that_ask_for_nothing_are_accepted() -> None:
    load_config(None, overrides(*OFF.split()))


def test_one_key_under_two_names_in_a_command(caplog: pytest.LogCaptureFixture) -> None:
    given = [each for each in overrides() if "rollout.n=" not in each]
    config = load_config(None, [*given, "algorithm.group_size=4", f"{ROLLOUT}.n=6"])
    assert config.actor_rollout_ref.rollout.n == 6
    assert f"{ROLLOUT}.n=6 replaces algorithm.group_size=4: two names of one key" in caplog.text
    caplog.clear()
    load_config(None, [*given, "algorithm.group_size=4", f"{ROLLOUT}.n=4", f"{ROLLOUT}.n=6"])
    assert "replaces" not in caplog.text, "the last of two overrides counts, as everywhere"


def test_typos_in_known_sections_are_told_one_by_one(tmp_path: Path) -> None:
    """However many of them there are: it is no recipe of another trainer."""
    recipe = write(
        tmp_path,
        "typos.yaml",
        "actor_rollout_ref:\n"
        "  actor: {ppo_mini_batchsize: 4, clip_ratio_hi: 0.3, use_kl_los: true}\n"
        "  rollout: {tempereture: 1}\n"
        "trainer.total_epoch: 3\n",
    )
    with pytest.raises(ConfigError) as caught:
        load_config(recipe, overrides())
    assert len(caught.value.problems) == 5
    assert "Did you mean 'actor_rollout_ref.rollout.temperature'?" in "\n".join(caught.value.problems)
