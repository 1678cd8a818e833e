"""`agentrl train --dry-run` and `agentrl export`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.config import load_config
from agentrl.data.preprocess.arithmetic import write_arithmetic, write_words

runner = CliRunner()


@pytest.fixture
def recipe(tmp_path: Path, tiny_model_dir: Path) -> Path:
    write_arithmetic(tmp_path, train=50, test=8, seed=1)
    path = tmp_path / "run.yaml"
    path.write_text(
        "data: {train_files: train.parquet, val_files: test.parquet, train_batch_size: 16, max_prompt_length: 900}\n"
        "actor_rollout_ref:\n"
        f"  model: {{path: {tiny_model_dir}}}\n"
        "  actor: {ppo_mini_batch_size: 8}\n"
        "  rollout: {n: 4, name: embedded, multi_turn: {tool_config_path: tools/calculator.yaml}}\n"
        "trainer: {total_epochs: 2, device: cpu, test_freq: 2}\n"
    )
    return path


def test_dry_run_prints_a_recipe_and_what_will_run_where(recipe: Path, tmp_path: Path) -> None:
    result = runner.invoke(app, ["train", str(recipe), "trainer.n_gpus_per_node=2", "--dry-run"])
    assert result.exit_code == 0, result.stderr
    for line in (
        "# train rows:    50, 3 steps per epoch",
        "# steps:         6",
        "# a step:        16 prompts x 4 rollouts = 64 trajectories, then 2 optimizer steps of 8 prompts",
        "# val rows:      8, 1 rollout each",
        "# training:      2 ranks in Ray actors on 1 machine, cpu, FSDP2, float32; actor",
        "# engines:       1 embedded server started on 127.0.0.1, free ports",
        "# validation:    before the first step, every 2 steps",
    ):
        assert line in result.stdout
    printed = tmp_path / "printed.yaml"
    printed.write_text(result.stdout)
    assert load_config(printed) == load_config(recipe, ["trainer.n_gpus_per_node=2"])
    assert not (tmp_path / "outputs").exists()


def test_dry_runs_of_a_real_models_arithmetic(tmp_path: Path, tiny_model_dir: Path) -> None:
    data = write_words(tmp_path, train=20, test=8, seed=1, demonstrations=16)
    # The tiny model's ids are bytes: more of them than the recipes allow for.
    given = [f"model.path={tiny_model_dir}", f"data.train_files={data['demonstrations']}", "data.max_length=600"]
    given += [f"trainer.default_local_dir={tmp_path / 'sft'}"]  # whatever the folder of the suite has
    result = runner.invoke(app, ["sft", "arithmetic_smollm2_sft", *given, "--dry-run"])
    assert result.exit_code == 0, result.stderr
    files = [f"data.train_files={data['train']}", f"data.val_files={data['test']}", "data.max_prompt_length=300"]
    given = [f"actor_rollout_ref.model.path={tiny_model_dir}", *files, f"trainer.default_local_dir={tmp_path / 'run'}"]
    result = runner.invoke(app, ["train", "arithmetic_smollm2", *given, "--dry-run"])
    assert result.exit_code == 0, result.stderr
    assert (
        "# a step:        8 prompts x 8 rollouts = 64 trajectories, then 1 optimizer step of 8 prompts" in result.stdout
    )
    assert "# validation:    before the first step, every 10 steps" in result.stdout


def test_dry_run_names_the_judge(recipe: Path) -> None:
    judge = ["reward_model.judge.base_url=http://127.0.0.1:9/v1", "reward_model.combine={outcome: 0, judge: 0.5}"]
    result = runner.invoke(app, ["train", str(recipe), *judge, "reward_model.judge.rubric=Right?", "--dry-run"])
    assert result.exit_code == 0, result.stderr
    assert "# reward:        0.5 x 0 to 1 of the judge default at http://127.0.0.1:9/v1" in result.stdout
    result = runner.invoke(app, ["train", str(recipe), *judge, "--dry-run"])
    assert "reward_model.judge.rubric: not given" in result.stderr


def test_dry_run_says_which_role_is_in_which_pool(recipe: Path) -> None:
    overrides = ["algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=true", "trainer.n_gpus_per_node=2"]
    pools = ["trainer.resource_pools.big.n_gpus=4", "trainer.resource_pools.big.nnodes=2", "ray_init.address=auto"]
    roles = ["trainer.role_pools.critic=big"]
    result = runner.invoke(app, ["train", str(recipe), *overrides, *pools, *roles, "--dry-run"])
    assert result.exit_code == 0, result.stderr
    for line in (
        "# training:      2 pools, 2 + 8 = 10 ranks in Ray actors, cpu, FSDP2, float32",
        "# pool global_pool: 2 ranks on 1 machine; actor, reference",
        "# pool big:      8 ranks on 2 machines; critic",
    ):
        assert line in result.stdout


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "trainer.role_pools.critic=big",
            "trainer.role_pools.critic: got 'big', which is no pool. Known: global_pool.",
        ),
        ("data.train_files=nowhere.parquet", "nowhere.parquet: got no such file"),
        ("actor_rollout_ref.rollout.multi_turn.tool_config_path=typo.yaml", "unknown key 'class_nam'"),
        ("actor_rollout_ref.rollout.agent.default_agent_loop=tool_agnt", "Did you mean 'tool_agent'?"),
        ("actor_rollout_ref.rollout.multi_turn.format=hermess", "Did you mean 'hermes'?"),
        ("custom_reward_function.path=score.py", "score.py does not exist"),
        ("reward_model.reward_manager=naiv", "Did you mean 'naive'?"),
        ("data.max_prompt_length=5", "tokens, wanted at most 5 (data.max_prompt_length)"),
        ("data.train_batch_size=51", "data.train_batch_size: got 51, but there are only 50 rows"),
        ("actor_rollout_ref.model.path=/nowhere", "/nowhere"),
        ("algorithm.adv_estimator=gae critic.model.path=/nowhere", "critic.model.path: no model folder '/nowhere'"),
    ],
)
def test_dry_run_finds_what_the_run_would_stumble_over(
    recipe: Path, override: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (recipe.parent / "typo.yaml").write_text("tools: [{class_nam: x}]")
    monkeypatch.chdir(recipe.parent)
    result = runner.invoke(app, ["train", str(recipe), *override.split(), "--dry-run"])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_folders_that_cannot_be_written_to_are_found_before_anything_starts(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    keys = [f"trainer.{name}" for name in ("default_local_dir", "rollout_data_dir", "validation_data_dir")]
    keys.append("actor_rollout_ref.rollout.weight_sync_dir")
    result = runner.invoke(app, ["train", str(recipe), *(f"{key}={tmp_path}/file/x" for key in keys)])
    assert result.exit_code == 2
    dry = runner.invoke(app, ["train", str(recipe), *(f"{key}={tmp_path}/file/x" for key in keys), "--dry-run"])
    for key in keys:
        for told in (result.stderr, dry.stderr):
            assert f"{key}: got '{tmp_path}/file/x', which cannot be written to: Not a directory" in told


@pytest.fixture
def checkpoint(tmp_path: Path, tiny_model_dir: Path) -> Path:
    folder = tmp_path / "run" / "global_step_3"
    shutil.copytree(tiny_model_dir, folder / "actor" / "huggingface")
    (folder / "data.pt").write_bytes(b"x")
    (folder / "trainer_state.pt").write_bytes(b"x")
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text("3")
    return folder


@pytest.mark.parametrize("given", ["global_step_3", "."])
def test_export_gives_a_model_folder(checkpoint: Path, tmp_path: Path, given: str) -> None:
    out = tmp_path / "exported"
    result = runner.invoke(app, ["export", str(checkpoint.parent / given), str(out)])
    assert result.exit_code == 0, result.stderr
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(out))


def test_export_of_what_is_no_whole_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "exported")
    assert runner.invoke(app, ["export", str(tmp_path / "nowhere"), out]).exit_code == 4
    file = str(checkpoint / "data.pt")
    assert f"checkpoint {file} is a file. Wanted" in runner.invoke(app, ["export", file, out]).stderr
    (checkpoint / "actor" / "huggingface" / "config.json").unlink()
    result = runner.invoke(app, ["export", str(checkpoint), out])
    assert (result.exit_code, "holds no model" in result.stderr) == (4, True)
    (checkpoint / "data.pt").unlink()
    result = runner.invoke(app, ["export", str(checkpoint), out])
    assert (result.exit_code, "lacks data.pt" in result.stderr) == (4, True)
    assert "trainer." not in result.stderr
    assert not Path(out).exists()


def test_export_never_overwrites(checkpoint: Path, tmp_path: Path) -> None:
    result = runner.invoke(app, ["export", str(checkpoint), str(tmp_path)])
    assert (result.exit_code, "already exists" in result.stderr) == (2, True)


def test_export_to_a_full_disk_leaves_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> Any:
        target.mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    before = sorted(tmp_path.iterdir())
    result = runner.invoke(app, ["export", str(checkpoint), str(tmp_path / "exported")])
    assert (result.exit_code, "No space left on device" in result.stderr) == (4, True)
    assert sorted(tmp_path.iterdir()) == before
