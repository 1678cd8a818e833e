"""What the user gave is checked before anything starts: one readable message each, exit code 2."""

from __future__ import annotations

import json
import logging
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.config import RunConfig
from agentrl.errors import CheckpointError, UserInputError
from agentrl.trainer.inputs import prepare

CALCULATOR = str(resources.files("agentrl.configs").joinpath("tools/calculator.yaml"))


def write(folder: Path, *rows: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "rows.parquet"
    plain = {
        "prompt": [{"role": "user", "content": "1 + 1"}],
        "data_source": "agentrl/arithmetic",
        "reward_model": {"style": "rule", "ground_truth": "2"},
    }
    names = dict.fromkeys(name for row in (plain, *rows) for name in row)  # Arrow looks at the first row only
    table = [{**dict.fromkeys(names), **plain, **row} for row in rows or ({}, {}, {}, {})]
    pq.write_table(pa.Table.from_pylist(table), path)
    return str(path)


@pytest.fixture
def config(tmp_path: Path, tiny_model_dir: Path) -> RunConfig:
    return RunConfig.model_validate(
        {
            "data": {"train_files": write(tmp_path), "train_batch_size": 2, "max_prompt_length": 700},
            "actor_rollout_ref": {
                "model": {"path": str(tiny_model_dir)},
                "actor": {"ppo_mini_batch_size": 2},
                "rollout": {"n": 2, "multi_turn": {"tool_config_path": CALCULATOR}},
            },
            "trainer": {"total_epochs": 3, "default_local_dir": str(tmp_path / "run"), "device": "cpu"},
        }
    )


def refused(config: RunConfig) -> str:
    with pytest.raises(UserInputError) as caught:
        prepare(config)
    assert caught.value.exit_code == 2
    assert not Path(config.trainer.default_local_dir).exists()
    return str(caught.value)


def test_a_judge_that_is_shown_the_right_answer_needs_one(config: RunConfig, tmp_path: Path) -> None:
    config.data.train_files = write(tmp_path, {"reward_model": {"style": "model"}}, {}, {}, {})
    judge = config.reward_model.judge
    judge.base_url, judge.rubric = "http://127.0.0.1:9/v1", "Is it right?"
    prepare(config)
    judge.template = "{ground_truth} {answer}"
    assert "no `reward_model.ground_truth`, which reward_model.judge.template names" in refused(config)


def test_good_inputs(config: RunConfig):
    inputs = prepare(config)
    assert inputs.total_steps == 6
    assert inputs.val_samples == []
    config.trainer.total_training_steps = 4
    config.data.val_files = config.data.train_files
    assert (prepare(config).total_steps, len(prepare(config).val_samples)) == (4, 4)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"agent_name": "tool_agnt"}, "no agent loop is named 'tool_agnt'. Did you mean 'tool_agent'?"),
        ({"data_source": "openai/gsm8"}, "Did you mean 'openai/gsm8k'?"),
        (
            {"agent_name": "tool_agent", "extra_info": {"tools_kwargs": {"calculater": {"create_kwargs": {"x": 1}}}}},
            "no tool is named 'calculater'. Did you mean 'calculator'?",
        ),
        ({"agent_name": "tool_agent", "extra_info": {"interaction_kwargs": {"name": "gsm8"}}}, "interaction"),
        ({"prompt": [{"role": "user", "content": "1 +" * 300}]}, "wanted at most 700"),
        ({"reward_model": {"style": "rule"}}, "no `reward_model.ground_truth`"),
        ({"reward_model": {"style": "rule", "ground_truth": ""}}, "no `reward_model.ground_truth`"),
        (
            {"reward_model": {"style": "model", "ground_truth": "2"}},
            "`reward_model.style` is 'model', but the score of",
        ),
        ({"reward_model": None}, "row 1: no `reward_model.ground_truth`"),
    ],
)
def test_rows_that_cannot_be_used(config: RunConfig, tmp_path: Path, row: dict[str, Any], message: str):
    write(tmp_path, {}, row)
    assert message in refused(config)


def test_a_row_is_named_by_its_own_file(config: RunConfig, tmp_path: Path):
    (tmp_path / "second").mkdir()
    second = write(tmp_path / "second", {}, {"agent_name": "tool_agnt"})
    config.data.train_files = [write(tmp_path), second]
    assert f"{second}, row 1: no agent loop is named 'tool_agnt'" in refused(config)
    write(tmp_path / "second", {}, {"tool_config": {"available_tools": ["calculator"]}})
    assert f"{second}, row 1 gives tools but has no `agent_name`" in refused(config)


def test_a_score_function_of_the_users_own_needs_no_ground_truth(config: RunConfig, tmp_path: Path):
    write(tmp_path, *({"reward_model": {"style": "rule"}} for _ in range(4)))
    score = tmp_path / "score.py"
    score.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n")
    config.custom_reward_function.path = str(score)
    assert prepare(config).total_steps == 6


def test_a_row_without_reward_model_is_found_whoever_scores_it(config: RunConfig, tmp_path: Path):
    score = tmp_path / "score.py"
    score.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n")
    config.custom_reward_function.path = str(score)
    write(tmp_path, {}, {"reward_model": None})
    assert "row 1: no `reward_model`, so the score function would get the ground truth None" in refused(config)
    write(tmp_path, *({"reward_model": {"style": "model", "ground_truth": "2"}} for _ in range(4)))
    assert prepare(config).total_steps == 6


@pytest.mark.parametrize("target", [[None], []])
def test_a_search_row_without_an_answer(config: RunConfig, tmp_path: Path, target: list[Any]):
    truth = {"style": "rule", "ground_truth": {"target": target}}
    write(tmp_path, *({"data_source": "searchR1_nq", "reward_model": truth} for _ in range(4)))
    assert "holds no gold answer" in refused(config)


@pytest.mark.parametrize(
    ("source", "truth", "message"),
    [
        ("openai/gsm8k", "four", "the ground truth 'four' is not a number"),
        ("lighteval/MATH", "null", "which stands for no answer"),
        ("searchR1_nq", "['a', 'b']", "is how Python shows a list"),
        ("taco", "none", "the ground truth of a coding task: got 'none'"),
    ],
)
def test_rows_that_cannot_be_scored_are_named_and_counted(
    config: RunConfig, tmp_path: Path, source: str, truth: str, message: str
):
    config.reward_model.sandbox_fusion.url = "http://127.0.0.1:9"
    bad = {"data_source": source, "reward_model": {"style": "rule", "ground_truth": truth}}
    file = write(tmp_path, {}, bad, {}, {}, bad)
    assert refused(config).count(message) == 2
    assert f"{file}, row 1: " in refused(config)
    write(tmp_path, {}, *[bad] * 40)
    assert refused(config).count(message) == 5
    assert refused(config).endswith("\nand 35 more rows")
    config.data.val_files = file
    config.data.train_files = write(tmp_path / "good")
    assert f"{file}, row 5: " in refused(config)


def test_a_loop_of_the_users_own_may_score_itself(config: RunConfig, tmp_path: Path):
    write(tmp_path, *({"reward_model": {"style": "rule"}} for _ in range(4)))
    loop = tmp_path / "own.py"
    loop.write_text(
        "from agentrl.interfaces import AgentLoopBase\n\n\n"
        "class Own(AgentLoopBase):\n    async def run(self, sampling_params, **kwargs): ...\n"
    )
    (tmp_path / "loops.yaml").write_text(f"- {{name: own, _target_: '{loop}:Own'}}\n")
    config.actor_rollout_ref.rollout.agent.agent_loop_config_path = str(tmp_path / "loops.yaml")
    config.actor_rollout_ref.rollout.agent.default_agent_loop = "own"
    assert prepare(config).total_steps == 6


def test_a_file_without_prompts(config: RunConfig, tmp_path: Path):
    pq.write_table(pa.table({"data_source": ["x"]}), tmp_path / "rows.parquet")
    assert "column 'prompt'" in refused(config)


def test_a_model_folder_without_a_chat_template(config: RunConfig, tmp_path: Path, tiny_model_dir: Path):
    bare = Path(shutil.copytree(tiny_model_dir, tmp_path / "bare"))
    (bare / "chat_template.jinja").unlink()
    config.actor_rollout_ref.model.path = str(bare)
    assert "no chat template" in refused(config)
    config.actor_rollout_ref.model.chat_template = "templates/chatml_tools.jinja"
    assert prepare(config).total_steps == 6


def test_a_tokenizer_that_is_not_the_models(config: RunConfig, tmp_path: Path, tiny_model_dir: Path):
    small = Path(shutil.copytree(tiny_model_dir, tmp_path / "small"))
    settings = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps({**settings, "vocab_size": 200}))
    config.actor_rollout_ref.model.path = str(small)
    assert "vocabulary mismatch" in refused(config)


def test_truncated_sampling_is_told(config: RunConfig, caplog: pytest.LogCaptureFixture):
    config.actor_rollout_ref.rollout.top_p = 0.9
    with caplog.at_level(logging.INFO, "agentrl"):
        prepare(config)
    assert "top_p=0.9" in caplog.text


def test_a_prompt_is_counted_with_the_tools_that_its_loop_shows(config: RunConfig):
    config.data.max_prompt_length = 100
    assert prepare(config).total_steps == 6  # single_turn_agent shows none
    config.actor_rollout_ref.rollout.agent.default_agent_loop = "tool_agent"
    assert "wanted at most 100" in refused(config)


def test_long_prompts_are_left_out_when_asked(config: RunConfig, tmp_path: Path):
    write(tmp_path, {}, {}, {"prompt": [{"role": "user", "content": "1 +" * 300}]})
    config.data.filter_overlong_prompts = True
    assert prepare(config).loader.steps_per_epoch == 1


def test_the_value_models_folder(config: RunConfig, tmp_path: Path, tiny_model_dir: Path):
    config.algorithm.adv_estimator = "gae"
    config.critic.model.path = f"{tiny_model_dir}x"
    found = refused(config)
    assert f"critic.model.path: no model folder '{tiny_model_dir}x'. Did you mean '{tiny_model_dir}'?" in found
    empty = tmp_path / "empty"
    empty.mkdir()
    config.critic.model.path = str(empty)
    assert f"critic.model.path: '{empty}' is no model folder: it has no config.json" in refused(config)
    (empty / "config.json").write_text("{}")
    assert f"critic.model.path: '{empty}' holds no whole model" in refused(config)
    config.algorithm.adv_estimator = "grpo"
    assert prepare(config).total_steps == 6  # no critic: a note


def test_a_policy_without_weights(config: RunConfig, tmp_path: Path, tiny_model_dir: Path):
    bare = Path(shutil.copytree(tiny_model_dir, tmp_path / "bare"))
    for file in bare.glob("*.safetensors"):
        file.unlink()
    config.actor_rollout_ref.model.path = str(bare)
    assert f"actor_rollout_ref.model.path: '{bare}' holds no whole model" in refused(config)


def test_a_checkpoint_to_resume_from(config: RunConfig, tmp_path: Path):
    config.trainer.resume_mode = "resume_path"
    config.trainer.resume_from_path = str(tmp_path / "global_step_7")
    with pytest.raises(CheckpointError, match=r"trainer.resume_from_path: checkpoint .*global_step_7 does not exist"):
        prepare(config)
    (tmp_path / "global_step_7" / "actor").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"trainer.resume_from_path: .* lacks trainer_state.pt, data.pt"):
        prepare(config)


def test_the_newest_checkpoint_of_the_run_folder(config: RunConfig):
    folder = Path(config.trainer.default_local_dir)
    folder.mkdir()
    (folder / "latest_checkpointed_iteration.txt").write_text("3")
    with pytest.raises(CheckpointError, match="global_step_3 does not exist"):
        prepare(config)
    (folder / ".part_old_global_step_3").mkdir()  # the run was killed while it was replaced: `latest` repairs that
    assert prepare(config).total_steps == 6
    assert (folder / ".part_old_global_step_3").is_dir()
    config.trainer.resume_mode = "disable"
    assert prepare(config).total_steps == 6


@pytest.mark.parametrize(
    ("section", "key", "name"),
    [
        ("trainer", "rollout_data_dir", "trainer.rollout_data_dir"),
        ("trainer", "validation_data_dir", "trainer.validation_data_dir"),
        ("rollout", "weight_sync_dir", "actor_rollout_ref.rollout.weight_sync_dir"),
        ("cache", "path", "actor_rollout_ref.rollout.multi_turn.tool_cache.path"),
    ],
)
def test_a_folder_to_write_to_that_is_a_file(config: RunConfig, tmp_path: Path, section: str, key: str, name: str):
    file, rollout = tmp_path / "file", config.actor_rollout_ref.rollout
    file.touch()
    config.data.val_files = config.data.train_files
    rollout.multi_turn.tool_cache.mode = "record"
    rollout.multi_turn.tool_cache.path = str(tmp_path / "cache")
    sections = {"trainer": config.trainer, "rollout": rollout, "cache": rollout.multi_turn.tool_cache}
    setattr(sections[section], key, str(file / "below"))
    assert f"{name}: got '{file}/below', which cannot be written to: Not a directory ({file})" in refused(config)
    setattr(sections[section], key, str(tmp_path / "new" / "below"))
    prepare(config)
    assert not (tmp_path / "new").exists()


def test_a_run_folder_that_is_a_file(config: RunConfig, tmp_path: Path):
    config.trainer.default_local_dir = str(tmp_path / "rows.parquet")
    with pytest.raises(UserInputError, match=r"trainer.default_local_dir: got .*: Not a directory"):
        prepare(config)
