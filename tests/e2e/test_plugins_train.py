"""Plug-ins of others train: a package with entry points, and files that were written for verl."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from runs import Run, Workspace, finished, write_rows

from agentrl.rollout.pools.local import LoopThread
from agentrl.testing.models import byte_tokenizer
from agentrl.testing.scripted_engine import ScriptedEngine
from agentrl.trainer.run import run_training

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plugin"
Play = Callable[..., str]

VERL_TOOL = '''
import json
import os
from typing import Any, Optional
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.rollout_trace import rollout_trace_op


def log(*event):
    with open(os.environ["VERL_LOG"], "a") as file:
        file.write(json.dumps(event) + "\\n")


class GradeTool(BaseTool):
    """One object for all trajectories, as in verl."""

    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self._instance_dict = {}

    async def create(self, instance_id: Optional[str] = None, ground_truth: Optional[str] = None, **kwargs):
        if instance_id is None:
            instance_id = str(uuid4())
        if ground_truth is None:
            ground_truth = kwargs.get("create_kwargs", {}).get("ground_truth", None)
        self._instance_dict[instance_id] = {"ground_truth": ground_truth, "reward": 0.0}
        log("create", self.name, ground_truth)
        return instance_id, ToolResponse()

    @rollout_trace_op
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs) -> tuple[ToolResponse, float, dict]:
        state = self._instance_dict[instance_id]
        state["reward"] = float(parameters["answer"] == state["ground_truth"])
        log("execute", parameters["answer"], self.tool_schema.function.parameters.required)
        return ToolResponse(text=f"score {state['reward']}"), state["reward"], {"right": state["reward"]}

    async def calc_reward(self, instance_id: str, **kwargs) -> float:
        return self._instance_dict[instance_id]["reward"]

    async def release(self, instance_id: str, **kwargs) -> None:
        log("release")
        del self._instance_dict[instance_id]
'''
VERL_INTERACTION = """
from uuid import uuid4

from verl.interactions.base import BaseInteraction


class GradeInteraction(BaseInteraction):
    def __init__(self, config: dict):
        super().__init__(config)
        self._instance_dict = {}

    async def start_interaction(self, instance_id=None, ground_truth=None, **kwargs) -> str:
        instance_id = instance_id or str(uuid4())
        self._instance_dict[instance_id] = {"ground_truth": ground_truth}
        return instance_id

    async def generate_response(self, instance_id, messages, **kwargs):
        said = next(m["content"] for m in reversed(messages) if m["role"] == "assistant")
        right = self._instance_dict[instance_id]["ground_truth"] in said.split()
        return right, "Right." if right else "Wrong, think again.", float(right), {}

    async def finalize_interaction(self, instance_id, **kwargs) -> None:
        del self._instance_dict[instance_id]
"""
SCORES = {
    "sync": """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    assert "Wrong" not in solution_str and "score" not in solution_str
    right = ground_truth in solution_str.split()
    return {"score": right + bonus * extra_info["num_tool_calls"] + len(solution_str) / 1000, "right": right}
""",
    "async": """
import asyncio

async def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    await asyncio.sleep(0)
    return (ground_truth in solution_str.split()) + bonus * extra_info["num_tool_calls"] + len(solution_str) / 1000
""",
    "batch": """
def compute_score(data_sources, solution_strs, ground_truths, extra_infos, bonus=0.0):
    rows = zip(data_sources, solution_strs, ground_truths, extra_infos, strict=True)
    return [(t in s.split()) + bonus * e["num_tool_calls"] + len(s) / 1000 for _, s, t, e in rows]
""",
}


@pytest.fixture
def play() -> Iterator[Play]:
    """Starts an engine that answers turn k of a trajectory with the k-th text; gives its address."""
    thread = LoopThread("scripted-engine")
    engines: list[ScriptedEngine] = []
    tokenizer = byte_tokenizer()

    def start(*texts: str) -> str:
        def respond(payload: dict[str, Any]) -> tuple[list[int], str]:
            _, _, row, _, turn = payload["rid"].split("-")
            text = texts[min(int(turn.partition(".")[0]), len(texts) - 1)] + " ." * int(row)
            ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
            return ids, "stop"

        engines.append(ScriptedEngine(respond))
        return thread.submit(engines[-1].start()).result(10)

    yield start
    for engine in engines:
        thread.submit(engine.stop()).result(10)
    thread.stop()


def recipe(workspace: Workspace, name: str, address: str, rows: Path, **changes: Any) -> Run:
    return workspace.run(
        name,
        data__train_files=str(rows),
        data__max_prompt_length=1200,
        data__max_response_length=700,
        data__train_batch_size=2,
        actor_rollout_ref__rollout__server__addresses=[address],
        trainer__total_training_steps=1,
        **changes,
    )


VERL_TOOLS = """
tools:
  - class_name: grade_tool.GradeTool
    config: {type: native}
    tool_schema:
      type: function
      function:
        name: grade
        description: Grade an answer.
        parameters:
          type: object
          properties: {answer: {type: string, description: The answer.}}
          required: [answer]
"""


@pytest.mark.parametrize("kind", SCORES)
def test_plugins_written_for_verl_train_unchanged(
    workspace: Workspace, play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "grade_tool.py").write_text(VERL_TOOL)
    (tmp_path / "grade_interaction.py").write_text(VERL_INTERACTION)
    (tmp_path / "score.py").write_text(SCORES[kind])
    (tmp_path / "tools.yaml").write_text(VERL_TOOLS)
    (tmp_path / "talk.yaml").write_text(
        "interaction:\n  - name: grade\n    class_name: grade_interaction.GradeInteraction\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("VERL_LOG", str(tmp_path / "log.jsonl"))
    rows = write_rows(
        tmp_path / "rows.parquet",
        2,
        agent_name="tool_agent",
        reward_model={"style": "rule", "ground_truth": "7"},
        extra_info={
            "need_tools_kwargs": True,
            "tools_kwargs": {"grade": {"create_kwargs": {"ground_truth": "7"}}},
            "interaction_kwargs": {"name": "grade", "query": "3+4", "ground_truth": "7"},
        },
    )
    call = '<tool_call>\n{"name": "grade", "arguments": {"answer": "7"}}\n</tool_call>'
    run = recipe(
        workspace,
        f"verl_{kind}",
        play(call, "It is 8", "It is 7"),
        rows,
        actor_rollout_ref__rollout__multi_turn__tool_config_path=str(tmp_path / "tools.yaml"),
        actor_rollout_ref__rollout__multi_turn__interaction_config_path=str(tmp_path / "talk.yaml"),
        custom_reward_function__path=str(tmp_path / "score.py"),
        custom_reward_function__reward_kwargs={"bonus": 0.5},
        reward_model__reward_manager="batch" if kind == "batch" else "naive",
    )
    run_training(run.config)
    (metrics,) = run.metrics
    assert metrics["actor/grad_norm"] > 0
    assert metrics["rollout/env_error_rate"] == 0
    assert 1.5 < metrics["critic/score/min"] < metrics["critic/score/max"] < 2
    assert metrics["num_turns/mean"] == 6
    for row in run.rollouts(1):
        assert [message["role"] for message in row["messages"]] == [
            *("user", "assistant", "tool", "assistant", "user", "assistant")
        ]
        assert row["messages"][2]["content"] == "score 1.0"
        assert row["messages"][4]["content"] == "Wrong, think again."
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert events.count(["create", "grade", "7"]) == events.count(["execute", "7", ["answer"]]) == 4
    assert events.count(["release"]) == 4
    for name in ("grade_tool", "grade_interaction"):
        sys.modules.pop(name)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example package, installed as pip installs it, into a folder of its own."""
    folder = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(EXAMPLE, folder / "source")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--disable-pip-version-check", "--target", str(folder / "site"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.mark.slow
def test_the_example_package_passes_its_own_tests(installed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(installed.parent / "source" / "tests")],
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_a_run_with_the_example_package_trains_by_agent_name(
    workspace: Workspace, play: Play, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(installed))
    configs = installed.parent / "source" / "configs"
    rows = write_rows(
        tmp_path / "rows.parquet",
        2,
        agent_name="math_expression",
        reward_model={"style": "rule", "ground_truth": "42"},
        interaction_kwargs={"name": "units_coach", "unit": "km"},
    )
    run = recipe(
        workspace,
        "example_plugin",
        play("<expr>6*7</expr>", "It is 42", "It is 42 km"),
        rows,
        actor_rollout_ref__rollout__multi_turn__tool_config_path=str(configs / "tools.yaml"),
        actor_rollout_ref__rollout__multi_turn__interaction_config_path=str(configs / "interaction.yaml"),
        custom_reward_function__path="math_expression_score",
    )
    code, output = finished("train", str(run.recipe), cold=True)
    assert code == 0, output
    (metrics,) = run.metrics
    assert metrics["rollout/env_error_rate"] == 0
    assert metrics["critic/score/mean"] == 1.0
    assert metrics["tool_call_counts/mean"] == 1
    assert "actor/pg_loss" in metrics
    for row in run.rollouts(1):
        said = [message["content"] for message in row["messages"]]
        assert said[2] == "value: 42"
        assert said[4] == "In km, please."
        assert row["stop_reason"] == "interaction_done"


@pytest.mark.slow
def test_plug_ins_in_the_folder_of_the_run_are_found_by_rays_workers_too(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By dotted name, in the working folder and the recipe's; by file, elsewhere, with a neighbour of its own."""
    (tmp_path / "own_score.py").write_text(
        "from beside_the_recipe import WORTH\n\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return {'score': WORTH, 'pred': {1: 'x'}}\n"
    )
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "tool.py").write_text(
        "from own_units import FACTOR\n\ndef scale(value: float) -> float:\n    'Scale.'\n    return value * FACTOR\n"
    )
    (tmp_path / "elsewhere" / "own_units.py").write_text("FACTOR = 2.0\n")
    (tmp_path / "elsewhere" / "tools.yaml").write_text("tools: [{class_name: tool.py:scale}]\n")
    run = workspace.run(
        "own_folder",
        trainer__backend="ray",
        trainer__total_training_steps=1,
        custom_reward_function__path="own_score",
        actor_rollout_ref__rollout__multi_turn__tool_config_path="elsewhere/tools.yaml",
    )
    (run.recipe.parent / "beside_the_recipe.py").write_text("WORTH = 0.25\n")
    monkeypatch.chdir(tmp_path)
    code, output = finished("train", str(run.recipe), cold=True)
    assert code == 0, output
    (metrics,) = run.metrics
    assert metrics["critic/score/mean"] == 0.25
    assert run.rollouts(1)[0]["reward_extra_info"] == {"pred": {"1": "x"}}
