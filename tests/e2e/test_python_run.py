"""A run written in Python, with a tool that its own script defines: on Ray, in one process, and what cannot work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from runs import Workspace
from warm_commands import warm_commands

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SCRIPT = '''
import sys

import agentrl


@agentrl.tool(name="times")
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b

{guard}
    config = agentrl.load_config(sys.argv[1], sys.argv[2:])
    result = agentrl.train(config, tools=[multiply])
    assert result.metrics["training/global_step"] == result.step == 1
    print("in", result.folder)
'''
GUARD = 'if __name__ == "__main__":'


def run_script(workspace: Workspace, name: str, guard: str = GUARD, **changes: object) -> tuple[str, Path]:
    run = workspace.run(
        name,
        trainer__total_training_steps=1,
        data__max_prompt_length=640,
        actor_rollout_ref__rollout__agent__default_agent_loop="tool_agent",
        **changes,
    )
    file = workspace.folder / f"{name}.py"
    file.write_text(SCRIPT.format(guard=guard))
    python = warm_commands() / "python" if changes["trainer__backend"] == "local" else sys.executable
    done = subprocess.run(
        [str(python), str(file), str(run.recipe)], capture_output=True, text=True, check=False, timeout=500
    )
    return done.stdout + done.stderr, run.folder


@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_tool_of_the_script_is_found_in_every_process(workspace: Workspace, backend: str) -> None:
    output, folder = run_script(workspace, f"python_{backend}", trainer__backend=backend)
    assert f"in {folder}" in output, output
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["plugins"] == [str(workspace.folder / f"python_{backend}.py")]
    assert yaml.safe_load((folder / "tools.yaml").read_text()) == {"tools": [{"class_name": "times"}]}


@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_script_that_trains_while_it_is_imported_says_what_is_missing(workspace: Workspace, backend: str) -> None:
    output, _ = run_script(workspace, f"unguarded_{backend}", guard="if True:", trainer__backend=backend)
    assert 'trains while it is imported: put `if __name__ == "__main__":` before `train`' in output


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["local", "ray"])
def test_a_session_without_a_file(workspace: Workspace, backend: str) -> None:
    name = f"session_{backend}"
    run = workspace.run(
        name,
        trainer__total_training_steps=1,
        data__max_prompt_length=640,
        trainer__backend=backend,
        actor_rollout_ref__rollout__agent__default_agent_loop="tool_agent",
    )
    done = subprocess.run(
        [sys.executable, "-", str(run.recipe)],
        input=SCRIPT.format(guard=GUARD),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    if backend == "local":
        assert done.returncode == 0, done.stderr
    else:
        assert "tool 'times': defined in a session without a file" in done.stderr
        assert "name it `file.py:name`" in done.stderr
