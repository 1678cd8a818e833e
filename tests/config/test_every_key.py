"""Every key that a user may write acts, or the user is told why it does not: no key is accepted in silence.

For each key of the configuration, with a value that is not its default: in the plain run it changes something that can
be seen (`watched_run`), or a note or an error names it. A key that is told in the plain run must act in one of
`SCENARIOS`. A new key is walked without being named here; if it needs other surroundings, it gets a scenario.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from judge_endpoint import JudgeEndpoint, judging
from walked_runs import BASES, scenarios
from walked_values import special_values
from watched_run import Seen, Stage, changed_value, differences, heard, note_about

from agentrl.config import RunConfig
from agentrl.config.schema import is_free, section_of, walk
from agentrl.config.translate import _pattern_for, _renamed, settle_foreign, translate
from agentrl.config.value_tree import get_value
from agentrl.config.verl_keys import VERL_KEYS, Fallback, Harmless, Only, Renamed
from agentrl.testing.models import build_tiny_model

AR = "actor_rollout_ref."
ACTOR, ROLLOUT = f"{AR}actor.", f"{AR}rollout."
KEYS = [key for key, field in walk(RunConfig) if section_of(field) is None]

GPU = "needs a GPU: tests/workers runs it there"
RANKS = "needs several ranks: tests/workers/test_mesh.py runs it on them"
PICTURES = "needs a model that sees pictures: tests/e2e/test_pictures_train.py"
UNSEEN = {
    "data.image_key": PICTURES,
    "data.video_key": "needs a model that sees pictures: tests/data/test_row_pictures.py",
    "data.max_image_pixels": PICTURES,
    f"{ROLLOUT}limit_images": PICTURES,
    f"{AR}model.trust_remote_code": "needs a model folder with code of its own",
    "critic.model.trust_remote_code": "needs a model folder with code of its own",
    "reward_model.model.trust_remote_code": "needs a model folder with code of its own",
    "trainer.otlp_endpoint": "sends to another program: tests/trainer/test_tracing.py",
    f"{ROLLOUT}weight_sync_timeout_s": "shows when an engine is silent: tests/trainer/test_sync_faults.py",
    f"{ROLLOUT}update_weights_bucket_megabytes": "a tiny model fits into one bucket: tests/workers/test_mesh.py",
    **{
        f"{ROLLOUT}{key}": "chooses GPUs: tests/placement plans it on made-up clusters"
        for key in ("placement", "n_gpus")
    },
    "do_search": "acts where no default loop is named: tests/rollout/test_search_keys.py",
    **{f"{section}.lora_dropout": "only 0 is allowed with LoRA" for section in (f"{AR}model", "critic.model")},
    "trainer.async_save": "changes when files are written: tests/trainer/test_saving.py",
    **{
        f"{section}.checkpoint.{key}_contents": "changes a checkpoint: tests/workers/test_saved_contents.py"
        for section in (f"{AR}actor", "critic")
        for key in ("save", "load")
    },
    "critic.enable": "asks for what `algorithm.adv_estimator` says, and is an error elsewhere",
    **{
        f"{section}.fsdp_config.{key}": GPU
        for section in (f"{AR}actor", f"{AR}ref", "critic", "reward_model")
        for key in ("param_offload", "optimizer_offload", "offload_policy")
    },
    **{
        f"{section}.fsdp_config.{key}": RANKS
        for section in (f"{AR}actor", f"{AR}ref", "critic", "reward_model")
        for key in ("fsdp_size", "ulysses_sequence_parallel_size", "tensor_parallel_size")
    },
    f"{AR}model.use_remove_padding": GPU,
    "critic.model.use_remove_padding": GPU,
    "reward_model.model.use_remove_padding": GPU,
}
"""Keys whose effect cannot be seen in a small run on the CPU, and why. They are told where they do not act."""
ACTS_IN = {
    "data.filter_overlong_prompts": "a long prompt",
    "algorithm.state_masking.start_state_marker": "marked text",
    "algorithm.state_masking.end_state_marker": "marked text",
    "trainer.max_skipped_steps": "nothing to learn",
    "algorithm.mask_truncated_completions": "cut answers",
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
    # A checkpoint that a validation begins with has adapters or none.
    and key not in (f"{AR}model.lora_rank", f"{AR}model.lora_enable")
    and key != "algorithm.adv_estimator"  # a validation compares nothing; whoever validates may leave it as it is
]
"""Keys that are walked again where rows have one turn, and where nothing is trained."""
OF_CONVERSATIONS = ("data.", ROLLOUT, "reward_model.", "custom_reward_function.")
"""Sections whose keys act on conversations."""


class Walk:
    """Verdicts on keys, with the runs that they need."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, judge: str) -> None:
        self.folder = folder
        self.stage = Stage(folder, build_tiny_model(folder / "model", num_hidden_layers=1), patch)
        self.scenarios = scenarios(folder, self.stage.address, judge)
        patch.setenv("WALK_KEY", "secret")
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
        return changed_value(RunConfig, key, get_value(self._values[name], key), special_values(self.folder, KEYS))

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
        likely_first = (
            list(BASES) if key in UNSEEN else sorted(self.scenarios, key=lambda name: self.unlikely(key, name))
        )
        for name in [ACTS_IN[key]] if key in ACTS_IN else likely_first:
            acts, says = self.verdict_in(key, name)
            if acts or says.startswith("nothing"):
                return says
            if name == "plain":
                plain = says
        return f"unseen: {UNSEEN[key]}" if key in UNSEEN else f"nothing: {key} acts in no scenario; plain: {plain}"

    def unlikely(self, key: str, name: str) -> tuple[bool, bool, int]:
        """Smaller for a scenario that is for every key, that sets this one, or that sets one in a section near it."""
        given = [each for each in self.scenarios[name] if f"{key}.".startswith(f"{each}.")]
        does_not_set = not (given and self.has_another_value(key, name))
        sections = accumulate(key.split(".")[:-1], "{}.{}".format)
        near = sum(any(each.startswith(f"{section}.") for each in self.scenarios[name]) for section in sections)
        return name not in BASES, does_not_set, 0 if name in BASES else -near

    def has_another_value(self, key: str, name: str) -> bool:
        with suppress(StopIteration):
            self.value(key, name)
            return True
        return False

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


def any_score(endpoint: JudgeEndpoint, text: str) -> str:
    """A score that depends on everything in the request."""
    asked = json.dumps([endpoint.asked.body, endpoint.asked.key], sort_keys=True)
    return f"score: 0.{int(hashlib.sha1(asked.encode()).hexdigest(), 16) % 900 + 100}"


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    with pytest.MonkeyPatch.context() as patch, judging(any_score) as judge:
        walk = Walk(tmp_path_factory.mktemp("walk"), patch, judge.url)
        yield walk
        walk.stage.close()


@pytest.mark.parametrize("key", [key for key in KEYS if key not in ACTS_IN])
def test_a_key_acts_or_is_told(key: str, every: Walk) -> None:
    _, verdict = every.verdict_in(key, "plain")
    assert not verdict.startswith("nothing"), verdict


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_a_key_acts_somewhere(key: str, every: Walk) -> None:
    assert not (verdict := every.verdict(key)).startswith("nothing"), verdict


@pytest.mark.slow
@pytest.mark.parametrize("key", [key for key in ELSEWHERE if key.startswith(OF_CONVERSATIONS)])
def test_a_key_acts_or_is_told_where_rows_have_one_turn(key: str, every: Walk) -> None:
    _, verdict = every.verdict_in(key, "one turn")
    assert not verdict.startswith("nothing"), verdict


@pytest.mark.slow
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
        "reward_model.model.fsdp_config.*": "compute_dtype",
        f"{ACTOR}policy_loss.*": "tau_pos",
        f"{ROLLOUT}sampling_params.*": "top_k",
        "sampling_params.*": "temperature",
        "reward.reward_manager.*": "name",
        "reward.reward_model.*": "timeout_s",
    }
    for section in ("actor_rollout_ref.actor", "actor_rollout_ref", "trainer"):
        if pattern.startswith("*.model.") and section.endswith("actor"):
            continue  # a model is beside the actor
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
    value = "own" if is_free(RunConfig, new) else every.value(new, "plain")
    given = {**every.stage.base, key: value}
    given.pop(new, None)
    tree, renamed, foreign = translate(given, RunConfig)
    used, _, _ = settle_foreign({each.key: each for each in foreign}, set())
    # It counts as agentrl's own key does, which is walked above.
    assert used[new].value == value if isinstance(answer, Fallback) else get_value(tree, new) == value
    assert isinstance(answer, Fallback) or renamed[key] == new
    assert new in KEYS or is_free(RunConfig, new)
