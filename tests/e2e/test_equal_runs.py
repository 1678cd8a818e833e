"""Deterministic mode: the same numbers on Ray and in process, on one rank and on two, interrupted and not."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from runs import Run, Workspace, finished, same, started, wait_for_steps

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
KEPT = ("input", "output", "score", "response_ids", "response_mask", "rollout_log_probs", "weight_versions", "uid")
STEPS = 4


def samples(run: Run, step: int) -> list[dict[str, Any]]:
    return [{name: row[name] for name in KEPT} for row in run.rollouts(step)]


@pytest.fixture(scope="module")
def plain(workspace: Workspace) -> Run:
    """Four steps in process, never interrupted."""
    return complete(workspace.run("plain", **SETTINGS))


def complete(run: Run) -> Run:
    code, output = finished("train", str(run.recipe))
    assert code == 0, output
    assert sorted(run.steps) == list(range(1, STEPS + 1))
    assert any(row["actor/grad_norm"] > 0 for row in run.metrics)
    return run


SETTINGS: dict[str, Any] = {
    "trainer__deterministic": True,
    "trainer__total_training_steps": STEPS,
    "trainer__save_freq": 2,
    "data__train_batch_size": 3,
}
"""Eight rows in batches of three: the third step starts the second epoch."""


@pytest.mark.slow
def test_ray_and_local_give_the_same_numbers(workspace: Workspace, plain: Run) -> None:
    ray = complete(workspace.run("ray", trainer__backend="ray", **SETTINGS))
    for step in plain.steps:
        assert samples(ray, step) == samples(plain, step)
        same(plain.steps[step], ray.steps[step], 0.0)


@pytest.mark.slow
def test_two_ranks_give_the_numbers_of_one(workspace: Workspace, plain: Run, engine: str) -> None:
    changes = {"trainer__n_gpus_per_node": 2, "actor_rollout_ref__rollout__server__addresses": [engine]}
    double = complete(workspace.run("double", trainer__backend="ray", **SETTINGS, **changes))
    for step in plain.steps:
        assert [row["response_ids"] for row in samples(double, step)] == [
            row["response_ids"] for row in samples(plain, step)
        ]
        left, right = ({k: v for k, v in run.steps[step].items() if "seqlen" not in k} for run in (plain, double))
        same(left, right, 1e-4)


@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_killed_in_step_3_and_resumed_is_as_if_nothing_happened(workspace: Workspace, plain: Run, backend: str) -> None:
    run = workspace.run(f"killed_{backend}", trainer__backend=backend, **SETTINGS)
    with started("train", str(run.recipe)) as process:
        wait_for_steps(run, 2, process)
        process.send(signal.SIGKILL)
        assert process.finish()[0] == -signal.SIGKILL
    (run.folder / ".part_global_step_4").mkdir()
    assert sorted(run.steps) == [1, 2]
    complete(run)
    assert not list(run.folder.glob(".part_*"))
    for step in plain.steps:
        assert samples(run, step) == samples(plain, step)
        same(plain.steps[step], run.steps[step], 0.0)
