"""Values of keys that are walked, where any value of the key's kind would not do."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from watched_run import TEMPLATE

from agentrl.testing.models import build_tiny_classifier, build_tiny_model

AR = "actor_rollout_ref."
ACTOR, ROLLOUT = f"{AR}actor.", f"{AR}rollout."
Values = dict[str, list[Any]]
DUMPS = ("rollout_data_dir", "validation_data_dir", "default_local_dir")


def special_values(folder: Path, keys: Iterable[str]) -> Values:
    """Values that must name something, or that make a difference only in a certain place: the first that is new."""
    return _by_ending(tuple(keys)) | _of_models(folder) | _of_rows(folder) | _of_rollouts(folder) | _of_the_run(folder)


@cache
def _by_ending(keys: tuple[str, ...]) -> Values:
    """Keys that stand in several sections."""
    few = tuple(f"{name}_max_token_len_per_gpu" for name in ("ppo", "log_prob", "forward"))
    once = ("max_assistant_turns", "max_parallel_calls", "max_tool_calls", "max_tool_response_length")
    sections = (f"{AR}actor", "critic")
    return {
        **{f"{section}.optim.betas": [[0.5, 0.6]] for section in sections},
        **{f"{section}.optim.lr_warmup_steps": [4] for section in sections},
        **{f"{section}.fsdp_config.compute_dtype": ["bfloat16"] for section in (*sections, f"{AR}ref", "reward_model")},
        **{key: [1, 2] for key in keys if key.endswith("micro_batch_size_per_gpu")},
        **{key: [40] for key in keys if key.endswith(few)},
        **{key: [2] for key in keys if key.endswith(("ulysses_sequence_parallel_size", "fsdp_config.fsdp_size"))},
        **{key: [2] for key in keys if key.endswith("fsdp_config.tensor_parallel_size")},
        **{f"{ROLLOUT}multi_turn.{key}": [1] for key in once},
    }


@cache
def _of_models(folder: Path) -> Values:
    """Models, losses and estimators."""
    other_model = str(build_tiny_model(folder / "other_model", seed=5, num_hidden_layers=1))
    return {
        "critic.enable": [True],
        "algorithm.state_masking.start_state_marker": ['"name"'],
        "algorithm.state_masking.end_state_marker": ["}"],
        f"{AR}model.path": [other_model],
        f"{AR}model.tokenizer_path": [other_model],
        f"{AR}model.chat_template": [TEMPLATE.replace("user", "person").replace(":", "=")],
        "critic.model.path": [other_model],
        "reward_model.enable": [True, False],
        "reward_model.model.path": [str(build_tiny_classifier(folder / "other_classifier", seed=5))],
        "reward_model.model.input_tokenizer": [None],
        "reward_model.model.chat_template": [TEMPLATE.replace("user", "person")],
        "reward_model.max_length": [20],
        **{
            f"{section}.{key}_modules": [["q_proj"]]
            for section in (f"{AR}model", "critic.model")
            for key in ("target", "exclude")
        },
        f"{AR}nccl_timeout": [7],
        f"{ACTOR}policy_loss": ["gspo", "vanilla"],
        f"{ACTOR}ppo_mini_batch_size": [2],
        f"{ACTOR}clip_ratio_c": [3.0],
        "algorithm.rollout_correction.is_threshold": [1e-3],
        "critic.cliprange_value": [1e-4],
        "algorithm.kl_penalty": ["k2"],
        "algorithm.kl_ctrl.target_kl": [9.0],
        f"{ACTOR}policy_loss_options.clip_cov_ratio": [0.1],
        f"{ACTOR}policy_loss_options.clip_cov_lb": [0.0],
        f"{ACTOR}policy_loss_options.clip_cov_ub": [0.0],
        "algorithm.adv_estimator": ["rloo", "grpo"],
        "algorithm.filter_metric": ["flat"],
        "data.gen_batch_size": [3],
        "algorithm.adv_estimator_kwargs": [{"scale": 2.0}],
        f"{ACTOR}policy_loss_kwargs": [{"power": 0.5}],
        "algorithm.rollout_correction.rs": [[0.5, 0.9]],
        "algorithm.rollout_correction.rollout_rs": ["token_k2", "seq_mean_k2"],
        "algorithm.rollout_correction.rollout_rs_threshold": ["0.5_2"],
    }


def _of_rows(folder: Path) -> Values:
    """Rows and their scores."""
    return {
        "data.val_files": [str(folder / "val.parquet")],
        "data.train_files": [str(folder / "val.parquet")],
        "data.dataset_weights": [[1.0, 9.0]],
        "data.val_batch_size": [1],
        "data.val_max_samples": [1],
        "data.train_max_samples": [6],
        "data.apply_chat_template_kwargs": [{"hint": "So"}],
        "reward_model.timeout_s": [77.0],
        "reward_model.overlong_buffer.len": [210],
        "reward_model.num_processes": [7],
        "reward_model.judge.base_url": ["http://127.0.0.1:9/v1"],
        "reward_model.judge.api_key_env": ["WALK_KEY"],
        "reward_model.judge.rubric_path": [str(folder / "rubric2.txt")],
        "reward_model.judge.template": ["{answer} {rubric}"],
        "reward_model.judge.score_range": [[0.0, 2.0]],
        "reward_model.judge.pattern": [r"0\.\d"],
        "reward_model.judge.max_concurrent": [7],
        "reward_model.judge.cache_dir": [str(folder / "replies")],
        "reward_model.sandbox_fusion.url": ["http://127.0.0.1:9", "http://127.0.0.1:8"],
        "reward_model.sandbox_fusion.headers": [{"X": "y"}],
        "reward_model.reward_manager": ["batch"],
        "reward_manager.name": ["batch"],
        "reward_manager.module.path": [str(folder / "plug2.py")],
        "reward_manager.module.name": ["Manager"],
        "custom_reward_function.path": [str(folder / "plug.py"), None],
        "custom_reward_function.name": ["other"],
    }


def _of_rollouts(folder: Path) -> Values:
    """Engines and conversations."""
    return {
        f"{ROLLOUT}multi_turn.tool_timeout_s": [33.0],
        f"{ROLLOUT}stop_token_ids": [[65]],
        f"{ROLLOUT}max_failure_rate": [0.0],
        f"{ROLLOUT}weight_sync": ["tensor", "ipc"],
        f"{ROLLOUT}weight_sync_dir": [str(folder / "sync")],
        f"{ROLLOUT}max_model_len": [5000],
        f"{ROLLOUT}dtype": ["bfloat16"],
        f"{ROLLOUT}embedded.max_context_length": [5000],
        f"{ROLLOUT}server.addresses": [["http://127.0.0.1:9"]],
        f"{ROLLOUT}server.args": [["--x"]],
        f"{ROLLOUT}server.host": ["127.0.0.2"],
        f"{ROLLOUT}server.port": [23456],
        f"{ROLLOUT}multi_turn.tool_config_path": [None],
        f"{ROLLOUT}multi_turn.tool_envs": [{"own": str(folder / "tools.yaml")}],
        f"{ROLLOUT}multi_turn.stop_tools": [["times"]],
        f"{ROLLOUT}multi_turn.interaction_config_path": [str(folder / "two.yaml")],
        f"{ROLLOUT}multi_turn.tool_cache.path": [str(folder / "cache2")],
        f"{ROLLOUT}multi_turn.format": ["kimi_k2"],
        f"{ROLLOUT}multi_turn.max_user_turns": [0],
        f"{ROLLOUT}agent.default_agent_loop": ["single_turn_agent"],
        f"{ROLLOUT}agent.agent_loop_config_path": [str(folder / "loop_two.yaml")],
        "max_turns": [0],
        "retriever.url": ["http://127.0.0.1:10"],
    }


def _of_the_run(folder: Path) -> Values:
    """The run: its length, logs and folders."""
    return {
        "trainer.resource_pools": [{"small": [5], "large": [4]}],
        **{f"trainer.role_pools.{role}": ["small", "large"] for role in ("actor", "ref", "critic", "reward_model")},
        "trainer.profile_steps": [[1]],
        "trainer.profile_tool": ["spans"],
        "trainer.otlp_endpoint": ["http://127.0.0.1:9"],
        "trainer.prometheus_address": ["192.0.2.1:9400"],  # of no machine: the run cannot listen there
        "trainer.profile_dir": [str(folder / "profiles")],
        "ray_init.address": ["127.0.0.1:6379"],
        "ray_init.timeline_json_file": [str(folder / "timeline.json")],
        "trainer.device": ["cuda", "cpu"],
        "trainer.logger": [["console"]],
        "trainer.max_skipped_steps": [1],
        "trainer.test_freq": [1, -1],
        "trainer.save_freq": [1, -1],
        "trainer.max_ckpt_to_keep": [1],
        "trainer.threads_per_rank": [7],
        "trainer.resume_from_path": [str(folder / "elsewhere")],
        "plugins": [[str(folder / "plugin.py")]],
        **{f"trainer.{key}": [str(folder / key)] for key in DUMPS},
    }
