"""Whole runs of a model that sees pictures: two GRPO steps, tool pictures, keys, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from runs import Run, Workspace
from safetensors.torch import load_file
from typer.testing import CliRunner

from agentrl.chat.loading import load_renderer
from agentrl.cli import app
from agentrl.config import load_config
from agentrl.data.preprocess.picture_rows import write_pictures
from agentrl.errors import ConfigError, DataError, PluginError, UserInputError
from agentrl.observability.audit import audit
from agentrl.pictures import content_of, read_picture
from agentrl.testing.vision_models import build_tiny_vision_model
from agentrl.trainer.inputs import prepare

TOOL = '''
import numpy as np
from agentrl.types import ToolResponse


async def look(name: str) -> ToolResponse:
    """Show a picture.

    Args:
        name: of the picture.
    """
    shade = len(name) * 9 % 256
    return ToolResponse("here", image=[np.full((16, 24, 3), shade, np.uint8)])
'''
SCORE = '''
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """A number that varies from answer to answer, so that there is something to learn."""
    return sum(map(ord, solution_str + ground_truth)) % 11 / 11
'''
LOOP = '''
from agentrl.agent_loops.conversation import Conversation
from agentrl.interfaces import AgentLoopBase
from agentrl.types import ToolCall, ParsedTurn


class Looks(AgentLoopBase):
    """Calls the tool after every turn, whatever the model wrote."""

    sees_pictures = True

    async def run(self, sampling_params, sample):
        talk = Conversation(self.context, sample.prompt, sampling_params, self.context.tools.schemas)
        while talk.stop_reason is None:
            await talk.generate()
            if talk.stop_reason is None:
                answers = await talk.call_tools(ParsedTurn("", [ToolCall("look", {"name": "a"})]))
                if answers:
                    talk.observe(answers)
        return await talk.finish()
'''


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "look.py").write_text(TOOL)
    (folder / "tools.yaml").write_text("tools: [{class_name: look.py:look}]")
    (folder / "looks.py").write_text(LOOP)
    (folder / "loops.yaml").write_text("- {name: looks, _target_: 'looks.py:Looks'}")
    space = Workspace(folder, build_tiny_vision_model(folder / "model"))
    space.score.write_text(SCORE)
    space.train = write_pictures(folder / "rows", 8, 2, 1)["train"]
    return space


def recipe(space: Workspace, name: str, **changes: Any) -> Run:
    more = {"data__max_prompt_length": 200, "actor_rollout_ref__rollout__multi_turn__max_assistant_turns": 2}
    return space.run(name, **more | changes)


def check_rollouts(space: Workspace, run: Run, step: int) -> list[dict[str, Any]]:
    """Masks hold, and prompts are the model's own rendering of their messages."""
    assert [
        str(each) for found in audit([run.folder / "rollouts" / f"{step}.jsonl"]) for each in found.violations
    ] == []
    vision = load_renderer(str(space.model)).vision
    assert vision is not None
    dumped = run.rollouts(step)
    for row in dumped:
        for token, mark in zip(row["response_ids"][:-1], row["response_mask"][:-1], strict=True):
            assert token != vision.tokens.image or mark == 0
    return dumped


def test_two_steps_on_made_up_pictures(seeing: Workspace) -> None:
    run = recipe(seeing, "two_steps", trainer__save_freq=2)
    run.go_on(2)
    steps = run.steps
    for step in (1, 2):
        assert steps[step]["training/rollout_probs_diff_max"] < 1e-4
        dumped = check_rollouts(seeing, run, step)
        assert len(dumped) == 8
    assert steps[1]["actor/grad_norm"] > 0
    renderer = load_renderer(str(seeing.model))
    rows = {row["prompt"][0]["content"]: row for row in pq.read_table(seeing.train).to_pylist()}
    for row in run.rollouts(1):
        asked = row["messages"][0]["content"][1]["text"]
        shown = [read_picture(each) for name, each in ((n, r["images"][0]) for n, r in rows.items()) if asked in name]
        prompts = [renderer.render_prompt([{"role": "user", "content": content_of(asked, [p])}]) for p in shown]
        assert row["prompt_ids"] in prompts
    # The vision tower learns too, and a checkpoint is a whole model that sees pictures.
    folder = run.folder / "global_step_2" / "actor" / "huggingface"
    before, after = (load_file(place / "model.safetensors") for place in (seeing.model, folder))
    assert before.keys() == after.keys()
    assert any("visual" in name and not torch.equal(before[name], after[name]) for name in before)
    assert load_renderer(str(folder)).vision is not None


def test_pictures_of_tools_are_seen_and_never_trained_on(seeing: Workspace) -> None:
    run = recipe(
        seeing,
        "tool_pictures",
        data__max_response_length=120,
        data__max_prompt_length=600,
        actor_rollout_ref__rollout__multi_turn__tool_config_path=str(seeing.folder / "tools.yaml"),
        actor_rollout_ref__rollout__multi_turn__max_tokens_per_turn=None,
        actor_rollout_ref__rollout__agent__agent_loop_config_path=str(seeing.folder / "loops.yaml"),
        actor_rollout_ref__rollout__stop_token_ids=list(range(200)),  # most tokens of a random model end its turn
        data__train_files=str(_rows_for(seeing, "looks")),
    )
    run.go_on(1)
    dumped = check_rollouts(seeing, run, 1)
    assert run.steps[1]["training/rollout_probs_diff_max"] < 1e-4
    vision = load_renderer(str(seeing.model)).vision
    assert vision is not None
    seen = [row for row in dumped if vision.tokens.runs(row["response_ids"][:-1])]
    assert seen
    for row in seen:
        assert "<image of" in json.dumps(row["messages"])


def _rows_for(space: Workspace, loop: str) -> Path:
    table = pq.read_table(space.train)
    names = table.column_names
    file = space.folder / f"{loop}.parquet"
    rows = [{**row, "agent_name": loop} for row in table.to_pylist()]
    import pyarrow as pa

    pq.write_table(pa.Table.from_pylist(rows).select(names), file)
    return file


def test_the_plan_names_the_pictures(seeing: Workspace) -> None:
    run = recipe(seeing, "plan")
    result = CliRunner().invoke(app, ["train", str(run.recipe), "--dry-run"])
    assert result.exit_code == 0, result.output
    line = next(line for line in result.stdout.splitlines() if "pictures:" in line)
    assert "8 in 8 rows, up to 1 in a row; prompts with pictures take up to" in line


@pytest.mark.parametrize(
    ("changes", "error", "what"),
    [
        (
            {"actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size": 2, "trainer.n_gpus_per_node": 2},
            ConfigError,
            "ulysses_sequence_parallel_size: got 2, but 'qwen2_5_vl' reads images",
        ),
        (
            {"actor_rollout_ref.actor.fsdp_config.tensor_parallel_size": 2, "trainer.n_gpus_per_node": 2},
            ConfigError,
            "tensor_parallel_size: got 2, but 'qwen2_5_vl' reads images",
        ),
        ({"actor_rollout_ref.rollout.name": "hf"}, ConfigError, "rollout.name: got hf, which shows no pictures"),
        ({"actor_rollout_ref.model.lora_rank": 4}, ConfigError, "lora_rank: adapters are not tried"),
        ({"actor_rollout_ref.rollout.agent.default_agent_loop": "react_agent"}, PluginError, "shows no pictures"),
        ({"data.max_prompt_length": 30}, DataError, "tokens, wanted at most 30"),
        ({"actor_rollout_ref.model.path": "TEXT"}, DataError, "the model reads text only"),
    ],
)
def test_what_does_not_work_is_refused_by_name(
    seeing: Workspace, workspace: Workspace, changes: dict[str, Any], error: type[UserInputError], what: str
) -> None:
    rows = _rows_for(seeing, "react_agent") if "react_agent" in str(changes) else seeing.train
    run = recipe(seeing, "refused", trainer__backend="ray", data__train_files=str(rows))
    given = {key: str(workspace.model) if value == "TEXT" else value for key, value in changes.items()}
    with pytest.raises(error, match=what):
        prepare(load_config(run.recipe, [f"{key}={value}" for key, value in given.items()]))


def test_keys_of_pictures_act(seeing: Workspace) -> None:
    def longest(**changes: Any) -> int:
        return prepare(recipe(seeing, "keys", **changes).config).pictures.longest

    assert longest(data__max_image_pixels=256) < longest()
    rows = pq.read_table(seeing.train)
    renamed = seeing.folder / "renamed.parquet"
    pq.write_table(rows.rename_columns(["shots" if name == "images" else name for name in rows.column_names]), renamed)
    assert longest(data__train_files=str(renamed), data__image_key="shots") == longest()
    two = seeing.folder / "two.parquet"
    import pyarrow as pa

    double = [
        {**row, "images": row["images"] * 2, "prompt": [{"role": "user", "content": "<image><image>?"}]}
        for row in rows.to_pylist()
    ]
    pq.write_table(pa.Table.from_pylist(double), two)
    with pytest.raises(DataError, match=r"two.parquet, row 0.*got 2 pictures, wanted at most 1 .*limit_images"):
        longest(data__train_files=str(two), actor_rollout_ref__rollout__limit_images=1)
