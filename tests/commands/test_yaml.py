"""The field's YAML as it is written: whole recipes, or blocks of them. Only paths and sizes are made real."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from pending import named
from stage import CALL, FIELD, Seen, Stage

ROLLOUT = "actor_rollout_ref.rollout."
BASE = (
    *("data.train_files=~/data/gsm8k/train.parquet", "actor_rollout_ref.model.path=MODEL", "data.val_files=null"),
    *("data.train_batch_size=4", "data.max_prompt_length=256", "data.max_response_length=64", "trainer.test_freq=-1"),
    *("trainer.n_gpus_per_node=1", "trainer.logger=[jsonl]"),
)
ACTOR, CRITIC = "FSDPPolicyNet", "FSDPValueNet"


@dataclass(frozen=True)
class Recipe:
    """A file, where a command names it, and what it must do."""

    name: str
    check: Callable[[Seen], None]
    more: tuple[str, ...] = ()
    option: str = ""
    """The key that names it; empty: it is the recipe."""
    answers: tuple[str, ...] = ("#### 4", "I do not know")

    def arguments(self, stage: Stage) -> list[str]:
        file = stage.recipe(self.name)
        named_by = [f"{self.option}={file}"] if self.option else []
        more = (text.format(address=stage.address) for text in self.more)
        return [*([] if self.option else [file]), *BASE, *named_by, *more]


def ppo_trainer(seen: Seen) -> None:
    assert sum(seen.rows("passes", CRITIC)) == 4
    assert seen.config["trainer"]["experiment_name"] == "gsm8k"
    assert "agentrl's own defaults replace verl's 'dp_actor'" in seen.err


def gsm8k_multiturn(seen: Seen) -> None:
    assert seen.config[AR]["rollout"]["multi_turn"]["max_assistant_turns"] == 5
    assert len(seen.rollouts) == 4 * 8
    assert "agentrl's own defaults replace verl's 'ppo_trainer'" in seen.err


def flat(seen: Seen) -> None:
    assert (seen.metrics["actor/lr"], seen.metrics["critic/lr"]) == (1e-6, 1e-5)
    assert len(seen.rollouts) == 4 * 4, "algorithm.group_size: 4"


def rollout_in_train(seen: Seen) -> None:
    assert len(seen.rollouts) == 4 * 4, "n: 4"
    sampled = seen.rollouts[0]["sampling_params"]
    assert (sampled["temperature"], sampled["top_k"], sampled["top_p"]) == (1.0, 50, 0.7)
    assert seen.rows("infers", ACTOR) == [8, 8], "log_prob_micro_batch_size_per_gpu: 8"
    assert "always asynchronous" in seen.err


def oom(seen: Seen) -> None:
    assert seen.rows("passes", ACTOR) == [8, 8], "ppo_micro_batch_size_per_gpu: 8"
    assert seen.config[AR]["model"]["enable_gradient_checkpointing"]


def interaction(seen: Seen) -> None:
    assert seen.metrics["num_turns/max"] > 2


def own_loop(seen: Seen) -> None:
    assert len(seen.rollouts) == 4


def fine(seen: Seen) -> None:
    assert sum(seen.rows("passes", ACTOR)) == 4


def by_weights(seen: Seen) -> None:
    fine(seen)
    assert seen.config["data"]["dataset_weights"] == [0.5, 0.3, 0.2]
    assert len(seen.config["data"]["train_files"]) == 3


AR = "actor_rollout_ref"
LOOPS, TOOLS, TALKS = (
    f"{ROLLOUT}{key}_config_path" for key in ("agent.agent_loop", "multi_turn.tool", "multi_turn.interaction")
)
FILES = ",".join(f"~/data/{name}/train.parquet" for name in ("gsm8k", "math", "code"))
RECIPES = (
    Recipe("ppo_trainer.yaml", ppo_trainer),
    Recipe(
        "gsm8k_multiturn_grpo.yaml",
        gsm8k_multiturn,
        ("algorithm.adv_estimator=grpo", f"{ROLLOUT}server.addresses=[{{address}}]"),
    ),
    Recipe("flat.yaml", flat),
    Recipe("rollout_in_train.yaml", rollout_in_train, (f"{ROLLOUT}prompt_length=256", f"{ROLLOUT}response_length=64")),
    Recipe("oom.yaml", oom, ("actor_rollout_ref.actor.lora.enable=false", f"{ROLLOUT}n=4")),
    Recipe(
        "interaction.yaml", interaction, ("data.train_files=interaction.parquet", "data.max_response_length=400"), TALKS
    ),
    Recipe("agent_loops.yaml", own_loop, ("data.train_files=loop.parquet",), LOOPS),
    Recipe(
        "weights.yaml",
        by_weights,
        (f"data.train_files=[{FILES}]", "reward_model.sandbox_fusion.url=http://127.0.0.1:9"),
    ),
    Recipe("nsight.yaml", fine),
    Recipe("timeline.yaml", fine),
    Recipe("monitor.yaml", fine),
    Recipe("sampling.yaml", fine),
    Recipe("reward_manager.yaml", fine),
    Recipe("searchr1.yaml", fine),
    Recipe("toolcfg.yaml", fine),
    Recipe("tools_plain.yaml", fine, (), TOOLS, answers=(CALL, "#### 4")),
)
REFUSED = {"lora.yaml": "LoRA", "lora2.yaml": "LoRA", "rm.yaml": "reward model"}
JOBS = {"generation.yaml", "evaluation.yaml"}
"""Of test_job_files.py."""


def test_every_file_is_here() -> None:
    names = {recipe.name for recipe in RECIPES} | REFUSED.keys() | JOBS
    assert names == {file.name for file in FIELD.glob("*.yaml")}


@pytest.mark.parametrize("recipe", [named(recipe.name, recipe) for recipe in RECIPES])
def test_a_recipe_dry_and_for_a_step(recipe: Recipe, stage: Stage) -> None:
    stage.answers = list(recipe.answers)
    dry = stage.dry(*recipe.arguments(stage))
    assert dry.code == 0, dry.err
    seen = stage.step(*recipe.arguments(stage))
    assert seen.code == 0, seen.err
    recipe.check(seen)


@pytest.mark.parametrize("name", [named(name) for name in REFUSED])
def test_a_recipe_that_asks_for_what_is_to_come_is_one_sentence(name: str, stage: Stage) -> None:
    seen = stage.dry(stage.recipe(name), *BASE)
    assert seen.code == 2
    (message,) = [line for line in seen.err.splitlines() if line.startswith("error: ")]
    assert REFUSED[name] in message
    assert len(seen.err.splitlines()[-1:]) == 1
