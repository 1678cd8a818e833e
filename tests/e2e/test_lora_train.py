"""LoRA in whole runs of the commands: train, resume, export, and a warm start before them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from runs import Run, Workspace
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from agentrl.cli import app

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
IDS = torch.arange(5, 60)[None]
MODEL = "actor_rollout_ref.model"


def command(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(IDS).logits
    return found


@pytest.fixture(scope="module")
def done(workspace: Workspace, engine: str) -> Run:
    """Two steps, each saved; the engine takes merged weights."""
    run = workspace.run(
        "lora",
        **{
            f"{MODEL}.lora_rank": 4,
            f"{MODEL}.lora_alpha": 32,
            f"{MODEL}.target_modules": ["q_proj", "v_proj", "up_proj"],
            "actor_rollout_ref.rollout.server.addresses": [engine],
            "actor_rollout_ref.actor.optim.lr": 1e-2,
            "actor_rollout_ref.actor.use_kl_loss": True,
            "trainer.deterministic": True,
            "trainer.save_freq": 1,
        },
    )
    command("train", run.recipe)
    return run


def test_engines_sample_with_merged_weights_and_the_reference_stays(done: Run) -> None:
    first, second = done.steps[1], done.steps[2]
    assert (first["training/rollout_probs_diff_max"], second["training/rollout_probs_diff_max"]) < (1e-4, 1e-4)
    assert second["actor/kl_loss"] > 1e-4, "the policy of step 2 has left the reference"
    assert done.metrics[0]["perf/trainable_parameters"] == 4 * 2 * (32 + 32 + 32 + 16 + 32 + 64)


def test_the_dry_run_counts_what_learns(done: Run) -> None:
    said = command("train", done.recipe, "--dry-run")
    assert "# LoRA:          actor_rollout_ref: 1,664 parameters learn and 27,072 are frozen (5.79 %), adapters" in said
    assert "# reference:     the actor without its adapters" in said
    wrong = command("train", done.recipe, f"{MODEL}.target_modules=[q_prj]", "--dry-run", code=2)
    assert f"{MODEL}.target_modules: got 'q_prj', but the model has no such module. Did you mean 'q_proj'?" in wrong


def test_a_checkpoint_is_an_adapter_that_is_merged_when_asked(done: Run, workspace: Workspace, tmp_path: Path) -> None:
    actor = done.folder / "global_step_2" / "actor"
    assert not (actor / "huggingface").exists()
    with safe_open(actor / "lora_adapter" / "adapter_model.safetensors", framework="pt") as file:
        assert len(list(file.keys())) == 2 * 3 * 2
    merged, adapter = tmp_path / "merged", tmp_path / "adapter"
    command("export", done.folder, merged)
    command("export", done.folder, adapter, "--adapter")
    assert json.loads((adapter / "adapter_config.json").read_text())["target_modules"] == [
        "q_proj",
        "up_proj",
        "v_proj",
    ]
    command("export", adapter, tmp_path / "again", "--base", workspace.model)
    assert torch.equal(logits(merged), logits(tmp_path / "again"))
    assert float((logits(merged) - logits(workspace.model)).abs().max()) > 1e-2
    assert AutoTokenizer.from_pretrained(merged).chat_template == AutoTokenizer.from_pretrained(adapter).chat_template
    said = command("train", done.recipe, f"{MODEL}.path={done.folder}", code=2)
    assert "holds a LoRA adapter and no model: `agentrl export" in said
    said = command("export", done.folder, tmp_path / "other", "--base", tmp_path / "nothing", code=2)
    assert "no model folder" in said


def test_a_run_goes_on_and_others_start_from_its_adapter(done: Run, workspace: Workspace, engine: str) -> None:
    straight = workspace.run("lora_straight", **_keys(done, engine), trainer__total_training_steps=3)
    command("train", straight.recipe)
    command("train", done.recipe, "trainer.total_training_steps=3")
    for name in ("actor/pg_loss", "actor/kl_loss", "actor/grad_norm", "critic/score/mean"):
        assert done.steps[3][name] == straight.steps[3][name], name
    keys = _keys(done, engine) | {f"{MODEL}.lora_adapter_path": str(done.folder / "global_step_3")}
    for key in ("lora_rank", "lora_alpha", "target_modules"):
        keys.pop(f"{MODEL}.{key}")
    after = workspace.run("lora_after", **keys, trainer__total_training_steps=1)
    command("train", after.recipe)
    assert after.steps[1]["actor/kl_loss"] > 1e-4, "the reference is the model without the adapter"
    assert after.steps[1]["training/rollout_probs_diff_max"] < 1e-4


def _keys(run: Run, engine: str) -> dict[str, object]:
    model = run.config.actor_rollout_ref.model
    return {
        f"{MODEL}.lora_rank": model.lora_rank,
        f"{MODEL}.lora_alpha": model.lora_alpha,
        f"{MODEL}.target_modules": model.target_modules,
        "actor_rollout_ref.rollout.server.addresses": [engine],
        "actor_rollout_ref.actor.optim.lr": 1e-2,
        "actor_rollout_ref.actor.use_kl_loss": True,
        "trainer.deterministic": True,
    }


def test_merged_weights_travel_over_http_and_the_critic_has_adapters_too(workspace: Workspace, engine: str) -> None:
    run = workspace.run(
        "lora_ppo",
        **{
            "lora.r": 2,
            "critic.model.lora_rank": 2,
            "algorithm.adv_estimator": "gae",
            "actor_rollout_ref.rollout.n": 1,
            "actor_rollout_ref.actor.optim.lr": 1e-2,
            "actor_rollout_ref.rollout.weight_sync": "tensor",
            "actor_rollout_ref.rollout.server.addresses": [engine],
            "trainer.save_freq": 2,
        },
    )
    command("train", run.recipe)
    assert run.steps[2]["training/rollout_probs_diff_max"] < 1e-4
    assert (run.folder / "global_step_2" / "critic" / "lora_adapter").is_dir()


def test_engines_may_load_the_adapter_itself(workspace: Workspace) -> None:
    """And give back their cache alone while the ranks train: the weights beside the adapter are not sent again."""
    keys = {f"{MODEL}.lora_rank": 4, "actor_rollout_ref.rollout.weight_sync": "adapter"}
    keys |= {"actor_rollout_ref.rollout.free_cache_engine": True, "actor_rollout_ref.actor.optim.lr": 1e-2}
    run = workspace.run("lora_adapter", **keys)
    command("train", run.recipe)
    assert all(metrics["timing_s/resume_engines"] > 0 for metrics in run.metrics)
    assert run.steps[2]["training/rollout_probs_diff_max"] < 1e-4
    without = command("train", run.recipe, f"{MODEL}.lora_rank=0", "--dry-run", code=2)
    assert "weight_sync: got adapter, but actor_rollout_ref.model.lora_rank is 0" in without


def test_a_warm_start_writes_its_model_and_its_adapter(workspace: Workspace, tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": "yes"}]} for i in range(4)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    given = [f"data.train_files={tmp_path / 'rows.parquet'}", f"model.path={workspace.model}", "model.lora_rank=4"]
    given += ["model.target_modules=[q_proj,down_proj]", "optim.lr=1e-2", "data.train_batch_size=2"]
    given += ["trainer.total_training_steps=2", "trainer.save_freq=2", f"trainer.default_local_dir={tmp_path / 'run'}"]
    given += ["trainer.logger=[jsonl]", "trainer.threads=1", "trainer.device=cpu"]
    assert "# LoRA:          1,280 parameters learn" in command("sft", *given, "--dry-run")
    command("sft", *given)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["perf/trainable_parameters"] == 1280
    assert not (tmp_path / "run" / "global_step_2" / "actor" / "huggingface").exists()
    trained = logits(tmp_path / "run" / "huggingface")
    command("export", tmp_path / "run" / "lora_adapter", tmp_path / "from_adapter")
    command("export", tmp_path / "run" / "global_step_2", tmp_path / "from_checkpoint")
    for folder in ("from_adapter", "from_checkpoint"):
        assert torch.equal(logits(tmp_path / folder), trained)
    assert float((trained - logits(workspace.model)).abs().max()) > 1e-2
