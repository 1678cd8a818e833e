"""The circuit breaker: what an outage is, who waits, who tries, and that waiting ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rollout_helpers import ANSWER, MakeEngine, batch_of, sample
from test_faults import MakeManager, survivors_and_failures

from agentrl.config.root import RunConfig
from agentrl.errors import FailureBudgetError, ServiceDownError
from agentrl.rollout.service_gate import ENGINE, ServiceGate, interaction_service, tool_service

SEARCH = tool_service("search")


def down(gate: ServiceGate, service: str = SEARCH, failures: int = 3) -> None:
    for _ in range(failures):
        gate.failed(service, time.monotonic(), "503")


def make(wait_s: float = 5.0, engine_wait_s: float = 5.0) -> ServiceGate:
    return ServiceGate(failures=3, backoff_s=0.05, wait_s=wait_s, engine_wait_s=engine_wait_s)


async def test_failures_in_a_row_close_the_gate_for_those_who_need_the_service() -> None:
    gate = make()
    down(gate, failures=2)
    assert gate.enter([SEARCH], "a")
    down(gate, failures=1)
    assert not gate.enter([SEARCH], "a")
    assert gate.enter([ENGINE, tool_service("calculator")], "b")


async def test_calls_that_hang_beside_others_that_work_are_no_outage() -> None:
    gate = make()
    started = time.monotonic()
    gate.succeeded(SEARCH)
    for _ in range(100):
        gate.failed(SEARCH, started, "took longer than 1 s")
    assert gate.enter([SEARCH], "a")


async def test_one_tries_and_its_success_lets_all_others_go() -> None:
    gate = make()
    began = time.monotonic()
    down(gate)
    entered: list[int] = []

    async def run(number: int) -> None:
        while not gate.enter([SEARCH], number):
            await gate.wait([SEARCH])
        entered.append(number)
        if len(entered) == 1:
            await asyncio.sleep(0.05)
            assert len(entered) == 1
            gate.succeeded(SEARCH)

    await asyncio.gather(*(run(number) for number in range(50)))
    assert time.monotonic() - began >= 0.1
    assert sorted(entered) == list(range(50))


async def test_a_try_that_fails_doubles_the_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("agentrl.rollout.service_gate.time", SimpleNamespace(monotonic=lambda: now))
    gate = make()
    for _ in range(3):
        gate.failed(SEARCH, now, "503")
    for backoff_s in (0.05, 0.1, 0.2, 0.4):
        gate.failed(SEARCH, 0.0, "of a trajectory that began before the outage")
        now += backoff_s - 0.001
        assert not gate.enter([SEARCH], "early")
        now += 0.002
        assert gate.enter([SEARCH], "try")
        assert not gate.enter([SEARCH], "other")
        gate.failed(SEARCH, now, "503")


async def test_one_that_never_calls_leaves_the_try_to_the_next() -> None:
    gate = make()
    down(gate)
    await gate.wait([SEARCH])
    assert gate.enter([SEARCH], "quiet")
    waiting = asyncio.create_task(gate.wait([SEARCH]))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    gate.leave("quiet")
    await asyncio.wait_for(waiting, 1)
    assert gate.enter([SEARCH], "next")


async def test_waiting_ends() -> None:
    gate = make(wait_s=0.2, engine_wait_s=0.0)
    down(gate, ENGINE)
    with pytest.raises(ServiceDownError, match="the engine is down: 503"):
        await gate.wait([ENGINE, SEARCH])
    down(gate)
    await gate.wait([SEARCH])
    assert gate.enter([SEARCH], "stuck")
    with pytest.raises(ServiceDownError, match=r"not started, tool 'search' is down: 503"):
        await gate.wait([SEARCH])
    gate.forget()
    await gate.wait([ENGINE, SEARCH])
    assert gate.enter([ENGINE, SEARCH], "a")


async def test_zero_failures_means_never() -> None:
    gate = ServiceGate(failures=0, backoff_s=1, wait_s=1, engine_wait_s=1)
    down(gate, failures=100)
    assert gate.enter([SEARCH], "a")


PLUGINS = """
import time

from agentrl.errors import ToolServiceError
from agentrl.interfaces import BaseInteraction, BaseTool
from agentrl.types import InteractionResponse, ToolResponse

CALLS = []
BACK_AT = [None]

def ask():
    CALLS.append(time.monotonic())
    if BACK_AT[0] is None or time.monotonic() < BACK_AT[0]:
        raise ToolServiceError("503")

class Service(BaseTool):
    @classmethod
    def default_schema(cls):
        return {"type": "function", "function": {"name": "calculator", "description": "", "parameters": {}}}

    async def execute(self, arguments, **kwargs):
        ask()
        return ToolResponse("7")

class Judge(BaseInteraction):
    async def generate_response(self, messages):
        ask()
        return InteractionResponse(True, "thanks", 1.0)

def compute_score(extra_info, **kwargs):
    if extra_info["index"] % 2:
        return {"score": 0.0, "service_used": False}
    ask()
    return 0.5
"""


@pytest.fixture
def service(config: RunConfig, tmp_path: Path) -> Callable[[], Any]:
    """A tool and an interaction over a service that comes back at `BACK_AT`; four trajectories run at a time."""
    file = tmp_path / "service.py"
    file.write_text(PLUGINS)
    rollout = config.actor_rollout_ref.rollout
    (tmp_path / "tools.yaml").write_text(f"tools:\n  - class_name: {file}:Service\n")
    (tmp_path / "talk.yaml").write_text(f"interaction:\n  - class_name: {file}:Judge\n")
    rollout.multi_turn.tool_config_path = str(tmp_path / "tools.yaml")
    rollout.multi_turn.interaction_config_path = str(tmp_path / "talk.yaml")
    rollout.agent.max_in_flight = 4
    rollout.outage.failures = 4
    rollout.outage.backoff_s = 0.2

    def module() -> Any:
        from agentrl.plugins import load_file

        return load_file(file)

    return module


@pytest.mark.parametrize("refill", [False, True])
def test_an_outage_costs_the_trajectories_under_way_and_no_more(
    config: RunConfig, service: Any, make_engine: MakeEngine, make_manager: MakeManager, refill: bool
) -> None:
    config.actor_rollout_ref.rollout.refill = refill
    manager = make_manager(make_engine().address)
    service().BACK_AT[0] = time.monotonic() + 0.5
    out = manager.generate_sequences(batch_of([sample(i) for i in range(40)]))
    rows, failures = survivors_and_failures(out)
    assert len(failures) <= (0 if refill else 8)
    assert all("503" in error for _, error in failures.values())
    metrics = out.meta_info["metrics"]
    assert metrics["rollout/held_back"] >= 1
    assert 0.2 < metrics["rollout/outage_s"] < 5
    assert (metrics["rollout/refilled"] > 0) is refill
    assert set(rows) | set(failures) == set(range(40))


def test_an_interaction_is_a_service_too(
    config: RunConfig, service: Any, make_engine: MakeEngine, make_manager: MakeManager, play: Any
) -> None:
    manager = make_manager(make_engine(play("It is #### 7")).address)
    service().BACK_AT[0] = time.monotonic() + 0.5
    talk = {"interaction_kwargs": {"name": "judge"}}
    out = manager.generate_sequences(batch_of([sample(i, **talk) for i in range(20)]))
    assert len(out) >= 12
    assert out.meta_info["metrics"]["rollout/held_back"] >= 1
    assert interaction_service("judge") == "interaction 'judge'"


def test_an_interaction_that_hangs_is_an_outage(
    config: RunConfig, service: Any, make_engine: MakeEngine, make_manager: MakeManager, play: Any, tmp_path: Path
) -> None:
    file = tmp_path / "hangs.py"
    file.write_text(
        "import asyncio\nfrom agentrl.interfaces import BaseInteraction\n\n"
        "class Judge(BaseInteraction):\n"
        "    async def generate_response(self, messages):\n        await asyncio.sleep(60)\n"
    )
    rollout = config.actor_rollout_ref.rollout
    (tmp_path / "talk.yaml").write_text(f"interaction:\n  - class_name: {file}:Judge\n")
    rollout.multi_turn.tool_timeout_s, rollout.outage.wait_s = 0.2, 0.3
    rollout.outage.failures, rollout.agent.max_in_flight = 2, 1
    rows = [sample(i, interaction_kwargs={"name": "judge"}) for i in range(9)]
    said = r"interaction 'judge': generate_response took longer than 0\.2 s"
    with pytest.raises(FailureBudgetError, match=rf"(?s)interaction 'judge' is down: {said}"):
        make_manager(make_engine(play(ANSWER)).address).generate_sequences(batch_of(rows))


def test_the_service_of_a_score_is_one_too(
    config: RunConfig, service: Any, make_engine: MakeEngine, make_manager: MakeManager, play: Any
) -> None:
    config.custom_reward_function.path = service().__file__
    manager = make_manager(make_engine(play("It is #### 7")).address)
    service().BACK_AT[0] = time.monotonic() + 0.5
    out = manager.generate_sequences(batch_of([sample(i) for i in range(20)]))
    _, failures = survivors_and_failures(out)
    assert len(failures) <= 8
    assert all(error.startswith("ToolServiceError: 503") for _, error in failures.values())
    assert all(key % 2 == 0 for key in failures)
    assert out.meta_info["metrics"]["rollout/held_back"] >= 1


def test_a_service_that_stays_down_ends_the_step(
    config: RunConfig, service: Any, make_engine: MakeEngine, make_manager: MakeManager
) -> None:
    config.actor_rollout_ref.rollout.outage.wait_s = 0.5
    manager = make_manager(make_engine().address)
    began = time.monotonic()
    with pytest.raises(FailureBudgetError, match=r"ServiceDownError: not started, tool 'calculator' is down: 503"):
        manager.generate_sequences(batch_of([sample(i) for i in range(200)]))
    assert time.monotonic() - began < 5
    assert len(service().CALLS) < 20


def test_a_bug_in_a_tool_is_no_outage(
    config: RunConfig, tmp_path: Path, make_engine: MakeEngine, make_manager: MakeManager
) -> None:
    file = tmp_path / "buggy.py"
    file.write_text("def calculator(expression: str):\n    '''Add.'''\n    return 1 / 0\n")
    (tmp_path / "tools.yaml").write_text(f"tools:\n  - class_name: {file}:calculator\n")
    rollout = config.actor_rollout_ref.rollout
    rollout.multi_turn.tool_config_path = str(tmp_path / "tools.yaml")
    rollout.outage.failures, rollout.agent.max_in_flight = 2, 2
    with pytest.raises(FailureBudgetError, match=r"20 x env_error: ToolServiceError.*ZeroDivisionError"):
        make_manager(make_engine().address).generate_sequences(batch_of([sample(i) for i in range(20)]))


def test_engines_of_the_run_are_not_waited_for(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager
) -> None:
    """The trainer starts them again once the step has failed."""
    rollout = config.actor_rollout_ref.rollout
    rollout.outage.failures, rollout.agent.max_in_flight = 2, 2
    engine = make_engine()
    manager = make_manager(engine.address)
    engine.engine.healthy = False
    engine.engine.faults.extend(["500"] * 1000)
    began = time.monotonic()
    with pytest.raises(FailureBudgetError, match="the engine is down"):
        manager.generate_sequences(batch_of([sample(i) for i in range(50)]))
    assert time.monotonic() - began < 10
    engine.engine.healthy = True
    engine.engine.faults.clear()
    assert len(manager.generate_sequences(batch_of([sample(i) for i in range(10)]))) == 10


def test_an_engine_that_hangs_opens_the_gate(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager
) -> None:
    """Its health check passes: only the turn's deadline shows that it hangs, and it must reach the gate."""
    rollout = config.actor_rollout_ref.rollout
    rollout.outage.failures, rollout.agent.max_in_flight = 3, 1
    rollout.multi_turn.turn_timeout_s = 0.2
    engine = make_engine()
    engine.engine.faults.extend(["hang"] * 1000)
    with pytest.raises(FailureBudgetError) as caught:
        make_manager(engine.address).generate_sequences(batch_of([sample(i) for i in range(20)]))
    said = f"{engine.address} gave no answer within 0.2 s"
    assert f"3 x timeout: EngineTimeout: {said}" in str(caught.value)
    assert f"17 x env_error: ServiceDownError: not started, the engine is down: {said}" in str(caught.value)
    assert len(engine.requests) == 3
    asked = [request["rid"] for request in engine.requests]
    assert engine.engine.aborted[:2] == asked[:2]
