"""A whole run from the command line on Ray with an engine over HTTP, and what it leaves behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import numpy as np
import psutil
import pytest
from otlp_collector import Collector, collecting
from runs import Run, Workspace, finished
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.config import load_config
from agentrl.observability.run_folder import RunFolder
from agentrl.observability.run_state import State
from agentrl.trainer.run import run_training

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture(scope="module")
def done(workspace: Workspace, collector: Collector) -> Run:
    """Two GRPO steps on Ray with two training ranks, tools, validation, checkpoints and every logger.

    Ranks and engine take turns, as on GPUs that they share: the engine has no memory while the ranks train.
    """
    run = workspace.run(
        "first",
        data__val_files=str(workspace.val),
        data__max_prompt_length=640,
        actor_rollout_ref__rollout__agent__default_agent_loop="tool_agent",
        actor_rollout_ref__rollout__multi_turn__tool_config_path="tools/calculator.yaml",
        actor_rollout_ref__rollout__free_cache_engine=True,
        actor_rollout_ref__actor__use_kl_loss=True,
        trainer__backend="ray",
        trainer__n_gpus_per_node=2,
        trainer__logger=["console", "jsonl", "tensorboard"],
        trainer__test_freq=2,
        trainer__save_freq=1,
        trainer__max_ckpt_to_keep=1,
        trainer__profile_steps=[2],
        trainer__otlp_endpoint=collector.url,
        ray_init__timeline_json_file=str(workspace.folder / "timeline.json"),
    )
    code, output = finished("train", str(run.recipe), cold=True)
    assert code == 0, output
    assert "step 2/2" in output
    assert "Traceback" not in output
    return run


def test_metrics_have_the_names_that_dashboards_know(done: Run) -> None:
    zero, first, second = done.metrics
    assert [zero["step"], first["step"], second["step"]] == [0, 1, 2]
    assert {name for name in zero if name.startswith("val-core")} == {"val-core/test/sums/reward/mean@1"}
    expected = [
        "critic/score/mean",
        "critic/rewards/max",
        "critic/advantages/min",
        "critic/returns/mean",
        "actor/pg_loss",
        "actor/kl_loss",
        "actor/entropy",
        "actor/pg_clipfrac",
        "actor/pg_clipfrac_lower",
        "actor/ppo_kl",
        "actor/grad_norm",
        "actor/lr",
        "response_length/mean",
        "response_length/clip_ratio",
        "prompt_length/max",
        "num_turns/mean",
        "tool_call_counts/mean",
        "timing_s/gen",
        "timing_s/reward",
        "timing_s/old_log_prob",
        "timing_s/ref",
        "timing_s/adv",
        "timing_s/update_actor",
        "timing_s/update_weights",
        "timing_s/release_engines",
        "timing_s/resume_engines",
        "timing_s/save_checkpoint",
        "timing_s/step",
        "timing_per_token_ms/gen",
        "timing_s/agent_loop/generate_sequences/mean",
        "timing_s/agent_loop/tool_calls/max",
        "timing_s/agent_loop/compute_score/max",
        "perf/total_num_tokens",
        "perf/time_per_step",
        "perf/throughput",
        "perf/cpu_memory_used_gb",
        "global_seqlen/minmax_diff",
        "global_seqlen/balanced_max",
        "training/global_step",
        "training/epoch",
        "training/rollout_probs_diff_mean",
        "training/rollout_probs_diff_max",
        "training/rollout_actor_probs_pearson_corr",
        "rollout_corr/kl",
        "rollout/stop_reason/length",
        "rollout/env_error_rate",
        "rollout/zero_variance_groups",
        "rollout/tool_call_rate",
        "rollout/tool_error_rate",
    ]
    assert not set(expected) - set(first)
    assert "val-core/test/sums/reward/mean@1" not in first
    assert {"val-core/test/sums/reward/mean@1", "val-aux/num_turns/mean", "timing_s/testing"} <= set(second)


def test_the_engine_serves_the_weights_that_were_trained(done: Run) -> None:
    _zero, first, second = done.metrics
    assert first["actor/grad_norm"] > 0
    assert second["actor/kl_loss"] > first["actor/kl_loss"]
    assert second["training/rollout_probs_diff_max"] < 1e-5
    for step, version in ((1, 0), (2, 1)):
        for row in done.rollouts(step):
            sampled = [v for v, m in zip(row["weight_versions"], row["response_mask"], strict=True) if m]
            assert set(sampled) == {version}


def test_the_rollout_log_holds_exact_tokens(done: Run) -> None:
    rows = done.rollouts(1)
    assert len(rows) == 8
    assert len({row["uid"] for row in rows}) == 4
    for row in rows:
        assert {"input", "output", "gts", "score", "step", "messages", "stop_reason", "num_turns"} <= set(row)
        count = len(row["response_ids"])
        assert count == len(row["response_mask"]) == len(row["rollout_log_probs"]) == len(row["weight_versions"]) > 0
        assert row["input"].startswith("<|im_start|>system\n")
        assert row["response_mask"][-1] == 1


@pytest.mark.parametrize("step", [1, 2])
def test_the_rollout_log_holds_what_training_knew_of_each_token(done: Run, step: int) -> None:
    rows = done.rollouts(step)
    means = {row["uid"]: fmean(other["score"] for other in rows if other["uid"] == row["uid"]) for row in rows}
    for row in rows:
        tokens = list(zip(row["response_mask"], row["rollout_log_probs"], row["train_log_probs"], strict=True))
        assert [known for sampled, _, known in tokens if not sampled] == [None] * row["response_mask"].count(0)
        assert all(known == pytest.approx(rollout, abs=1e-4) for sampled, rollout, known in tokens if sampled)
        sampled = {value for value, on in zip(row["advantages"], row["response_mask"], strict=True) if on}
        (advantage,) = sampled
        assert np.sign(advantage) == np.sign(row["score"] - means[row["uid"]])


def test_the_run_says_that_it_has_finished(done: Run) -> None:
    state = RunFolder(done.folder).state()
    assert (state.state, state.step, state.total_steps) == (State.FINISHED, 2, 2)


def test_its_own_score_function_scores_the_dumps_as_the_run_did(done: Run) -> None:
    score = done.config.custom_reward_function
    options = ["replay", str(done.folder), "--reward", f"{score.path}:{score.name}", "--json"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["conversations"], found["changed"], found["no_score"]) == (16, 0, 0)


def test_the_newest_checkpoint_is_whole_and_loads_elsewhere(done: Run) -> None:
    assert [path.name for path in sorted(done.folder.glob("global_step_*"))] == ["global_step_2"]
    assert (done.folder / "latest_checkpointed_iteration.txt").read_text() == "2"
    folder = done.folder / "global_step_2"
    assert {path.name for path in folder.iterdir()} == {"actor", "data.pt", "trainer_state.pt"}
    model = AutoModelForCausalLM.from_pretrained(folder / "actor" / "huggingface")
    start = AutoModelForCausalLM.from_pretrained(done.config.actor_rollout_ref.model.path)
    assert not model.lm_head.weight.equal(start.lm_head.weight)
    assert AutoTokenizer.from_pretrained(folder / "actor" / "huggingface").chat_template


def test_the_resolved_config_is_a_recipe_of_the_same_run(done: Run) -> None:
    assert load_config(done.folder / "config.yaml") == done.config


def test_nothing_is_left_in_shared_memory(done: Run) -> None:
    assert done.metrics
    owners = [int(path.name.split("-")[2]) for path in Path("/dev/shm").glob("agentrl-weights-*")]
    assert all(psutil.pid_exists(pid) for pid in owners)


def test_tensorboard_has_the_run(done: Run) -> None:
    assert list((done.folder / "tensorboard").glob("events.out.tfevents.*"))


def test_the_second_step_is_profiled_in_every_process(done: Run, workspace: Workspace) -> None:
    names = {path.name for path in (done.folder / "profile" / "step_2").iterdir()}
    assert names == {f"{name}_rank_{rank}.json" for name in ("actor", "ref") for rank in range(2)} | {"driver.json"}
    for name, slices in {"driver": ("gen", "update_actor"), "actor_rank_1": ("update_actor", "aten::mm")}.items():
        trace = (done.folder / "profile" / "step_2" / f"{name}.json").read_text()
        assert all(f'"name": "{part}"' in trace for part in slices)
    assert not (done.folder / "profile" / "step_1").exists()
    assert json.loads((workspace.folder / "timeline.json").read_text())


def test_the_traces_of_both_steps_cross_all_processes(done: Run, collector: Collector) -> None:
    steps = [span for span in collector.spans if span.name == "step"]
    assert len(steps) == 2
    for step in steps:
        spans = {span.span_id: span for span in collector.spans if span.trace_id == step.trace_id}
        assert all(span.parent_id in spans for span in spans.values() if span is not step)
        by_process = {span.resource["agentrl.process"] for span in spans.values()}
        ranks = {f"{role} rank {rank}" for role in ("actor", "ref") for rank in range(2)}
        assert ranks | {"driver"} == {process for process in by_process if not process.startswith("agent loops")}
        assert len(by_process) > len(ranks) + 1
        within = {
            (span.name, span.resource["agentrl.process"], spans[span.parent_id].name)
            for span in spans.values()
            if span is not step
        }
        for rank in range(2):
            assert ("update_actor", f"actor rank {rank}", "update") in within
            assert ("compute_ref_log_prob", f"ref rank {rank}", "ref") in within
        assert {("trajectory", "gen"), ("generate", "trajectory")} <= {(name, parent) for name, _, parent in within}


def test_where_the_time_went(done: Run) -> None:
    code, output = finished("trace", str(done.folder))
    assert code == 0
    assert "2 steps, 1 to 2" in output
    assert all(phase in output for phase in ("gen", "old_log_prob", "ref", "update_actor", "update_weights", "testing"))


def test_a_finished_run_has_nothing_more_to_do(done: Run) -> None:
    config = done.config
    config.trainer.n_gpus_per_node, config.trainer.backend = 1, "local"
    run_training(config)
    assert [row["step"] for row in done.metrics] == [0, 1, 2]
