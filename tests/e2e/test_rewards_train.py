"""Reward managers and the judge, each in a run from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from judge_endpoint import JudgeEndpoint, judging
from runs import Run, Workspace, finished

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

HANGS = """
import time


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if ground_truth == "2":
        time.sleep(600)
    return len(solution_str) % 5 + 1.0
"""


def one_step(workspace: Workspace, engine: str, name: str, **changes: Any) -> Run:
    of_all = {
        "data__shuffle": False,  # the rows with the answers 0, 2, 4 and 6
        "trainer__total_training_steps": 1,
        "trainer__save_freq": -1,
        "actor_rollout_ref__rollout__server__addresses": [engine],
    }
    return workspace.run(name, **{**of_all, **changes})


def test_prime_kills_what_hangs(workspace: Workspace, engine: str, tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    run = one_step(workspace, engine, "prime", custom_reward_function__path=str(tmp_path / "hangs.py"))
    prime = ["reward_model.reward_manager=prime", "reward_model.timeout_s=8", "reward_model.num_processes=2"]
    code, output = finished("train", str(run.recipe), *prime)
    assert code == 0, output
    assert "the score function took over 8 s (reward_model.timeout_s) and was killed" in output
    [metrics] = run.metrics
    assert metrics["reward/timed_out/mean"] == 0.25
    assert metrics["rollout/env_error_rate"] == 0.0
    rows = run.rollouts(1)
    killed = [row for row in rows if row["gts"] == "2"]
    assert [row["score"] for row in killed] == [0.0, 0.0]
    assert all(row["reward_extra_info"]["reason"].endswith("and was killed") for row in killed)
    assert all(row["score"] >= 1.0 for row in rows if row["gts"] != "2")


def test_dapo_and_a_judge_of_which_one_row_fails(
    workspace: Workspace, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reply(_: JudgeEndpoint, text: str) -> str | int:
        return 500 if "2 + 2" in text else f'I like it.\n{{"score": {len(text) % 7}}}'

    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    (tmp_path / "rubric.txt").write_text("Is the sum right?")
    run = one_step(workspace, engine, "dapo_judged", actor_rollout_ref__rollout__max_failure_rate=0.25)
    buffer = {"enable": "true", "len": 20, "penalty_factor": 0.5, "log": "true"}
    with judging(reply) as endpoint:
        judge = {
            "base_url": endpoint.url,
            "model": "judge-1",
            "rubric_path": tmp_path / "rubric.txt",
            "score_range": "[0,6]",
            "api_key_env": "JUDGE_KEY",
            "retries": 0,
        }
        code, output = finished(
            *("train", str(run.recipe), "reward_model.reward_manager=dapo", "reward_model.combine.judge=0.5"),
            *(f"reward_model.overlong_buffer.{key}={value}" for key, value in buffer.items()),
            *(f"reward_model.judge.{key}={value}" for key, value in judge.items()),
        )
    assert code == 0, output
    assert "sk-secret" not in output
    assert set(endpoint.keys) == {"Bearer sk-secret"}
    rows = run.rollouts(1)
    assert sorted(row["gts"] for row in rows) == ["0", "0", "2", "2", "6", "6"], "4 is left out"
    for row in rows:
        extra = row["reward_extra_info"]
        assert extra["overlong_reward"] <= 0
        assert extra["outcome_score"] == pytest.approx(extra["acc"] + extra["overlong_reward"])
        assert row["score"] == pytest.approx(extra["outcome_score"] + 0.5 * extra["judge_score"])
        assert extra["judge_reply"].startswith("I like it.")
    [metrics] = run.metrics
    assert metrics["rollout/env_error_rate"] == 0.25
    assert {"reward/judge_score/mean", "reward/judge_cached/mean", "reward/overlong_reward/min"} <= metrics.keys()


def test_a_judge_that_is_down_ends_the_run_with_the_cause(workspace: Workspace, engine: str) -> None:
    outage = {"failures": 2, "backoff_s": 0.1, "wait_s": 0.2}
    run = one_step(workspace, engine, "judge_down", actor_rollout_ref__rollout__outage=outage)
    with judging(lambda *_: 503) as endpoint:
        judge = [f"reward_model.judge.base_url={endpoint.url}", "reward_model.judge.rubric=Is it right?"]
        alone = ["reward_model.combine.outcome=0", "reward_model.judge.retries=0"]
        code, output = finished("train", str(run.recipe), *judge, *alone)
    assert code != 0
    assert "trajectories failed, more than actor_rollout_ref.rollout.max_failure_rate" in output
    assert "the judge: " in output
    assert "HTTP 503" in output
    assert "Traceback" not in output
    assert endpoint.bodies
