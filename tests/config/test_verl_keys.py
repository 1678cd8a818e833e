"""Commands and YAML of verl's users work, and what has no meaning here is answered, never ignored in silence."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from recipes import overrides, write

from agentrl.config import RunConfig, load_config
from agentrl.config.schema import find_field
from agentrl.config.translate import translate
from agentrl.config.value_tree import get_value
from agentrl.config.verl_keys import VERL_KEYS, Renamed
from agentrl.errors import ConfigError

VERL_COMMAND = """
algorithm.adv_estimator=grpo
data.train_files=/data/gsm8k/train.parquet
data.val_files=/data/gsm8k/test.parquet
data.train_batch_size=256
data.max_prompt_length=1024
data.max_response_length=1024
data.filter_overlong_prompts=True
data.truncation=error
data.return_raw_chat=True
actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct
actor_rollout_ref.actor.optim.lr=1e-6
actor_rollout_ref.model.use_remove_padding=True
+actor_rollout_ref.model.enable_activation_offload=False
actor_rollout_ref.actor.ppo_mini_batch_size=256
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32
actor_rollout_ref.actor.use_kl_loss=True
actor_rollout_ref.actor.kl_loss_coef=0.001
actor_rollout_ref.actor.kl_loss_type=low_var_kl
actor_rollout_ref.actor.entropy_coeff=0
actor_rollout_ref.actor.use_torch_compile=False
actor_rollout_ref.actor.policy_loss.loss_mode=vanilla
actor_rollout_ref.model.enable_gradient_checkpointing=True
actor_rollout_ref.actor.fsdp_config.param_offload=False
actor_rollout_ref.actor.fsdp_config.optimizer_offload=False
actor_rollout_ref.actor.ulysses_sequence_parallel_size=1
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32
actor_rollout_ref.rollout.tensor_model_parallel_size=2
actor_rollout_ref.rollout.name=sglang
actor_rollout_ref.rollout.mode=async
actor_rollout_ref.rollout.gpu_memory_utilization=0.5
actor_rollout_ref.rollout.enforce_eager=False
actor_rollout_ref.rollout.free_cache_engine=True
actor_rollout_ref.rollout.n=16
actor_rollout_ref.rollout.multi_turn.enable=True
actor_rollout_ref.rollout.multi_turn.max_assistant_turns=5
actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32
actor_rollout_ref.ref.fsdp_config.param_offload=True
algorithm.use_kl_in_reward=False
trainer.critic_warmup=0
trainer.logger=['console','tensorboard']
trainer.project_name=gsm8k_async_rl
trainer.experiment_name=qwen2.5-3b_function_rm-gsm8k-sgl-multi-w-tool-verify-n16
trainer.n_gpus_per_node=8
trainer.nnodes=1
trainer.save_freq=-1
trainer.test_freq=20
trainer.total_epochs=15
"""


def test_a_command_of_verl_runs_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(None, VERL_COMMAND.split())
    assert config.actor_rollout_ref.actor.policy_loss == "vanilla"
    assert config.actor_rollout_ref.rollout.n == 16
    assert config.trainer.test_freq == 20
    assert "actor_rollout_ref.rollout.enforce_eager" not in caplog.text  # false asks for nothing
    assert "actor_rollout_ref.actor.use_torch_compile has no effect here" in caplog.text
    assert "actor_rollout_ref.rollout.mode" not in caplog.text  # asks for just what agentrl does


PPO_COMMAND = """
algorithm.adv_estimator=gae
data.train_files=/data/gsm8k/train.parquet
data.val_files=/data/gsm8k/test.parquet
data.train_batch_size=1024
data.filter_overlong_prompts=True
data.truncation=error
actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct
actor_rollout_ref.model.use_remove_padding=True
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16
actor_rollout_ref.actor.fsdp_config.grad_offload=False
actor_rollout_ref.rollout.name=sglang
actor_rollout_ref.rollout.tensor_model_parallel_size=2
critic.optim.lr=1e-5
critic.model.use_remove_padding=True
critic.model.path=Qwen/Qwen2-7B-Instruct
critic.model.enable_gradient_checkpointing=True
critic.model.external_lib=null
critic.model.use_shm=False
critic.model.fsdp_config.param_offload=False
critic.model.fsdp_config.optimizer_offload=False
critic.model.fsdp_config.wrap_policy.min_num_params=0
critic.ppo_micro_batch_size_per_gpu=32
critic.ulysses_sequence_parallel_size=1
reward_model.micro_batch_size_per_gpu=32
algorithm.use_kl_in_reward=False
trainer.critic_warmup=0
trainer.logger=console
trainer.n_gpus_per_node=8
trainer.test_freq=1
"""


def test_a_ppo_command_of_verl_runs_unchanged() -> None:
    config = load_config(None, PPO_COMMAND.split())
    assert config.critic.model.enable_gradient_checkpointing
    assert config.trainer.logger == ["console"]


def test_a_section_copied_from_verl_s_yaml_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With its `_target_`s, empty sections and references to keys that have no meaning here."""
    recipe = write(tmp_path, "run.yaml", VERL_YAML)
    config = load_config(recipe, overrides())
    assert config.actor_rollout_ref.actor.policy_loss == "gspo"
    assert config.critic.ppo_epochs == 2
    assert "actor_rollout_ref.ref.strategy has no effect here" in caplog.text


VERL_YAML = """
actor_rollout_ref:
  actor:
    _target_: verl.workers.config.FSDPActorConfig
    strategy: fsdp
    ppo_epochs: 2
    policy_loss: {_target_: verl.workers.config.PolicyLossConfig, loss_mode: gspo, clip_cov_lb: 1, kl_cov_ratio: 0.0002}
    optim: {_target_: verl.workers.config.FSDPOptimizerConfig, lr: 1.0e-06, num_cycles: 0.5}
  ref:
    strategy: ${actor_rollout_ref.actor.strategy}
    model: null
    ulysses_sequence_parallel_size: ${actor_rollout_ref.actor.ulysses_sequence_parallel_size}
  rollout:
    engine_kwargs: {vllm: {}, sglang: {}}
    trace: {backend: null, token2text: false}
    skip_rollout: false
    agent:
      custom_async_server: {_target_: verl.workers.config.CustomAsyncServerConfig, path: null, name: null}
  model: {lora_rank: 0, lora_alpha: 16, target_modules: all-linear}
critic:
  ppo_epochs: ${actor_rollout_ref.actor.ppo_epochs}
  shuffle: ${actor_rollout_ref.actor.shuffle}
  model: {override_config: {}, lora_rank: 0, lora_alpha: 16}
algorithm:
  filter_groups: {_target_: verl.trainer.config.FilterGroupsConfig, enable: false, metric: null, max_num_gen_batches: 0}
"""


@pytest.mark.parametrize(
    ("override", "key", "expected"),
    [
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "actor_rollout_ref.actor.policy_loss", "gspo"),
        ("critic.optim.lr_scheduler_type=cosine", "critic.optim.warmup_style", "cosine"),
        ("ray_kwargs.ray_init.num_cpus=2", "ray_init.num_cpus", 2),
        ("algorithm.rollout_correction.rollout_is=token", "algorithm.rollout_correction.is_level", "token"),
        ("reward_model.model.fsdp_config.dtype=bfloat16", "reward_model.fsdp_config.compute_dtype", "bfloat16"),
        ("reward.reward_model.model_path=/rm", "reward_model.model.path", "/rm"),
        ("critic.model.fsdp_config.param_offload=True", "critic.fsdp_config.param_offload", True),
        ("critic.model.fsdp_config.dtype=bfloat16", "critic.fsdp_config.compute_dtype", "bfloat16"),
        ("algorithm.filter_groups.max_num_gen_batches=10", "algorithm.max_gen_batches", 10),
        ("algorithm.filter_groups.metric=acc", "algorithm.filter_metric", "acc"),
        ("algorithm.filter_groups.metric=seq_reward", "algorithm.filter_metric", None),
        ("trainer.logger=console", "trainer.logger", ["console"]),
        ("actor_rollout_ref.rollout.stop=</search>", "actor_rollout_ref.rollout.stop", ["</search>"]),
    ],
)  # fmt: skip
def test_renamed_keys(override: str, key: str, expected: object) -> None:
    config = load_config(None, overrides(override))
    assert get_value(config.model_dump(), key) == expected


@pytest.mark.parametrize(
    "override",
    [
        "actor_rollout_ref.hybrid_engine=False",
        "data.return_raw_chat=False",
        "data.truncation=left",
        "actor_rollout_ref.actor.strategy=megatron",
        "actor_rollout_ref.model.lora.use_dora=true",
        "actor_rollout_ref.actor.ppo_micro_batch_size=8",
        "trainer.default_hdfs_dir=hdfs://x",
        "data.custom_cls.path=x.py",
        "actor_rollout_ref.rollout.multi_turn.enable=False",
        "critic.model.lora.type=canonical_lora",
        "actor_rollout_ref.model.enable_activation_offloading=True",
        "actor_rollout_ref.rollout.trace.backend=mlflow",
        "actor_rollout_ref.ref.model.path=other",
    ],
)
def test_values_that_ask_for_what_is_not_there_are_errors(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides(override))
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(override.split("=")[0])
    assert ", but " in caught.value.problems[0]


def answer_for(key: str) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in VERL_KEYS)


def test_every_known_key_is_no_key_of_agentrl_and_renames_lead_to_one() -> None:
    for key, answer in VERL_KEYS.items():
        assert find_field(RunConfig, key) is None, f"{key} is agentrl's own: the entry is never used"
        if isinstance(answer, Renamed) and "*" not in answer.to:
            assert find_field(RunConfig, answer.to) is not None or answer_for(answer.to), answer.to


def test_a_renamed_key_of_a_wildcard() -> None:
    tree = {"critic": {"fsdp_config": {"dtype": "bfloat16"}}}
    assert translate(tree, RunConfig)[0] == {"critic": {"fsdp_config": {"compute_dtype": "bfloat16"}}}


LOSS = "actor_rollout_ref.actor.policy_loss"


@pytest.mark.parametrize(
    "section",
    [
        "policy_loss: {loss_mode: clip_cov, clip_cov_ratio: 0.1, kl_cov_ratio: 0.0002}",
        "policy_loss: clip_cov\n    policy_loss_options: {clip_cov_ratio: 0.1}",
    ],
)
def test_a_loss_is_a_name_or_verl_s_mapping_with_its_options(tmp_path: Path, section: str) -> None:
    recipe = write(tmp_path, "run.yaml", f"actor_rollout_ref:\n  actor:\n    {section}\n")
    actor = load_config(recipe, overrides(f"{LOSS}.clip_cov_lb=0.5")).actor_rollout_ref.actor
    assert actor.policy_loss == "clip_cov"
    assert {"clip_cov_ratio": 0.1, "clip_cov_lb": 0.5}.items() <= actor.policy_loss_options.given().items()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            [f"{LOSS}.clip_cov_ratio=0.1"],
            f"{LOSS}_options.clip_cov_ratio: got 0.1, but policy_loss is 'vanilla', which takes no options; "
            "clip_cov_ratio is an option of clip_cov",
        ),
        (
            [f"{LOSS}=sapo", f"{LOSS}_options.ppo_kl_coef=0.5"],
            f"{LOSS}_options.ppo_kl_coef: got 0.5, but policy_loss is 'sapo', which takes only tau_pos, tau_neg; "
            "ppo_kl_coef is an option of kl_cov",
        ),
        ([f"{LOSS}=sapo", f"{LOSS}.tau_poss=2"], f"Did you mean '{LOSS}_options.tau_pos'?"),
    ],
)
def test_an_option_that_the_loss_does_not_take(given: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides(*given))
    assert len(caught.value.problems) == 1
    assert problem in caught.value.problems[0]


DAPO = """
data.max_prompt_length=2048 data.max_response_length=20480 data.gen_batch_size=1536
algorithm.use_kl_in_reward=False actor_rollout_ref.actor.use_kl_loss=False
actor_rollout_ref.actor.kl_loss_coef=0.0 actor_rollout_ref.actor.clip_ratio_low=0.2
actor_rollout_ref.actor.clip_ratio_high=0.28 actor_rollout_ref.actor.clip_ratio_c=10.0
algorithm.filter_groups.enable=True algorithm.filter_groups.max_num_gen_batches=10
algorithm.filter_groups.metric=acc actor_rollout_ref.model.use_remove_padding=True
actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True
actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=22528
+actor_rollout_ref.model.override_config.attention_dropout=0.
+actor_rollout_ref.model.override_config.embd_pdrop=0. actor_rollout_ref.model.enable_gradient_checkpointing=True
actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.optim.lr_warmup_steps=10
actor_rollout_ref.actor.optim.weight_decay=0.1 actor_rollout_ref.actor.entropy_coeff=0
actor_rollout_ref.actor.grad_clip=1.0 actor_rollout_ref.actor.loss_agg_mode=token-mean
actor_rollout_ref.actor.ulysses_sequence_parallel_size=1 actor_rollout_ref.rollout.tensor_model_parallel_size=1
actor_rollout_ref.rollout.enable_chunked_prefill=True actor_rollout_ref.rollout.temperature=1.0
actor_rollout_ref.rollout.top_p=1.0 actor_rollout_ref.rollout.top_k=-1
actor_rollout_ref.rollout.val_kwargs.temperature=1.0 actor_rollout_ref.rollout.val_kwargs.top_p=0.7
actor_rollout_ref.rollout.val_kwargs.do_sample=True actor_rollout_ref.rollout.val_kwargs.n=1
reward_model.reward_manager=dapo reward_model.overlong_buffer.enable=True reward_model.overlong_buffer.len=4096
reward_model.overlong_buffer.penalty_factor=1.0 trainer.nnodes=1 trainer.val_before_train=True trainer.test_freq=5
trainer.save_freq=5 trainer.total_epochs=1 algorithm.rollout_correction.rollout_is=token
algorithm.rollout_correction.rollout_is_threshold=2.0 algorithm.rollout_correction.rollout_rs=null
"""


def test_a_recipe_of_dapo_acts(caplog: pytest.LogCaptureFixture) -> None:
    given = ["data.train_batch_size=512", "actor_rollout_ref.actor.ppo_mini_batch_size=32", "data.val_files=/v.parquet"]
    config = load_config(None, overrides(*given, *DAPO.split()))
    assert (config.data.gen_batch_size, config.algorithm.max_gen_batches) == (1536, 10)
    assert config.algorithm.filter_metric == "acc"
    assert config.reward_model.overlong_buffer.len == 4096
    assert config.algorithm.rollout_correction.corrects
    starts = ("algorithm.", "reward_model.", "data.")
    assert not [line for line in caplog.messages if "no effect" in line and line.startswith(starts)]
