"""The supervised warm start: it learns, its result loads, and nothing half-written is left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from sft_runs import Memory
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.config import load
from agentrl.config.sft import SFT_CHECKS, SFTConfig
from agentrl.errors import CheckpointError, ConfigError, DataError, HealthError, TemplateError
from agentrl.observability.run_folder import RunFolder
from agentrl.observability.run_state import State
from agentrl.trainer.sft import SFTTrainer, run_sft
from agentrl.workers import sft as workers_sft
from agentrl.workers.token_nets import DemonstrationNet

FACTS = {"1+1": "2", "2+3": "5", "9-2": "7", "4*2": "8"}


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    rows = [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in FACTS.items()
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "facts.parquet")
    return tmp_path / "facts.parquet"


def config(model: Path, data: Path, out: Path, *overrides: str) -> SFTConfig:
    given = [
        f"model.path={json.dumps(str(model))}",
        f"data.train_files={json.dumps(str(data))}",
        f"trainer.default_local_dir={json.dumps(str(out))}",
        "trainer.threads=1",
    ]
    return load(None, [*given, *overrides], SFTConfig, SFT_CHECKS)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_tiny_set_is_learned_by_heart(tiny_model_dir, facts, tmp_path, optimizer):
    memory = Memory()
    cfg = config(
        tiny_model_dir,
        facts,
        tmp_path / "out",
        f"optim.name={optimizer}",
        "optim.lr=1e-2",
        "optim.warmup_style=linear",
        "data.train_batch_size=4",
        "trainer.total_training_steps=60",
        "trainer.log_freq=20",
        f"data.val_files={json.dumps(str(facts))}",
    )
    folder = run_sft(cfg, [memory])
    assert list(memory.steps) == [20, 40, 60]
    assert memory.steps[20]["train/loss"] > 5 * memory.steps[60]["train/loss"]
    assert memory.steps[60]["val/accuracy"] == 1.0
    assert memory.steps[60]["train/lr"] < memory.steps[20]["train/lr"]
    assert memory.closed == 1
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for question, answer in FACTS.items():
        messages = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")
        out = model.generate(**ids, max_new_tokens=4, do_sample=False)
        assert tokenizer.decode(out[0, ids["input_ids"].shape[1] :]) == f"{answer}<|im_end|>"


def test_forward_passes_do_not_change_the_result(tiny_model_dir, facts, tmp_path):
    weights = []
    for number, limit in enumerate((8192, 40)):
        cfg = config(
            tiny_model_dir,
            facts,
            tmp_path / str(number),
            "data.train_batch_size=3",
            "optim.lr=1e-3",
            "trainer.total_training_steps=3",
            f"data.max_token_len={limit}",
        )
        weights.append(load_file(run_sft(cfg, []) / "model.safetensors"))
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=1e-4, atol=1e-5)


def test_the_seed_decides_the_result(tiny_model_dir, facts, tmp_path):
    def run(name: str, seed: int) -> dict[str, torch.Tensor]:
        steps = ("data.train_batch_size=2", "optim.lr=1e-3", "trainer.total_training_steps=2", f"trainer.seed={seed}")
        return load_file(run_sft(config(tiny_model_dir, facts, tmp_path / name, *steps), []) / "model.safetensors")

    first, again, other = run("a", 1), run("b", 1), run("c", 5)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_saving_and_validating_after_each_epoch(tiny_model_dir, facts, tmp_path):
    each = ["trainer.save_freq=after_each_epoch", "trainer.test_freq=after_each_epoch", f"data.val_files={facts}"]
    cfg = config(tiny_model_dir, facts, tmp_path / "out", "data.train_batch_size=2", "trainer.total_epochs=2", *each)
    memory = Memory()
    run_sft(cfg, [memory])
    assert [step for step, metrics in memory.steps.items() if "val/loss" in metrics] == [2, 4]
    assert sorted(path.name for path in (tmp_path / "out").glob("global_step_*")) == ["global_step_2", "global_step_4"]


def test_phases_are_parts_of_the_step_that_is_reported(tiny_model_dir, facts, tmp_path):
    each = ["trainer.save_freq=1", "trainer.test_freq=1", f"data.val_files={facts}", "trainer.total_training_steps=3"]
    memory = Memory()
    run_sft(config(tiny_model_dir, facts, tmp_path / "out", "data.train_batch_size=2", *each), [memory])
    for step, metrics in memory.steps.items():
        times = {
            name.removeprefix("timing_s/"): value for name, value in metrics.items() if name.startswith("timing_s/")
        }
        total = times.pop("step")
        # A checkpoint is written after its step was reported: a part of the next one's time.
        assert sorted(times) == ["save_checkpoint", "testing", "update_actor"][1 if step == 1 else 0 :]
        assert 0 < sum(times.values()) <= total


def test_steps_follow_from_epochs(tiny_model_dir, facts, tmp_path):
    cfg = config(tiny_model_dir, facts, tmp_path / "out", "data.train_batch_size=2", "trainer.total_epochs=3")
    assert SFTTrainer(cfg, []).total_steps == 6


def _times_nan(outputs):
    return outputs[0] * float("nan"), outputs[1]


def test_a_gradient_that_is_not_finite_changes_nothing(tiny_model_dir, facts, tmp_path, monkeypatch):
    cfg = config(tiny_model_dir, facts, tmp_path / "out", "trainer.total_training_steps=1", "trainer.log_freq=1")
    memory = Memory()
    whole = DemonstrationNet.forward

    monkeypatch.setattr(DemonstrationNet, "forward", lambda net, micro: _times_nan(whole(net, micro)))
    after = load_file(run_sft(cfg, [memory]) / "model.safetensors")
    before = load_file(tiny_model_dir / "model.safetensors")
    assert memory.steps[1]["train/skipped_steps"] == 1.0
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())


def test_an_endless_series_of_such_gradients_ends_the_run(tiny_model_dir, facts, tmp_path, monkeypatch):
    whole = DemonstrationNet.forward
    monkeypatch.setattr(DemonstrationNet, "forward", lambda net, micro: _times_nan(whole(net, micro)))
    cfg = config(tiny_model_dir, facts, tmp_path / "out", "trainer.total_epochs=9", "trainer.max_skipped_steps=2")
    with pytest.raises(HealthError, match=r"the last 2 steps changed no weight.*not finite"):
        run_sft(cfg, [])
    assert not (tmp_path / "out" / "huggingface").exists()


def test_a_failed_write_keeps_the_earlier_model(tiny_model_dir, facts, tmp_path, monkeypatch):
    cfg = config(tiny_model_dir, facts, tmp_path / "out", "trainer.total_training_steps=1")
    folder = run_sft(cfg, [])
    before = (folder / "model.safetensors").read_bytes()

    def fail(part, *_args):
        Path(part).mkdir()
        (Path(part) / "model.safetensors").write_bytes(b"half")
        raise CheckpointError("No space left on device")

    monkeypatch.setattr(workers_sft, "write_hf_folder", fail)
    cfg.trainer.resume_mode = "disable"
    with pytest.raises(CheckpointError, match="No space left"):
        run_sft(cfg, [])
    assert (folder / "model.safetensors").read_bytes() == before
    assert {path.name for path in folder.parent.iterdir()} == {"config.yaml", "huggingface", "run_state.json"}
    ended = RunFolder(folder.parent).state()
    assert (ended.state, "No space left" in str(ended.error)) == (State.FAILED, True)


def test_what_cannot_be_used_is_said_before_the_first_step(tiny_model_dir, facts, tmp_path):
    with pytest.raises(ConfigError, match=r"model\.path: not given") as error:
        load(None, [], SFTConfig, SFT_CHECKS)
    assert "data.train_files: not given" in str(error.value)
    with pytest.raises(ConfigError, match=r"optim\.muon_lrs.*Did you mean 'optim\.muon_lr'"):
        config(tiny_model_dir, facts, tmp_path, "optim.muon_lrs=1")
    with pytest.raises(TemplateError, match="cannot load a tokenizer"):
        SFTTrainer(config(tmp_path / "none", facts, tmp_path), [])
    with pytest.raises(DataError, match="no such file"):
        SFTTrainer(config(tiny_model_dir, tmp_path / "none.parquet", tmp_path), [])
    with pytest.raises(ConfigError, match="no CUDA device"):
        SFTTrainer(config(tiny_model_dir, facts, tmp_path, "trainer.device=cuda"), [])


def test_a_conversation_beyond_the_models_positions_is_refused(tiny_model_dir, tmp_path):
    messages = [{"role": "user", "content": "x" * 2100}, {"role": "assistant", "content": "y"}]
    pq.write_table(pa.Table.from_pylist([{"messages": messages}]), tmp_path / "long.parquet")
    cfg = config(tiny_model_dir, tmp_path / "long.parquet", tmp_path / "out", "data.max_length=4096")
    with pytest.raises(DataError, match="at most 2048"):
        SFTTrainer(cfg, [])


def test_the_command_runs_a_recipe_and_writes_the_run_folder(tiny_model_dir, facts, tmp_path):
    recipe = tmp_path / "sft.yaml"
    recipe.write_text(
        f"model: {{path: {tiny_model_dir}}}\ndata: {{train_files: facts.parquet, train_batch_size: 2}}\n"
        f"trainer: {{default_local_dir: {tmp_path / 'out'}, log_freq: 1, threads: 1}}\n"
    )
    result = CliRunner().invoke(app, ["sft", str(recipe), "trainer.total_training_steps=2"])
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.yaml",
        "metrics.jsonl",
        "run_state.json",
        "huggingface",
    }
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    state = RunFolder(tmp_path / "out").state()
    assert (state.state, state.step, state.total_steps) == (State.FINISHED, lines[-1]["step"], lines[-1]["step"])
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["train/loss"] > 0 for line in lines)
    again = load(tmp_path / "out" / "config.yaml", [], SFTConfig, SFT_CHECKS)
    assert again.trainer.total_training_steps == 2


def test_the_command_says_what_is_wrong_in_one_message(tmp_path):
    result = CliRunner().invoke(app, ["sft", "data.train_file=x.parquet"])
    assert result.exit_code == 2
    assert "data.train_files" in result.output
    assert "Traceback" not in result.output
