"""However a run ends, its finished steps are kept, the cause is shown, and a second start goes on from them."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from acting_tracker import At, raising, silent
from runs import Run, Workspace

from agentrl.config import load_config
from agentrl.errors import (
    CheckpointError,
    EngineTimeout,
    EngineUnavailable,
    FailureBudgetError,
    HealthError,
    WorkerError,
)
from agentrl.observability.tracker import Tracker
from agentrl.rollout.manager import AgentLoopManager
from agentrl.rollout.pools.local import LoopThread
from agentrl.testing.scripted_engine import Respond, ScriptedEngine
from agentrl.trainer.checkpoint import LATEST
from agentrl.trainer.ppo import RayPPOTrainer
from agentrl.trainer.processes import RunProcesses
from agentrl.trainer.run import run_training
from agentrl.trainer.saving import Saver
from agentrl.trainer.validation import Validator
from agentrl.workers.optim import AdamW

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
MANY = 1000


def train(run: Run, tracker: Tracker) -> RayPPOTrainer:
    """In this process, and with the run's own trackers."""
    from agentrl.observability.trackers import make_trackers

    config = load_config(run.recipe)
    return run_training(config, [*make_trackers(config.trainer.logger), tracker])


@pytest.fixture
def make(workspace: Workspace, engine: str, request: pytest.FixtureRequest) -> Callable[..., Run]:
    """Recipes over the running engine that save only at their end."""

    def build(**changes: object) -> Run:
        name = "".join(char if char.isalnum() else "_" for char in request.node.name)
        defaults = {
            "actor_rollout_ref__rollout__server__addresses": [engine],
            "trainer__save_freq": MANY,
            "trainer__total_training_steps": MANY,
            "trainer__max_skipped_steps": 3,
        }
        return workspace.run(name, **{**defaults, **changes})

    return build


def saved(run: Run) -> int | None:
    pointer = run.folder / LATEST
    return int(pointer.read_text()) if pointer.is_file() else None


def goes_on(run: Run, step: int) -> None:
    assert saved(run) == step
    run.go_on(step + 1)
    assert sorted(run.steps) == list(range(1, step + 2))


@pytest.mark.parametrize(
    ("stage", "step", "error"),
    [
        ("gen", 2, FailureBudgetError("8 of 8 trajectories failed")),
        ("old_log_prob", 2, RuntimeError("a bug")),
        ("update_weights", 3, EngineTimeout("no engine took the weights")),
        pytest.param("update_weights", 3, CheckpointError("No space left on device"), marks=pytest.mark.slow),
        ("testing", 3, FailureBudgetError("no engine in validation")),
        pytest.param("log", 3, ValueError("a tracker's own fault"), marks=pytest.mark.slow),
        ("gen", 2, SystemExit(7)),
    ],
)
def test_finished_steps_are_saved_whatever_ends_the_run(
    make: Callable[..., Run], workspace: Workspace, stage: str, step: int, error: BaseException
) -> None:
    """The weights of step 3 are complete once they are updated, wherever it fails afterwards."""
    run = make(data__val_files=str(workspace.val), trainer__test_freq=1, trainer__val_before_train=False)
    with pytest.raises(type(error)) as caught:
        train(run, At(3, stage, raising(error)))
    assert caught.value is error
    goes_on(run, step)


def test_an_update_that_fails_leaves_the_last_checkpoint(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its weights are those of no step."""
    run = make(trainer__save_freq=2)
    tracker = At(4, "update_actor", lambda: monkeypatch.setattr(AdamW, "step", raising(WorkerError("out of memory"))))
    with pytest.raises(WorkerError, match="out of memory"):
        train(run, tracker)
    assert "step 3 is not saved: the next update was under way" in caplog.text
    assert "The one of step 2 is untouched" in caplog.text
    monkeypatch.undo()
    goes_on(run, 2)


@pytest.mark.parametrize(
    ("critic", "where", "is_saved"),
    [
        (False, "agentrl.workers.actor_rollout_ref.update_policy", True),
        (True, "agentrl.workers.critic.CriticWorker._update", True),
        (True, "agentrl.workers.actor_rollout_ref.update_policy", False),  # the critic is a step ahead by then
    ],
    ids=["actor", "critic", "actor after the critic"],
)
def test_an_update_that_fails_before_it_changes_a_weight_costs_no_step(
    critic: bool,
    where: str,
    is_saved: bool,
    make: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As when the first pass runs out of memory."""
    estimator = {"algorithm__adv_estimator": "gae"} if critic else {}
    run = make(trainer__save_freq=2, **estimator)
    stage = "update_critic" if critic else "update_actor"
    with pytest.raises(WorkerError, match="out of memory"):
        train(run, At(4, stage, lambda: monkeypatch.setattr(where, raising(WorkerError("out of memory")))))
    assert ("saving step 3 before the run ends" in caplog.text) == is_saved
    assert ("step 3 is not saved: the next update was under way" in caplog.text) == (not is_saved)
    monkeypatch.undo()
    goes_on(run, 3 if is_saved else 2)


def test_steps_that_nobody_wants_saved_are_counted(make: Callable[..., Run], caplog: pytest.LogCaptureFixture) -> None:
    run = make(trainer__save_freq=-1)
    with pytest.raises(FailureBudgetError):
        train(run, At(4, "gen", raising(FailureBudgetError("8 of 8 trajectories failed"))))
    assert "3 finished steps are not saved: trainer.save_freq=-1 asks for no checkpoint" in caplog.text
    assert saved(run) is None
    caplog.clear()
    with pytest.raises(FailureBudgetError):
        train(run, At(1, "gen", raising(FailureBudgetError("8 of 8 trajectories failed"))))
    assert "not saved" not in caplog.text


def test_workers_that_are_dead_or_busy_cannot_save(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error that ends the run is the one that is shown."""
    run = make()
    monkeypatch.setattr(RunProcesses, "wait_until_free", raising(WorkerError("rank 1 of 2 died")))
    with pytest.raises(FailureBudgetError, match="8 of 8"):
        train(run, At(3, "gen", raising(FailureBudgetError("8 of 8 trajectories failed"))))
    assert "step 2 is not saved: rank 1 of 2 died. There is no earlier one" in caplog.text
    assert saved(run) is None


def test_a_tracker_that_fails_is_named_and_hides_no_other_error(
    make: Callable[..., Run], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(At):
        def close(self) -> None:
            raise OSError("cannot close")

    run = make()
    with pytest.raises(ValueError, match="cannot log") as caught:
        train(run, Broken(2, "log", raising(ValueError("cannot log"))))
    assert caught.value.__notes__ == ["raised by the tracker Broken, in log"]
    assert "while the run ends: cannot close" in caplog.text
    assert saved(run) == 2
    with pytest.raises(OSError, match="cannot close"):
        train(make(trainer__total_training_steps=1), Broken(0, "", lambda: None))


def test_a_second_signal_ends_the_run_without_saving(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = make()

    def press_again(*_args: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Saver, "_write", press_again)
    with pytest.raises(KeyboardInterrupt):
        train(run, At(3, "gen", lambda: signal.raise_signal(signal.SIGTERM)))
    assert saved(run) is None
    assert "step 2 is not saved: it was asked to stop at once" in caplog.text


def test_a_first_signal_while_an_error_is_being_saved_waits(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make()
    write = Saver._write

    def press(self: Saver, folder: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        write(self, folder)

    monkeypatch.setattr(Saver, "_write", press)
    with pytest.raises(FailureBudgetError, match="8 of 8"):
        train(run, At(3, "gen", raising(FailureBudgetError("8 of 8 trajectories failed"))))
    monkeypatch.undo()
    goes_on(run, 2)


def test_steps_without_a_finite_gradient_stop_the_run(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One good step between them, and the series starts anew."""
    run = make()
    finite = iter([True, True, False, False, False, False, True, True, *[False] * 100])
    step = AdamW.step

    def maybe(self: AdamW, lr: float) -> tuple[float, bool]:
        if not next(finite):
            for parameter in self.parameters.values():
                if parameter.grad is not None:
                    parameter.grad.fill_(torch.nan)
        return step(self, lr)

    monkeypatch.setattr(AdamW, "step", maybe)
    tracker = silent()
    with pytest.raises(
        HealthError, match=r"the last 3 steps changed no weight.*max_skipped_steps.*not finite"
    ) as caught:
        train(run, tracker)
    assert caught.value.exit_code == 3
    assert [row["training/skipped_steps"] for row in tracker.metrics] == [0, 1, 2, 0, 1, 2, 3]
    assert saved(run) == 7


def test_steps_without_variance_stop_the_run(make: Callable[..., Run], workspace: Workspace) -> None:
    score = workspace.folder / "always_the_same.py"
    score.write_text("def compute_score(**kwargs):\n    return 1.0\n")
    run = make(custom_reward_function__path=str(score), algorithm__filter_zero_variance_groups=True)
    with pytest.raises(HealthError, match=r"the last 3 steps changed no weight.*filter_zero_variance_groups"):
        train(run, silent())
    assert saved(run) == 3


@pytest.fixture
def serve() -> Iterator[Callable[[Respond], ScriptedEngine]]:
    """Starts scripted engines, in a thread of their own."""
    thread, engines = LoopThread("scripted-engines"), []

    def serve(respond: Respond) -> ScriptedEngine:
        engines.append(ScriptedEngine(respond))
        thread.submit(engines[-1].start()).result(10)
        return engines[-1]

    yield serve
    for engine in engines:
        thread.submit(engine.stop()).result(10)
    thread.stop()


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_a_model_that_says_nothing_stops_the_run(
    make: Callable[..., Run], serve: Callable[[Respond], ScriptedEngine], estimator: str
) -> None:
    changes = {"actor_rollout_ref__rollout__server__addresses": [serve(lambda payload: ([], "stop")).address]}
    run = make(**changes, algorithm__adv_estimator=estimator)
    tracker = silent()
    with pytest.raises(HealthError, match=r"the last 3 steps changed no weight.*every first generation is empty"):
        train(run, tracker)
    assert all(row["rollout/stop_reason/empty"] == 1 for row in tracker.metrics)
    (record, *_) = run.rollouts(1)
    assert (record["response_ids"], record["stop_reason"]) == ([], "empty")


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_empty_and_other_trajectories_train_together(
    make: Callable[..., Run], serve: Callable[[Respond], ScriptedEngine], estimator: str
) -> None:
    answers = iter(range(MANY))
    scripted = serve(lambda payload: ([] if next(answers) % 3 == 0 else [70, 71, 72], "stop"))
    run = make(
        actor_rollout_ref__rollout__server__addresses=[scripted.address],
        trainer__total_training_steps=2,
        algorithm__adv_estimator=estimator,
    )
    train(run, silent())
    assert all(0 < row["rollout/stop_reason/empty"] < 1 for row in run.metrics)
    assert all(row["actor/optimizer_steps"] and row["training/skipped_steps"] == 0 for row in run.metrics)


def test_trajectories_without_a_trained_token_stop_the_run(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentrl.rollout.worker import AgentLoopWorker

    run = make()
    monkeypatch.setattr(AgentLoopWorker, "_keep_trainable", lambda *_: False)
    with pytest.raises(HealthError, match=r"the last 3 steps changed no weight.*excludes every token"):
        train(run, silent())
    assert run.metrics[-1]["rollout/untrainable"] == 8


def own_engines() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [c for c in children if c.cmdline()[1:3] == ["-m", "agentrl.inference.embedded"]]


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["gen", "update_actor"])
def test_an_engine_that_hangs_beside_a_healthy_one(
    make: Callable[..., Run], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """It is killed and started again; the run goes on meanwhile, and uses it once it has the weights."""
    caplog.set_level(logging.WARNING)
    strangers = own_engines()
    run = make(
        actor_rollout_ref__rollout__server__addresses=None,
        actor_rollout_ref__rollout__server__launch=2,
        actor_rollout_ref__rollout__server__request_timeout_s=6,
    )
    in_use: list[int] = []
    set_addresses = AgentLoopManager.set_addresses

    def tell(self: AgentLoopManager, addresses: list[str]) -> None:
        in_use.append(len(addresses))
        set_addresses(self, addresses)
        if in_use[-2:] == [1, 2]:
            raise KeyboardInterrupt

    monkeypatch.setattr(AgentLoopManager, "set_addresses", tell)

    def hang() -> None:
        next(p for p in own_engines() if p not in strangers).suspend()

    with pytest.raises(KeyboardInterrupt):
        train(run, At(2, stage, hang))
    assert "gives no answer to its health check" in caplog.text
    assert in_use[-2:] == [1, 2]
    assert [p for p in own_engines() if p not in strangers] == []
    assert max(run.steps) > 2
    assert all(row["training/rollout_probs_diff_max"] < 1e-5 for row in run.metrics)


def test_engines_given_by_address_are_left_out_while_they_hang(
    make: Callable[..., Run], serve: Callable[[Respond], ScriptedEngine]
) -> None:
    first, second = (serve(lambda payload: ([70, 71, 72], "stop")) for _ in range(2))
    run = make(
        actor_rollout_ref__rollout__server__addresses=[first.address, second.address],
        actor_rollout_ref__rollout__server__request_timeout_s=8,
        actor_rollout_ref__rollout__server__retries=0,
    )
    asked: dict[int, int] = {}

    class Hangs(At):
        """The first engine hangs in steps 2 and 3, both do from step 6 on."""

        def on_stage(self, step: int, stage: str) -> None:
            if stage == "gen" and step not in asked:
                asked[step] = len(first.requests)
                first.healthy, second.healthy = step not in (2, 3) and step < 6, step < 6
                first.faults.clear()
                first.faults.extend(["hang"] * 100 if step in (2, 3) else [])

    with pytest.raises(EngineUnavailable, match="no engine answers its health check") as caught:
        train(run, Hangs(0, "", lambda: None))
    assert first.address in str(caught.value)
    assert second.address in str(caught.value)
    assert asked[4] == asked[3] > asked[2], "it is not asked again before it has the weights"
    assert asked[6] > asked[5] == asked[4]
    assert saved(run) == 6


def test_validation_and_rows_that_fail_keep_finished_steps(
    make: Callable[..., Run], workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentrl.data.loader import StatefulLoader

    run = make(data__val_files=str(workspace.val), trainer__test_freq=2, trainer__val_before_train=False)
    with monkeypatch.context() as patch:
        patch.setattr(Validator, "run", raising(OSError(28, "No space left on device", "rollouts")))
        with pytest.raises(OSError, match="No space left"):
            train(run, silent())
    assert saved(run) == 2
    load = StatefulLoader.next_batch
    with monkeypatch.context() as patch:
        outcomes = iter([load, raising(OSError("gone"))])
        patch.setattr(StatefulLoader, "next_batch", lambda self: next(outcomes)(self))
        with pytest.raises(OSError, match="gone"):
            train(run, silent())
    goes_on(run, 3)
