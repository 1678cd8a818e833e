"""What fails around the model ends one trajectory with its cause, never the step, and never as a reward of 0 (R9)."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollout_helpers import ANSWER, CALL, MakeEngine, batch_of, sample

from agentrl.config.root import RunConfig
from agentrl.errors import FailureBudgetError
from agentrl.rollout.manager import AgentLoopManager
from agentrl.testing.scripted_engine import Respond

MakeManager = Callable[..., AgentLoopManager]
POISON = "poison"


@pytest.fixture
def play_with_poison(play: Callable[..., Respond], tokenizer: Any) -> Callable[..., Respond]:
    """As `play`, but the conversation about poison gets what `bad` gives."""
    mark = tokenizer.encode(POISON, add_special_tokens=False)

    def make(bad: Respond) -> Respond:
        good = play(CALL, ANSWER)

        def respond(payload: dict[str, Any]) -> tuple[list[int], str]:
            ids = payload["input_ids"]
            poisoned = any(ids[i : i + len(mark)] == mark for i in range(len(ids)))
            return bad(payload) if poisoned else good(payload)

        return respond

    return make


def survivors_and_failures(out: Any) -> tuple[list[int], dict[int, tuple[str, str]]]:
    failures = {f["row"]: (f["stop_reason"], f["error"]) for f in out.meta_info["failures"]}
    return list(out.non_tensor_batch["row"]), failures


ROWS = [sample(0), sample(1, POISON), sample(2), sample(3)]


def raises(payload: dict[str, Any]) -> tuple[list[int], str]:
    raise RuntimeError("the engine breaks on this one")  # the server answers 500


@pytest.mark.parametrize(
    ("bad", "reason", "says"),
    [
        (raises, "env_error", "500"),
        (lambda p: ([5, 6], "abort"), "aborted", "aborted"),
        (lambda p: ([5] * 600, "stop"), "env_error", "sampled 600 tokens, but only 512 were left"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_broken_trajectory_never_disturbs_others(
    make_engine: MakeEngine, make_manager: MakeManager, play_with_poison: Any, bad: Respond, reason: str, says: str
) -> None:
    engine = make_engine(play_with_poison(bad))
    out = make_manager(engine.address).generate_sequences(batch_of(ROWS))
    rows, failures = survivors_and_failures(out)
    assert rows == [0, 2, 3]
    assert list(out.non_tensor_batch["score"]) == [1.0] * 3
    assert list(failures) == [1]
    assert failures[1][0] == reason
    assert says in failures[1][1]
    assert out.meta_info["metrics"]["rollout/env_error_rate"] == 0.25
    assert out.meta_info["metrics"][f"rollout/stop_reason/{reason}"] == 0.25


def test_sampled_ids_outside_the_vocabulary_go_no_further(
    make_engine: MakeEngine, make_manager: MakeManager, play_with_poison: Any, encode: Any
) -> None:
    """An engine of another model: its ids would kill a real engine in the next turn."""
    engine = make_engine(play_with_poison(lambda p: ([*encode(CALL)[:-1], 10**6, *encode("")], "stop")))
    out = make_manager(engine.address).generate_sequences(batch_of(ROWS))
    rows, failures = survivors_and_failures(out)
    assert rows == [0, 2, 3]
    assert all(max(request["input_ids"]) < 10**6 for request in engine.requests)
    assert "1000000" in failures[1][1]


def test_a_slow_generation_times_out_alone(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager
) -> None:
    config.actor_rollout_ref.rollout.multi_turn.turn_timeout_s = 0.5
    engine = make_engine()
    engine.engine.faults.extend(["ok", "hang"])
    start = time.perf_counter()
    rows, failures = survivors_and_failures(make_manager(engine.address).generate_sequences(batch_of(ROWS)))
    assert time.perf_counter() - start < 5
    assert len(rows) == 3
    ((reason, error),) = failures.values()
    assert (reason, "0.5 s" in error) == ("timeout", True)


def test_the_deadline_of_a_trajectory(config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager) -> None:
    config.actor_rollout_ref.rollout.multi_turn.trajectory_timeout_s = 0.5
    engine = make_engine()
    engine.engine.faults.append("hang")
    rows, failures = survivors_and_failures(make_manager(engine.address).generate_sequences(batch_of(ROWS)))
    assert len(rows) == 3
    ((reason, error),) = failures.values()
    assert reason == "timeout"
    assert re.fullmatch(
        rf"TimeoutError: the trajectory's deadline passed while turn \d waited for {engine.address} \(0\.\d s\)", error
    )


def test_an_engine_that_hangs_until_the_deadline_of_trajectories_is_an_outage(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager
) -> None:
    """With a trajectory's deadline below that of a turn, no turn ever reaches its own."""
    rollout = config.actor_rollout_ref.rollout
    rollout.multi_turn.trajectory_timeout_s, rollout.multi_turn.turn_timeout_s = 0.3, 60.0
    rollout.outage.failures, rollout.agent.max_in_flight = 3, 1
    engine = make_engine()
    engine.engine.faults.extend(["hang"] * 20)
    with pytest.raises(FailureBudgetError, match="not started, the engine is down") as caught:
        make_manager(engine.address).generate_sequences(batch_of([sample(i) for i in range(8)]))
    assert engine.address in str(caught.value)
    assert len(engine.requests) == 3
    end = time.perf_counter() + 5
    while len(engine.engine.aborted) < 3 and time.perf_counter() < end:
        time.sleep(0.02)
    assert len(engine.engine.aborted) == 3


def test_lost_answers_are_drawn_again(config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager) -> None:
    config.actor_rollout_ref.rollout.server.retries = 2
    engine = make_engine()
    engine.engine.faults.extend(["500", "ok", "drop", "cut", "503"])
    out = make_manager(engine.address).generate_sequences(batch_of(ROWS))
    assert len(out) == 4
    assert list(out.non_tensor_batch["score"]) == [1.0] * 4


def test_an_engine_killed_in_a_step_stops_it_with_the_cause(
    make_engine: MakeEngine, make_manager: MakeManager, play: Any
) -> None:
    engine = make_engine()
    answers = play(CALL, ANSWER)

    def respond(payload: dict[str, Any]) -> tuple[list[int], str]:
        if len(engine.requests) == 5:
            engine.stop_soon()
        return answers(payload)

    engine.engine.respond = respond
    start = time.perf_counter()
    with pytest.raises(FailureBudgetError, match="no engine is left") as caught:
        make_manager(engine.address).generate_sequences(batch_of([sample(i) for i in range(16)]))
    assert time.perf_counter() - start < 20
    assert engine.address in str(caught.value)
    assert "max_failure_rate" in str(caught.value)
    assert caught.value.exit_code == 3


def test_with_two_engines_one_may_die_in_a_step(make_engine: MakeEngine, make_manager: MakeManager, play: Any) -> None:
    first, second = make_engine(), make_engine()
    answers = play(CALL, ANSWER)

    def respond(payload: dict[str, Any]) -> tuple[list[int], str]:
        if len(first.requests) == 5:
            first.stop_soon()
        return answers(payload)

    first.engine.respond = respond
    out = make_manager(first.address, second.address).generate_sequences(batch_of([sample(i) for i in range(32)]))
    assert list(out.non_tensor_batch["row"]) == list(range(32))
    assert list(out.non_tensor_batch["score"]) == [1.0] * 32


def test_after_a_failed_step_the_manager_goes_on(make_engine: MakeEngine, make_manager: MakeManager) -> None:
    engine = make_engine()
    manager = make_manager(engine.address)
    engine.stop()
    with pytest.raises(FailureBudgetError):
        manager.generate_sequences(batch_of(ROWS))
    engine.start()
    assert len(manager.generate_sequences(batch_of(ROWS))) == 4
    engine.stop()
    other = make_engine()
    manager.set_addresses([other.address])
    assert len(manager.generate_sequences(batch_of(ROWS))) == 4


def test_the_failure_budget(config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager) -> None:
    engine = make_engine()
    manager = make_manager(engine.address)
    config.actor_rollout_ref.rollout.max_failure_rate = 0.25
    engine.engine.faults.append("500")
    assert len(manager.generate_sequences(batch_of(ROWS))) == 3
    engine.engine.faults.extend(["500", "500"])
    with pytest.raises(FailureBudgetError, match=r"2 of 4 trajectories failed.*\n  2 x env_error: EngineUnavailable"):
        manager.generate_sequences(batch_of(ROWS))
    config.actor_rollout_ref.rollout.max_failure_rate = 1.0
    engine.engine.faults.extend(["500"] * 4)
    with pytest.raises(FailureBudgetError, match="4 of 4"):
        manager.generate_sequences(batch_of(ROWS))


def write_score(folder: Path, body: str) -> str:
    file = folder / "score.py"
    file.write_text(
        f"import time\ndef compute_score(data_source, solution_str, ground_truth, extra_info=None):\n{body}\n"
    )
    return str(file)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("    return 1 / (extra_info['index'] - 1)", "ZeroDivisionError"),
        ("    return float('nan') if extra_info['index'] == 1 else 1.0", "nan"),
        ("    return None if extra_info['index'] == 1 else 1.0", "None"),
        ("    if extra_info['index'] == 1: time.sleep(60)\n    return 1.0", "took over 0.3 s"),
    ],
)
def test_a_score_that_fails_is_never_a_zero(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, tmp_path: Path, body: str, says: str
) -> None:
    config.custom_reward_function.path = write_score(tmp_path, body)
    config.reward_model.timeout_s = 0.3
    engine = make_engine()
    rows, failures = survivors_and_failures(make_manager(engine.address).generate_sequences(batch_of(ROWS)))
    assert rows == [0, 2, 3]
    assert failures[1][0] == "env_error"
    assert failures[1][1].startswith("RewardError")
    assert says in failures[1][1]


PLUGINS = """
import asyncio
from agentrl.interfaces import BaseInteraction, BaseTool
from agentrl.types import InteractionResponse, ToolResponse

EVENTS = []

class Touchy(BaseTool):
    @classmethod
    def default_schema(cls):
        return {"type": "function", "function": {"name": "calculator", "description": "", "parameters": {}}}

    async def create(self, mode="good"):
        self.mode = mode
        EVENTS.append(("create", mode))
        if mode == "create":
            raise OSError("no session")

    async def execute(self, arguments, **kwargs):
        if self.mode == "execute":
            raise OSError("service gone")
        if self.mode == "hang":
            await asyncio.sleep(60)
        return ToolResponse("7")

    async def release(self, **kwargs):
        EVENTS.append(("release", self.mode))
        if self.mode == "release":
            raise OSError("cannot let go")

class Other(BaseInteraction):
    async def start_interaction(self, mode="good", **kwargs):
        self.mode = mode
        EVENTS.append(("start", mode, kwargs))
        if mode == "start":
            raise OSError("nobody there")

    async def generate_response(self, messages):
        if self.mode == "talk":
            raise OSError("walked away")
        return InteractionResponse(True, "thanks", 1.0)

    async def finalize_interaction(self):
        EVENTS.append(("finalize", self.mode))
        if self.mode == "finalize":
            raise OSError("slammed the door")
"""


@pytest.fixture
def plugins(config: RunConfig, tmp_path: Path) -> Callable[[], list[Any]]:
    """Tools and interactions that fail as their row asks; gives what happened to them."""
    file = tmp_path / "touchy.py"
    file.write_text(PLUGINS)
    turns = config.actor_rollout_ref.rollout.multi_turn
    (tmp_path / "tools.yaml").write_text(f"tools:\n  - class_name: {file}:Touchy\n")
    (tmp_path / "talk.yaml").write_text(f"interaction:\n  - name: other\n    class_name: {file}:Other\n")
    turns.tool_config_path, turns.interaction_config_path = str(tmp_path / "tools.yaml"), str(tmp_path / "talk.yaml")
    turns.tool_timeout_s = 0.5

    def events() -> list[Any]:
        from agentrl.plugins import load_file

        return list(load_file(file).EVENTS)

    return events


@pytest.mark.parametrize(("mode", "says"), [("create", "no session"), ("execute", "service gone"), ("hang", "0.5 s")])
def test_a_tool_that_fails_ends_its_trajectory_and_is_released(
    plugins: Any, make_engine: MakeEngine, make_manager: MakeManager, mode: str, says: str
) -> None:
    rows = [sample(0), sample(1, tools_kwargs={"calculator": {"create_kwargs": {"mode": mode}}}), sample(2)]
    rows_left, failures = survivors_and_failures(make_manager(make_engine().address).generate_sequences(batch_of(rows)))
    assert rows_left == [0, 2]
    assert failures[1][0] == "env_error"
    assert failures[1][1].startswith("ToolServiceError")
    assert says in failures[1][1]
    assert sorted(plugins()) == sorted((what, who) for what in ("create", "release") for who in ("good", mode, "good"))


def test_a_tool_that_cannot_be_released_costs_nothing(
    plugins: Any, make_engine: MakeEngine, make_manager: MakeManager
) -> None:
    rows = [sample(0, tools_kwargs={"calculator": {"create_kwargs": {"mode": "release"}}})]
    assert len(make_manager(make_engine().address).generate_sequences(batch_of(rows))) == 1


@pytest.mark.parametrize(("mode", "says"), [("start", "nobody there"), ("talk", "walked away")])
def test_an_interaction_that_fails_ends_its_trajectory_and_is_finalized(
    plugins: Any, make_engine: MakeEngine, make_manager: MakeManager, mode: str, says: str
) -> None:
    def talk(mode: str) -> dict[str, Any]:
        return {"interaction_kwargs": {"name": "other", "mode": mode, "query": "q"}}

    rows = [sample(0, **talk("good")), sample(1, **talk(mode)), sample(2, **talk("finalize"))]
    out = make_manager(make_engine().address).generate_sequences(batch_of(rows))
    rows_left, failures = survivors_and_failures(out)
    assert rows_left == [0, 2]
    assert list(out.non_tensor_batch["stop_reason"]) == ["interaction_done"] * 2
    assert failures[1][0] == "env_error"
    assert says in failures[1][1]
    events = plugins()
    assert ("start", "good", {"query": "q"}) in events
    assert {event[1] for event in events if event[0] == "finalize"} == {"good", mode, "finalize"}


def test_ctrl_c_ends_the_step_and_leaves_no_thread(config: RunConfig, make_engine: MakeEngine, plugins: Any) -> None:
    engine = make_engine()
    engine.engine.faults.extend(["hang"] * 4)
    manager = AgentLoopManager(config, [engine.address])

    def interrupt() -> None:
        while len(engine.requests) < 4:
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    start = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        manager.generate_sequences(batch_of(ROWS))
    manager.shutdown()
    assert time.perf_counter() - start < 10  # the engine hangs for longer
    manager.shutdown()
    assert [event[0] for event in plugins()].count("release") == 4
    assert not [thread for thread in threading.enumerate() if thread.name == "agentrl-rollout"]
