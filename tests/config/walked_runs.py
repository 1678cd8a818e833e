"""The runs in which keys are walked: surroundings by name, by what they are about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from watched_run import write_rows

from agentrl.testing.models import build_tiny_classifier

AR = "actor_rollout_ref."
ACTOR, ROLLOUT = f"{AR}actor.", f"{AR}rollout."
Changes = dict[str, dict[str, Any]]
BASES = ("plain", "one turn", "only validates")
"""Scenarios in which every key acts or is told; in the others, those that are told in the first must act somewhere."""
PLUGINS = """
import itertools

from agentrl.agent_loops.single_turn_agent import SingleTurnAgent
from agentrl.interfaces import BaseInteraction, RewardResult
from agentrl.rewards.naive import NaiveRewardManager
from agentrl.types import InteractionResponse

calls = itertools.count()


def compute_score(data_source, solution_str, ground_truth, extra_info=None, flaky=False, own=0):
    assert not flaky or not extra_info["messages"][0]["content"].startswith("0 "), "as told"
    return len(solution_str) % 5 + own


def graded(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": len(solution_str) % 5, "flat": 1.0}


def other(data_source, solution_str, ground_truth, extra_info=None):
    return len(solution_str) % 3


def estimate(outcomes, scale=1.0):
    return scale * (outcomes - 0.25)


def loss(log_probs, old_log_probs, advantages, power=1.0):
    return -advantages * (power * (log_probs - old_log_probs)).exp()


class Manager(NaiveRewardManager):
    pass


class Other(NaiveRewardManager):
    async def score(self, item):
        return RewardResult(9.0)


class Again(BaseInteraction):
    async def generate_response(self, messages):
        return InteractionResponse(len(messages) > 4, "Again?", score=0.25)


class Loop(SingleTurnAgent):
    pass
"""


def scenarios(folder: Path, address: str, judge: str) -> Changes:
    """Surroundings by name. A key that is told in the plain run is tried in the others, in this order."""
    (folder / "plug.py").write_text(PLUGINS)
    (folder / "plug2.py").write_text(PLUGINS.replace("RewardResult(9.0)", "RewardResult(8.0)"))
    (folder / "plugin.py").write_text(f"import pathlib\npathlib.Path({str(folder / 'imported')!r}).touch()\n")
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(f"interaction: [{{name: {name}, class_name: 'plug.py:Again'}}]")
        (folder / f"loop_{name}.yaml").write_text(f"- {{name: {name}, _target_: '{folder / 'plug.py'}:Loop'}}")
    return {
        "plain": {},
        **_of_learning(folder),
        **_of_rows(folder),
        **_of_scores(folder),
        **_of_judges(folder, judge),
        **_of_machines(address),
        **_of_conversations(folder),
    }


_SCHEDULE = {"warmup_style": "cosine", "lr_warmup_steps_ratio": 0.5, "total_training_steps": 4}
_PPO = {
    "algorithm.adv_estimator": "gae",
    "algorithm.use_kl_in_reward": True,
    "algorithm.kl_ctrl.type": "adaptive",
    "algorithm.kl_penalty": "low_var_kl",
    f"{ACTOR}use_kl_loss": True,
    **{f"{section}.optim.{name}": value for section in ("critic", f"{AR}actor") for name, value in _SCHEDULE.items()},
}


_POOLS = {
    "trainer.backend": "ray",
    "trainer.resource_pools": {"small": {"n_gpus": 3}, "large": [4]},
    "trainer.role_pools": {"actor": "large", "ref": "large", "critic": "small", "reward_model": "small"},
}


def _of_learning(folder: Path) -> Changes:
    """Updates: estimators, losses, schedules, corrections."""
    by_rows = {
        f"{section}.{prefix}_micro_batch_size_per_gpu": 1
        for section, prefix in (
            *((f"{AR}actor", "ppo"), ("critic", "ppo")),
            *((f"{AR}rollout", "log_prob"), (f"{AR}ref", "log_prob")),
        )
    }
    return {
        "ppo": _PPO,
        "ppo by rows": {**_PPO, **by_rows},
        "two steps of ppo": {**_PPO, "trainer.total_training_steps": 2},
        "adapters": {**_PPO, f"{AR}model.lora_rank": 2, "critic.model.lora_rank": 2},
        "a falling rate": {
            "algorithm.adv_estimator": "gae",
            "trainer.total_training_steps": 2,
            **{f"{section}.optim.warmup_style": "cosine" for section in ("critic", f"{AR}actor")},
            **{f"{section}.optim.total_training_steps": 3 for section in ("critic", f"{AR}actor")},
        },
        "corrected": {
            "algorithm.rollout_correction.is_level": "token",
            "algorithm.filter_zero_variance_groups": True,
            "data.train_batch_size": 3,
        },
        "cut answers": {"data.max_response_length": 80},  # shorter than the calls, longer than the answer of others
        "rejected": {
            "algorithm.rollout_correction.rollout_rs": "token",
            "algorithm.rollout_correction.rollout_rs_threshold": "1e9",
        },
        "bypassed": {"algorithm.rollout_correction.bypass_old_log_prob": True},
        "own algorithms": {
            "algorithm.adv_estimator": f"{folder / 'plug.py'}:estimate",
            f"{ACTOR}policy_loss": f"{folder / 'plug.py'}:loss",
        },
        "sapo": {f"{ACTOR}policy_loss": "sapo"},
        "clip_cov": {
            f"{ACTOR}policy_loss": "clip_cov",
            f"{ACTOR}policy_loss_options": {"clip_cov_ratio": 0.5, "clip_cov_lb": -9.0, "clip_cov_ub": 9.0},
        },
        "kl_cov": {f"{ACTOR}policy_loss": "kl_cov", f"{ACTOR}policy_loss_options.kl_cov_ratio": 0.2},
        "nothing to learn": {
            "data.train_files": write_rows(folder / "flat.parquet", 0, 6, agent_name="single_turn_agent"),
            "algorithm.filter_zero_variance_groups": True,
            "trainer.total_training_steps": 2,
        },
        "shuffled": {"data.shuffle": True},
        "profiled": {"trainer.profile_steps": [1]},
    }


def _of_scores(folder: Path) -> Changes:
    """Score functions, sandboxes, managers."""
    score = {"custom_reward_function.path": str(folder / "plug.py")}
    reward_model = {
        "reward_model.enable": True,
        "reward_model.model.path": str(build_tiny_classifier(folder / "classifier", num_hidden_layers=1)),
        "reward_model.max_length": 30,
    }
    coding = write_rows(folder / "coding.parquet", 4, 4, data_source="apps")  # in the file, but not in the first batch
    return {
        "own score": score,
        "filtered": {
            "custom_reward_function.path": str(folder / "plug.py"),
            "custom_reward_function.name": "graded",
            "algorithm.filter_zero_variance_groups": True,
        },
        "failures": {
            **score,
            "custom_reward_function.reward_kwargs": {"flaky": True},
            f"{ROLLOUT}max_failure_rate": 1.0,
        },
        "refills": {
            **score,
            "custom_reward_function.reward_kwargs": {"flaky": True},
            f"{ROLLOUT}max_failure_rate": 1.0,
            f"{ROLLOUT}refill": True,
        },
        "sandbox": {
            "data.train_files": [write_rows(folder / "some.parquet", 0, 4), coding],
            "reward_model.sandbox_fusion.url": "http://127.0.0.1:9",
        },
        "prime": {**score, "reward_model.reward_manager": "prime"},
        "dapo": {
            "reward_model.reward_manager": "dapo",
            "reward_model.overlong_buffer": {"enable": True, "len": 219, "penalty_factor": 0.5, "log": True},
        },
        "reward model": reward_model,
        "reward model by rows": {**reward_model, "reward_model.micro_batch_size_per_gpu": 1},
        "reward model on ranks": {**reward_model, "trainer.backend": "ray", "trainer.n_gpus_per_node": 2},
        "reward model in a pool": {**reward_model, **_POOLS},
        "reward model with a pool": {
            **reward_model,
            "trainer.backend": "ray",
            "ray_init.address": "auto",
            "reward_model.enable_resource_pool": True,
            **{f"reward_model.{key}": 1 for key in ("nnodes", "n_gpus_per_node")},
        },
        "own manager": {
            "reward_manager.source": "importlib",
            "reward_manager.module.path": str(folder / "plug.py"),
            "reward_manager.module.name": "Other",
        },
    }


def _of_judges(folder: Path, address: str) -> Changes:
    """Judges, with a template by which answers of several rows are judged by equal requests."""
    judge = {"reward_model.judge.base_url": address}
    for name in ("rubric", "rubric2"):
        (folder / f"{name}.txt").write_text(f"the {name}")
    return {
        "judged": {
            **judge,
            "reward_model.judge.rubric": "Is it right?",
            "reward_model.judge.template": "{rubric} {answer} {highest}",
        },
        "judged by a file": {**judge, "reward_model.judge.rubric_path": str(folder / "rubric.txt")},
    }


def _of_machines(address: str) -> Changes:
    """Engines, ranks, Ray."""
    return {
        "ray": {"trainer.backend": "ray"},
        "ranks": {**_PPO, "trainer.backend": "ray", "trainer.n_gpus_per_node": 2, "ray_init.address": "auto"},
        "pools": {**_PPO, **_POOLS},
        "addresses": {f"{ROLLOUT}server.addresses": [address]},
        "sglang": {"trainer.device": "cuda", f"{ROLLOUT}name": "sglang"},
        "vllm": {"trainer.device": "cuda", f"{ROLLOUT}name": "vllm"},
        "small prefill": {f"{ROLLOUT}max_num_batched_tokens": 64},
    }


def _of_rows(folder: Path) -> Changes:
    """Files of rows, their number, validation, checkpoints."""
    val = write_rows(folder / "val.parquet", 20, 2)
    validates = {
        "data.val_files": val,
        "trainer.test_freq": 1,
        "trainer.save_freq": 1,
        "trainer.logger": ["console", "jsonl"],
        f"{ROLLOUT}val_kwargs.do_sample": True,
        f"{ROLLOUT}val_kwargs.temperature": 0.5,
    }
    return {
        "two files": {
            "data.train_files": [val, write_rows(folder / "more.parquet", 0, 10)],
            "data.dataset_weights": [1.0, 1.0],
        },
        "epochs": {
            "trainer.total_training_steps": None,
            "trainer.total_epochs": 2,
            "data.train_max_samples": 2,
            "trainer.save_freq": 1,
        },
        "a long prompt": {"data.max_prompt_length": 28},
        "resumed": {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": str(folder / "nothing")},
        "validates": validates,
        "only validates": {"data.val_files": val, "trainer.val_only": True},
    }


def _of_conversations(folder: Path) -> Changes:
    """Tools, interactions, loops, limits."""
    again = {"interaction_kwargs": {"name": "one"}, "agent_name": "tool_agent"}
    return {
        "recorded": {
            f"{ROLLOUT}multi_turn.tool_cache.mode": "record",
            f"{ROLLOUT}multi_turn.tool_cache.path": str(folder / "cache"),
        },
        "an interaction": {
            "data.train_files": write_rows(folder / "again.parquet", 0, 4, **again),
            f"{ROLLOUT}multi_turn.interaction_config_path": str(folder / "one.yaml"),
        },
        "turns": {
            "data.train_files": write_rows(folder / "again.parquet", 0, 4, **again),
            f"{ROLLOUT}multi_turn.interaction_config_path": str(folder / "one.yaml"),
            "algorithm.adv_estimator": "reinforce_plus_plus",
            "reward_model.combine": {"turn": 0.5},
        },
        "rows with tool sets": {
            "data.train_files": write_rows(
                folder / "sets.parquet", 0, 4, agent_name="tool_agent", extra_info={"tool_env_name": "other"}
            ),
            f"{ROLLOUT}multi_turn.tool_envs": {"other": str(folder / "tools.yaml")},
        },
        "rows with a loop": {
            "data.train_files": write_rows(folder / "loops.parquet", 0, 4, agent_name="one"),
            f"{ROLLOUT}agent.agent_loop_config_path": str(folder / "loop_one.yaml"),
        },
        "one turn": {
            "data.train_files": write_rows(folder / "turn.parquet", 0, 4, reward_model={"ground_truth": "2"}),
            f"{ROLLOUT}agent.default_agent_loop": "single_turn_agent",
        },
        "searches": {
            "retriever.url": "http://127.0.0.1:9",
            f"{ROLLOUT}agent.default_agent_loop": "search_r1_agent",
            "data.train_files": write_rows(folder / "search.parquet", 0, 4, agent_name=None),
        },
        "marked text": {
            "algorithm.state_masking.start_state_marker": "<tool_call>",
            "algorithm.state_masking.end_state_marker": "</tool_call>",
        },
    }
