"""Every key that a user may write acts, or the user is told why it does not: no key is accepted in silence.

For each key of the configuration, with a value that is not its default: in the plain run it changes something that can
be seen (`watched_run`), or a note or an error names it. A key that is told in the plain run must act in one of
`SCENARIOS`. A new key is walked without being named here; if it needs other surroundings, it gets a scenario.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from watched_run import TEMPLATE, Seen, Stage, changed_value, differences, heard, note_about, write_rows

from agentrl.config import RunConfig
from agentrl.config.schema import section_of, walk
from agentrl.config.translate import _pattern_for, _renamed, settle_foreign, translate
from agentrl.config.value_tree import get_value
from agentrl.config.verl_keys import VERL_KEYS, Fallback, Harmless, Only, Renamed
from agentrl.testing.models import build_tiny_model

AR = "actor_rollout_ref."
ACTOR, ROLLOUT = f"{AR}actor.", f"{AR}rollout."
KEYS = [key for key, field in walk(RunConfig) if section_of(field) is None]

GPU = "needs a GPU: tests/workers runs it there"
UNSEEN = {
    f"{AR}model.trust_remote_code": "needs a model folder with code of its own",
    "critic.model.trust_remote_code": "needs a model folder with code of its own",
    "trainer.profile_tool": GPU,
    "do_search": "acts where no default loop is named: tests/rollout/test_search_keys.py",
    "critic.enable": "asks for what `algorithm.adv_estimator` says, and is an error elsewhere",
    **{
        f"{section}.fsdp_config.{key}_offload": GPU
        for section in (f"{AR}actor", f"{AR}ref", "critic")
        for key in ("param", "optimizer")
    },
    f"{AR}model.use_remove_padding": GPU,
    "critic.model.use_remove_padding": GPU,
}
"""Keys whose effect cannot be seen in a small run on the CPU, and why. They are told where they do not act."""
ACTS_IN = {
    "data.filter_overlong_prompts": "a long prompt",
    "algorithm.state_masking.start_state_marker": "marked text",
    "algorithm.state_masking.end_state_marker": "marked text",
    "trainer.max_skipped_steps": "nothing to learn",
    "algorithm.filter_zero_variance_groups": "corrected",
    f"{ROLLOUT}refill": "failures",
    f"{ROLLOUT}max_failure_rate": "failures",
    "data.train_max_samples": "epochs",
    "data.seed": "shuffled",
    **{
        f"{section}.optim.{key}": "two steps of ppo"
        if key == "lr_warmup_steps_ratio"
        else "a falling rate"  # not in one step
        for section in (f"{AR}actor", "critic")
        for key in ("warmup_style", "lr_warmup_steps_ratio")
    },
    f"{ACTOR}shuffle": "two steps of ppo",
}
"""Keys that act on what happens in a run or stands in its rows, not on other keys: the scenario in which it happens."""
HERE_ONLY = (f"{ROLLOUT}agent.default_agent_loop", f"{ROLLOUT}multi_turn.tool_config_path")
ELSEWHERE = [
    key
    for key in KEYS
    if key not in ACTS_IN
    # The rows of `train_files` are still checked; the others have no second value, or act once in a process.
    and key not in ("data.train_files", "data.val_files", "plugins", *HERE_ONLY)
    and key != "algorithm.adv_estimator"  # a validation compares nothing; whoever validates may leave it as it is
]
"""Keys that are walked again where rows have one turn, and where nothing is trained."""
OF_CONVERSATIONS = ("data.", ROLLOUT, "reward_model.", "custom_reward_function.")
"""Sections whose keys act on conversations."""


BASES = ("plain", "one turn", "only validates")
"""Scenarios in which every key acts or is told; in the others, those that are told in the first must act somewhere."""


def scenarios(folder: Path, address: str) -> dict[str, dict[str, Any]]:
    """Surroundings by name. A key that is told in the plain run is tried in the others, in this order."""
    val = write_rows(folder / "val.parquet", 20, 2)
    (folder / "plug.py").write_text(PLUGINS)
    (folder / "plug2.py").write_text(PLUGINS.replace("RewardResult(9.0)", "RewardResult(8.0)"))
    (folder / "plugin.py").write_text(f"import pathlib\npathlib.Path({str(folder / 'imported')!r}).touch()\n")
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(f"interaction: [{{name: {name}, class_name: 'plug.py:Again'}}]")
        (folder / f"loop_{name}.yaml").write_text(f"- {{name: {name}, _target_: '{folder / 'plug.py'}:Loop'}}")
    score = {"custom_reward_function.path": str(folder / "plug.py")}
    schedule = {"warmup_style": "cosine", "lr_warmup_steps_ratio": 0.5, "total_training_steps": 4}
    ppo = {
        "algorithm.adv_estimator": "gae",
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_ctrl.type": "adaptive",
        "algorithm.kl_penalty": "low_var_kl",
        f"{ACTOR}use_kl_loss": True,
        **{
            f"{section}.optim.{name}": value for section in ("critic", f"{AR}actor") for name, value in schedule.items()
        },
    }
    by_rows = {
        f"{section}.{prefix}_micro_batch_size_per_gpu": 1
        for section, prefix in (
            *((f"{AR}actor", "ppo"), ("critic", "ppo")),
            *((f"{AR}rollout", "log_prob"), (f"{AR}ref", "log_prob")),
        )
    }
    validates = {
        "data.val_files": val,
        "trainer.test_freq": 1,
        "trainer.save_freq": 1,
        "trainer.logger": ["console", "jsonl"],
        f"{ROLLOUT}val_kwargs.do_sample": True,
        f"{ROLLOUT}val_kwargs.temperature": 0.5,
    }
    coding = write_rows(folder / "coding.parquet", 4, 4, data_source="apps")  # in the file, but not in the first batch
    again = {"interaction_kwargs": {"name": "one"}, "agent_name": "tool_agent"}
    return {
        "plain": {},
        "ppo": ppo,
        "ppo by rows": {**ppo, **by_rows},
        "two steps of ppo": {**ppo, "trainer.total_training_steps": 2},
        "a falling rate": {
            "algorithm.adv_estimator": "gae",
            "trainer.total_training_steps": 2,
            **{f"{section}.optim.warmup_style": "cosine" for section in ("critic", f"{AR}actor")},
            **{f"{section}.optim.total_training_steps": 3 for section in ("critic", f"{AR}actor")},
        },
        "validates": validates,
        "own score": score,
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
        "corrected": {
            "algorithm.rollout_correction.is_level": "token",
            "algorithm.filter_zero_variance_groups": True,
            "data.train_batch_size": 3,
        },
        "sapo": {f"{ACTOR}policy_loss": "sapo"},
        "clip_cov": {
            f"{ACTOR}policy_loss": "clip_cov",
            f"{ACTOR}policy_loss_options": {"clip_cov_ratio": 0.5, "clip_cov_lb": -9.0, "clip_cov_ub": 9.0},
        },
        "kl_cov": {f"{ACTOR}policy_loss": "kl_cov", f"{ACTOR}policy_loss_options.kl_cov_ratio": 0.2},
        "sandbox": {
            "data.train_files": [write_rows(folder / "some.parquet", 0, 4), coding],
            "reward_model.sandbox_fusion.url": "http://127.0.0.1:9",
        },
        "ray": {"trainer.backend": "ray"},
        "ranks": {**ppo, "trainer.backend": "ray", "trainer.n_gpus_per_node": 2, "ray_init.address": "auto"},
        "recorded": {
            f"{ROLLOUT}multi_turn.tool_cache.mode": "record",
            f"{ROLLOUT}multi_turn.tool_cache.path": str(folder / "cache"),
        },
        "addresses": {f"{ROLLOUT}server.addresses": [address]},
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
        "shuffled": {"data.shuffle": True},
        "resumed": {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": str(folder / "nothing")},
        "a long prompt": {"data.max_prompt_length": 28},
        "nothing to learn": {
            "data.train_files": write_rows(folder / "flat.parquet", 0, 6, agent_name="single_turn_agent"),
            "algorithm.filter_zero_variance_groups": True,
            "trainer.total_training_steps": 2,
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
        "only validates": {"data.val_files": val, "trainer.val_only": True},
        "sglang": {"trainer.device": "cuda", f"{ROLLOUT}name": "sglang"},
        "searches": {
            "retriever.url": "http://127.0.0.1:9",
            f"{ROLLOUT}agent.default_agent_loop": "search_r1_agent",
            "data.train_files": write_rows(folder / "search.parquet", 0, 4, agent_name=None),
        },
        "profiled": {"trainer.profile_steps": [1]},
        "small prefill": {f"{ROLLOUT}max_num_batched_tokens": 64},
        "marked text": {
            "algorithm.state_masking.start_state_marker": "<tool_call>",
            "algorithm.state_masking.end_state_marker": "</tool_call>",
        },
        "own manager": {
            "reward_manager.source": "importlib",
            "reward_manager.module.path": str(folder / "plug.py"),
            "reward_manager.module.name": "Other",
        },
    }


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


def other(data_source, solution_str, ground_truth, extra_info=None):
    return len(solution_str) % 3


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


@cache
def special_values(folder: Path) -> dict[str, list[Any]]:
    """Values that must name something, or that make a difference only in a certain place: the first that is new."""
    other_model = str(build_tiny_model(folder / "other_model", seed=5, num_hidden_layers=1))
    values: dict[str, list[Any]] = {
        "critic.enable": [True],
        "algorithm.state_masking.start_state_marker": ['"name"'],
        "algorithm.state_masking.end_state_marker": ["}"],
        "data.val_files": [str(folder / "val.parquet")],
        "data.train_files": [str(folder / "val.parquet")],
        "data.dataset_weights": [[1.0, 9.0]],
        "data.val_batch_size": [1],
        "data.val_max_samples": [1],
        "data.train_max_samples": [6],
        "data.apply_chat_template_kwargs": [{"hint": "So"}],
        f"{AR}model.path": [other_model],
        f"{AR}model.tokenizer_path": [other_model],
        f"{AR}model.chat_template": [TEMPLATE.replace("user", "person").replace(":", "=")],
        "critic.model.path": [other_model],
        f"{AR}nccl_timeout": [7],
        f"{ACTOR}policy_loss": ["gspo", "vanilla"],
        f"{ACTOR}ppo_mini_batch_size": [2],
        f"{ACTOR}clip_ratio_c": [3.0],
        "algorithm.rollout_correction.is_threshold": [1e-3],
        "reward_model.timeout_s": [77.0],
        f"{ROLLOUT}multi_turn.tool_timeout_s": [33.0],
        "critic.cliprange_value": [1e-4],
        "algorithm.kl_penalty": ["k2"],
        "algorithm.kl_ctrl.target_kl": [9.0],
        f"{ACTOR}policy_loss_options.clip_cov_ratio": [0.1],
        f"{ACTOR}policy_loss_options.clip_cov_lb": [0.0],
        f"{ACTOR}policy_loss_options.clip_cov_ub": [0.0],
        f"{ROLLOUT}stop_token_ids": [[65]],
        f"{ROLLOUT}max_failure_rate": [0.0],
        f"{ROLLOUT}weight_sync": ["tensor"],
        f"{ROLLOUT}weight_sync_dir": [str(folder / "sync")],
        f"{ROLLOUT}max_model_len": [5000],
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
        "reward_model.sandbox_fusion.url": ["http://127.0.0.1:9", "http://127.0.0.1:8"],
        "reward_model.sandbox_fusion.headers": [{"X": "y"}],
        "reward_model.reward_manager": ["batch"],
        "reward_manager.name": ["batch"],
        "reward_manager.module.path": [str(folder / "plug2.py")],
        "reward_manager.module.name": ["Manager"],
        "max_turns": [0],
        "trainer.profile_steps": [[1]],
        "trainer.profile_tool": ["torch_memory"],
        "trainer.profile_dir": [str(folder / "profiles")],
        "ray_init.timeline_json_file": [str(folder / "timeline.json")],
        "retriever.url": ["http://127.0.0.1:10"],
        "custom_reward_function.path": [str(folder / "plug.py"), None],
        "custom_reward_function.name": ["other"],
        "algorithm.adv_estimator": ["rloo", "grpo"],
        "algorithm.rollout_correction.rs": [[0.5, 0.9]],
        "trainer.device": ["cuda", "cpu"],
        "trainer.logger": [["console"]],
        "trainer.max_skipped_steps": [1],
        "trainer.test_freq": [1, -1],
        "trainer.save_freq": [1, -1],
        "trainer.max_ckpt_to_keep": [1],
        "trainer.threads_per_rank": [7],
        "trainer.resume_from_path": [str(folder / "elsewhere")],
        "plugins": [[str(folder / "plugin.py")]],
    }
    values |= {f"trainer.{key}": [str(folder / key)] for key in DUMPS}
    values |= {f"{section}.optim.betas": [[0.5, 0.6]] for section in (f"{AR}actor", "critic")}
    values |= {f"{section}.optim.lr_warmup_steps": [4] for section in (f"{AR}actor", "critic")}
    values |= {f"{section}.fsdp_config.compute_dtype": ["bfloat16"] for section in (f"{AR}actor", f"{AR}ref", "critic")}
    values |= {key: [1, 2] for key in KEYS if key.endswith("micro_batch_size_per_gpu")}
    few = ("ppo_max_token_len_per_gpu", "log_prob_max_token_len_per_gpu")
    values |= {key: [40] for key in KEYS if key.endswith(few)}
    once = ("max_assistant_turns", "max_parallel_calls", "max_tool_calls", "max_tool_response_length")
    values |= {f"{ROLLOUT}multi_turn.{key}": [1] for key in once}
    return values


DUMPS = ("rollout_data_dir", "validation_data_dir", "default_local_dir")


class Walk:
    """Verdicts on keys, with the runs that they need."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.stage = Stage(folder, build_tiny_model(folder / "model", num_hidden_layers=1), patch)
        self.scenarios = scenarios(folder, self.stage.address)
        self._baselines: dict[str, Seen] = {}
        self._values: dict[str, dict[str, Any]] = {}

    def told(self, key: str, changes: dict[str, Any]) -> str | None:
        """The note or error that names a key; None: there is none."""
        with self.stage.surroundings(changes):
            return heard(key, lambda: self.stage.load(changes))

    def value(self, key: str, name: str) -> Any:
        """The key's own value in a scenario."""
        if name not in self._values:
            with self.stage.surroundings(self.scenarios[name]):
                self._values[name] = self.stage.load(self.scenarios[name]).model_dump()
        return changed_value(RunConfig, key, get_value(self._values[name], key), special_values(self.folder))

    def effect(self, key: str, name: str) -> tuple[list[str], str | None]:
        """What the key changes in a scenario, and the note about it that needed the rows."""
        with self.stage.surroundings(self.scenarios[name]):
            if name not in self._baselines:
                self._baselines[name] = self.stage.watch(self.scenarios[name])
            changed = self.stage.watch({**self.scenarios[name], key: self.value(key, name)})
        return differences(self._baselines[name], changed), note_about(key, self.stage.notes)

    def verdict(self, key: str) -> str:
        """How the key acts in one of the scenarios, or `nothing: …`."""
        plain = "nothing"
        for name in [ACTS_IN[key]] if key in ACTS_IN else self.scenarios:
            acts, says = self.verdict_in(key, name)
            if acts or says.startswith("nothing"):
                return says
            if name == "plain":
                plain = says
        return f"unseen: {UNSEEN[key]}" if key in UNSEEN else f"nothing: {key} acts in no scenario; plain: {plain}"

    def verdict_in(self, key: str, name: str) -> tuple[bool, str]:
        """Whether the key acts in a scenario, and how; or who says that it does not, or `nothing: …`."""
        value = self.value(key, name)
        told = self.told(key, {**self.scenarios[name], key: value})
        if told is not None:
            return False, told
        if key in UNSEEN:
            return False, f"unseen: {UNSEEN[key]}"
        effect, told = self.effect(key, name)
        if told is not None:
            return False, told
        if not effect and name in BASES:
            return False, f"nothing: {key}={value} is accepted in silence and changes nothing in {name}"
        return bool(effect), f"acts in {name}: {effect}"


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    with pytest.MonkeyPatch.context() as patch:
        walk = Walk(tmp_path_factory.mktemp("walk"), patch)
        yield walk
        walk.stage.close()


@pytest.mark.parametrize("key", KEYS)
def test_a_key_acts_or_is_told(key: str, every: Walk) -> None:
    assert not (verdict := every.verdict(key)).startswith("nothing"), verdict


@pytest.mark.parametrize("key", [key for key in ELSEWHERE if key.startswith(OF_CONVERSATIONS)])
def test_a_key_acts_or_is_told_where_rows_have_one_turn(key: str, every: Walk) -> None:
    _, verdict = every.verdict_in(key, "one turn")
    assert not verdict.startswith("nothing"), verdict


@pytest.mark.parametrize("key", ELSEWHERE)
def test_a_key_acts_or_is_told_where_nothing_is_trained(key: str, every: Walk) -> None:
    _, verdict = every.verdict_in(key, "only validates")
    assert not verdict.startswith("nothing"), verdict


def test_the_tables_name_only_keys_that_exist() -> None:
    assert (UNSEEN.keys() | ACTS_IN.keys()) <= set(KEYS)


def concrete(pattern: str) -> str:
    """A key that a pattern of verl's table means."""
    ends = {
        "critic.model.fsdp_config.*": "compute_dtype",
        f"{ACTOR}policy_loss.*": "tau_pos",
        f"{ROLLOUT}sampling_params.*": "top_k",
        "sampling_params.*": "temperature",
        "reward.reward_manager.*": "name",
    }
    for section in ("actor_rollout_ref.actor", "actor_rollout_ref", "trainer"):
        key = pattern.replace("*", section, 1) if pattern.startswith("*") else pattern
        key = key.replace("*", ends.get(pattern, "own"))
        if key not in KEYS and _pattern_for(key) == pattern:
            return key
    raise AssertionError(pattern)


@pytest.mark.parametrize("pattern", VERL_KEYS)
def test_a_key_of_verl_acts_or_is_told(pattern: str, every: Walk) -> None:
    key = concrete(pattern)
    answer: Any = VERL_KEYS[pattern]
    new = key
    while isinstance(answer, Renamed):
        new = _renamed(new, _pattern_for(new) or new, answer.to)
        answer = VERL_KEYS.get(_pattern_for(new) or "") if new not in KEYS else None
    if isinstance(answer, Harmless | Only):
        assert every.told(key, {key: "own"}), "neither a note nor an error"
        return
    if isinstance(answer, Fallback):
        new = _renamed(key, pattern, answer.to)
    value = every.value(new, "plain")
    given = {**every.stage.base, key: value}
    given.pop(new, None)
    tree, renamed, foreign = translate(given, RunConfig)
    used, _, _ = settle_foreign({each.key: each for each in foreign}, set())
    # It counts as agentrl's own key does, which is walked above.
    assert used[new].value == value if isinstance(answer, Fallback) else get_value(tree, new) == value
    assert isinstance(answer, Fallback) or renamed[key] == new
    assert new in KEYS
