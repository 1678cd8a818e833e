"""The field's YAML as it is written: whole recipes, or blocks of them. Only paths and sizes are made real."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from stage import FIELD, JUDGE, REWARD_MODEL, Seen, Stage

ROLLOUT = "actor_rollout_ref.rollout."
BASE = (
    *("data.train_files=~/data/gsm8k/train.parquet", "actor_rollout_ref.model.path=MODEL", "data.val_files=null"),
    *("data.train_batch_size=4", "data.max_prompt_length=256", "data.max_response_length=64", "trainer.test_freq=-1"),
    "trainer.n_gpus_per_node=1",
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
    plan: str = "# What will run where"
    """What the dry run says."""

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
    assert seen.rows("infers", ACTOR) == [], "the step is one update, whose log-probs are the old ones"
    assert "so old log-probs are those of the one optimizer step of a batch" in seen.err
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


def monitor(seen: Seen) -> None:
    fine(seen)
    trainer = seen.config["trainer"]
    assert (trainer["project_name"], trainer["experiment_name"]) == ("my_project", "exp1")
    assert trainer["log_train_generations"] > 0


def sampling(seen: Seen) -> None:
    fine(seen)
    assert [request["sampling_params"]["max_new_tokens"] for request in seen.rollouts] == [7] * 4
    assert seen.config[AR]["rollout"]["multi_turn"]["turn_timeout_s"] == 30


def tool_limits(seen: Seen) -> None:
    limits = seen.config[AR]["rollout"]["multi_turn"]
    assert (limits["max_tool_calls"], limits["tool_timeout_s"]) == (5, 30)
    assert seen.metrics["tool_call_counts/max"] > 0


def plain_tools(seen: Seen) -> None:
    assert seen.metrics["tool_call_counts/mean"] > 0


def own_manager(seen: Seen) -> None:
    fine(seen)
    assert seen.metrics["critic/score/mean"] == 0.25


def searches(seen: Seen) -> None:
    fine(seen)
    assert "</search>" in seen.rollouts[0]["sampling_params"]["stop"]
    assert seen.config["retriever"] == {"url": "http://127.0.0.1:8000/retrieve", "topk": 3}
    assert seen.config["max_turns"] == 10


def timeline(seen: Seen) -> None:
    fine(seen)
    assert seen.config["ray_init"]["timeline_json_file"] == "timeline.json"
    assert "ray_init.num_cpus and ray_init.timeline_json_file have no effect here: trainer.backend is local" in seen.err


def by_weights(seen: Seen) -> None:
    fine(seen)
    assert seen.config["data"]["dataset_weights"] == [0.5, 0.3, 0.2]
    assert len(seen.config["data"]["train_files"]) == 3


def reward_model(seen: Seen) -> None:
    fine(seen)
    assert seen.rows("infers", JUDGE) == [4], "batch_size: 64"
    model, rule = (seen.metrics[f"reward_model/{part}_score/mean"] for part in ("model", "outcome"))
    assert seen.metrics["critic/score/mean"] == pytest.approx(model + rule, abs=1e-5)
    assert model != 0


def lora(seen: Seen) -> None:
    assert sum(seen.rows("passes", ACTOR)) == 4 * 8
    assert 0 < seen.metrics["perf/trainable_parameters"] < 2e5
    assert abs(seen.metrics["actor/kl_loss"]) < 1e-9, "the first step is that of the reference"


def judged_tools(seen: Seen) -> None:
    plain_tools(seen)
    reward_model(seen)
    assert seen.metrics["reward_model/length/max"] > seen.metrics["reward_model/length/min"]


VERL_S_REWARD_MODEL = (
    *("reward_model.enable=True", f"reward_model.model.path={REWARD_MODEL}", "reward_model.strategy=fsdp"),
    *("reward_model.model.input_tokenizer=${{actor_rollout_ref.model.path}}", "reward_model.max_length=null"),
    *("reward_model.model.use_remove_padding=True", "reward_model.model.fsdp_config.param_offload=False"),
    *("reward_model.micro_batch_size_per_gpu=32", "reward_model.use_dynamic_bsz=False"),
    "reward_model.model.fsdp_config.fsdp_size=-1",
)
AR = "actor_rollout_ref"
LOOPS, TOOLS, TALKS = (
    f"{ROLLOUT}{key}_config_path" for key in ("agent.agent_loop", "multi_turn.tool", "multi_turn.interaction")
)
FILES = ",".join(f"~/data/{name}/train.parquet" for name in ("gsm8k", "math", "code"))
LOOP = f"{ROLLOUT}agent.default_agent_loop=tool_agent"
ESTIMATOR = ("algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.use_kl_loss=true")
LONG = ("data.max_prompt_length=1024", "data.max_response_length=400")
CALLS = ('<tool_call>\n{"name": "calculator", "arguments": {"expression": "2 * 2"}}\n</tool_call>', "#### 4")
RECIPES = (
    Recipe("ppo_trainer.yaml", ppo_trainer),
    Recipe(
        "gsm8k_multiturn_grpo.yaml",
        gsm8k_multiturn,
        ("algorithm.adv_estimator=grpo", f"{ROLLOUT}server.addresses=[{{address}}]"),
    ),
    Recipe("flat.yaml", flat),
    Recipe("rollout_in_train.yaml", rollout_in_train, (f"{ROLLOUT}prompt_length=256", f"{ROLLOUT}response_length=64")),
    Recipe("oom.yaml", oom, (f"{ROLLOUT}n=4",), plan="# LoRA:          actor_rollout_ref: "),
    Recipe("lora.yaml", lora, ESTIMATOR, plan="adapters on k_proj, o_proj, q_proj, v_proj"),
    Recipe(
        "lora2.yaml", lora, ESTIMATOR, plan="adapters on down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
    ),
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
    Recipe("timeline.yaml", timeline),
    Recipe("monitor.yaml", monitor, plan="# loggers:       wandb"),
    Recipe("sampling.yaml", sampling, ("sampling_params.max_tokens=7",)),
    Recipe("reward_manager.yaml", fine, ("reward_manager.module.path=my_reward_manager.py",)),
    Recipe(
        "reward_manager.yaml",
        own_manager,
        ("reward_manager.module.path=my_reward_manager.py", "reward_manager.source=importlib"),
    ),
    Recipe("searchr1.yaml", searches),
    Recipe("toolcfg.yaml", tool_limits, (f"{TOOLS}=tools/calculator.yaml", LOOP, *LONG), answers=CALLS),
    Recipe("rm.yaml", reward_model),
    Recipe("rm.yaml", reward_model, VERL_S_REWARD_MODEL),
    Recipe("tools_plain.yaml", judged_tools, (LOOP, *LONG, *VERL_S_REWARD_MODEL), TOOLS, answers=CALLS),
    Recipe("tools_plain.yaml", plain_tools, (LOOP, *LONG), TOOLS, answers=CALLS),
)
JOBS = {"generation.yaml", "evaluation.yaml"}
"""Of test_job_files.py."""


def test_every_file_is_here() -> None:
    names = {recipe.name for recipe in RECIPES} | JOBS
    assert names == {file.name for file in FIELD.glob("*.yaml")}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_dry_and_for_a_step(recipe: Recipe, stage: Stage) -> None:
    stage.answers = list(recipe.answers)
    dry = stage.dry(*recipe.arguments(stage))
    assert dry.code == 0, dry.err
    assert recipe.plan in dry.out
    seen = stage.step(*recipe.arguments(stage))
    assert seen.code == 0, seen.err
    recipe.check(seen)
