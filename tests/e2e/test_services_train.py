"""The `search` and `python` tools train over the two running services; a service that dies is never a wrong answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from runs import Run, Workspace, write_rows
from service_process import Service, serve

from agentrl.errors import FailureBudgetError
from agentrl.rollout.pools.local import LoopThread
from agentrl.testing.models import byte_tokenizer
from agentrl.testing.scripted_engine import ScriptedEngine
from agentrl.trainer.run import run_training

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

Services = dict[str, Service]
Hook = Callable[[int, int], None]
"""Called with the number of trajectories that began and the turn that is asked for."""
StartEngine = Callable[..., str]
SEARCH = '<tool_call>\n{"name": "search", "arguments": {"query_list": ["capital of Australia"]}}\n</tool_call>'
PYTHON = '<tool_call>\n{"name": "python", "arguments": {"code": "print(6 * 7)"}}\n</tool_call>'
TURNS = (SEARCH, PYTHON, "Canberra, 42")
CODE = ("```python\nprint(int(input()) ** 2)\n```\nIt squares",)
SQUARES = {"inputs": ["2", "3"], "outputs": ["4", "9"]}
SCORE = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return extra_info["num_tool_calls"] + len(solution_str) / 1000
"""


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[Services, ExitStack]]:
    with ExitStack() as stack:
        yield {}, stack


@pytest.fixture
def services(started: tuple[Services, ExitStack]) -> Services:
    """Both; one that an earlier test killed is started again."""
    running, stack = started
    for tool, name in (("search", "retrieval"), ("python", "sandbox")):
        if tool not in running or running[tool].process.returncode is not None:
            running[tool] = stack.enter_context(serve(name))
    return running


@pytest.fixture
def engine() -> Iterator[StartEngine]:
    """Starts an engine that plays turns, a little longer for each trajectory; gives its address."""
    thread, tokenizer = LoopThread("scripted-engine"), byte_tokenizer()
    engines: list[ScriptedEngine] = []

    def start(before: Hook, turns: Sequence[str] = TURNS) -> str:
        begun: list[str] = []

        def respond(payload: dict[str, Any]) -> tuple[list[int], str]:
            trajectory, _, name = payload["rid"].rpartition("-")
            turn = int(name.partition(".")[0])
            if trajectory not in begun:
                begun.append(trajectory)
            before(len(begun), turn)
            text = turns[turn] + " ." * begun.index(trajectory) * (turn == len(turns) - 1)
            return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id], "stop"

        engines.append(ScriptedEngine(respond))
        return thread.submit(engines[-1].start()).result(10)

    yield start
    for each in engines:
        thread.submit(each.stop()).result(10)
    thread.stop()


def recipe(workspace: Workspace, folder: Path, name: str, services: Services, address: str, **changes: Any) -> Run:
    """One step of two questions, two trajectories each, one trajectory after another."""
    shared = {"type": "native", "retries": 1, "backoff_s": 0.05}
    url = f"{services['search'].url}/retrieve"
    tools = [
        {"class_name": "search", "config": {**shared, "topk": 1, "retrieval_service_url": url}},
        {"class_name": "python", "config": {**shared, "sandbox_url": services["python"].url, "session": True}},
    ]
    (folder / "tools.yaml").write_text(json.dumps({"tools": tools}))
    (folder / "score.py").write_text(SCORE)
    return workspace.run(
        name,
        data__train_files=str(write_rows(folder / "rows.parquet", 2, agent_name="tool_agent")),
        data__max_prompt_length=1300,
        data__max_response_length=740,
        data__train_batch_size=2,
        actor_rollout_ref__rollout__server__addresses=[address],
        actor_rollout_ref__rollout__agent__max_in_flight=1,
        actor_rollout_ref__rollout__multi_turn__tool_config_path=str(folder / "tools.yaml"),
        custom_reward_function__path=str(folder / "score.py"),
        trainer__total_training_steps=1,
        **changes,
    )


def test_one_step_over_both_services(
    workspace: Workspace, tmp_path: Path, services: Services, engine: StartEngine
) -> None:
    run = recipe(workspace, tmp_path, "both_services", services, engine(lambda begun, turn: None))
    run_training(run.config)
    (metrics,) = run.metrics
    assert metrics["actor/grad_norm"] > 0
    assert metrics["rollout/env_error_rate"] == 0
    assert 2 < metrics["critic/score/min"] < metrics["critic/score/max"] < 3
    rows = run.rollouts(1)
    assert len(rows) == 4
    for row in rows:
        found, printed = (message["content"] for message in row["messages"] if message["role"] == "tool")
        assert "Canberra" in found
        assert printed == "42"
    assert httpx.get(f"{services['python'].url}/health", trust_env=False).json()["sessions"] == 0


@pytest.mark.parametrize(("tool", "turn"), [("search", 0), ("python", 1)])
def test_a_service_that_is_killed_in_the_middle(
    workspace: Workspace, tmp_path: Path, services: Services, engine: StartEngine, tool: str, turn: int
) -> None:
    def kill(begun: int, asked: int) -> None:
        if begun == 3 and asked == turn:
            services[tool].kill()

    address = engine(kill)
    run = recipe(
        *(workspace, tmp_path, f"killed_{tool}", services, address),
        actor_rollout_ref__rollout__max_failure_rate=0.5,
    )
    run_training(run.config)
    (metrics,) = run.metrics
    assert metrics["rollout/env_error_rate"] == 0.5
    assert metrics["actor/grad_norm"] > 0
    assert metrics["critic/score/min"] > 2  # nothing that failed counts as a score of 0
    assert len(run.rollouts(1)) == 2

    again = recipe(workspace, tmp_path, f"dead_{tool}", services, address)
    with pytest.raises(FailureBudgetError, match="env_error") as stopped:
        run_training(again.config)
    assert services[tool].url in str(stopped.value)
    assert not (again.folder / "metrics.jsonl").exists() or not again.metrics


def test_coding_rows_are_scored_by_the_sandbox_until_it_is_killed(
    workspace: Workspace, tmp_path: Path, services: Services, engine: StartEngine
) -> None:
    address = engine(lambda begun, turn: services["python"].kill() if begun == 4 else None, CODE)
    truth = {"style": "rule", "ground_truth": json.dumps(SQUARES)}
    rows = {"data_source": "taco", "reward_model": truth, "agent_name": "single_turn_agent"}
    run = workspace.run(
        "coding_rows",
        data__train_files=str(write_rows(tmp_path / "rows.parquet", 2, **rows)),
        data__max_response_length=128,
        data__train_batch_size=2,
        actor_rollout_ref__rollout__server__addresses=[address],
        actor_rollout_ref__rollout__agent__max_in_flight=1,
        actor_rollout_ref__rollout__max_failure_rate=0.5,
        custom_reward_function__path=None,
        reward_model__sandbox_fusion__url=f"{services['python'].url}/run_code",
        trainer__total_training_steps=1,
    )
    run_training(run.config)
    (metrics,) = run.metrics
    assert metrics["rollout/env_error_rate"] == 0.25
    assert metrics["critic/score/min"] == metrics["critic/score/max"] == 1.0
    assert len(run.rollouts(1)) == 3
