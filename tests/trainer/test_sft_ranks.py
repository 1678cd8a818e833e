"""Two gloo ranks learn what one rank learns, and a killed run goes on as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sft_runs import Memory, metrics_of, sft_config, sums, write_rows
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.config import dump_config
from agentrl.errors import CheckpointError, ConfigError
from agentrl.single_controller.ray_runtime import init_ray
from agentrl.trainer.sft import SFTTrainer, run_sft
from agentrl.workers.fsdp_model import FSDPModel

Weights = dict[str, torch.Tensor]
MUON, LORA = {"optim.name": "muon"}, {"model.lora_rank": 4, "optim.lr": 1e-2}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_rows(tmp_path_factory.mktemp("sft_rows") / "rows.parquet", sums(11))


def weights_of(folder: Path) -> Weights:
    return {name: value for file in folder.glob("model*.safetensors") for name, value in load_file(file).items()}


def assert_close(one: Weights, two: Weights, most: float = 1e-5) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], atol=most, rtol=0, msg=name)


def same(one: Weights, two: Weights) -> bool:
    return all(torch.equal(value, two[name]) for name, value in one.items())


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    """One cluster for all runs of this file."""
    with init_ray(num_cpus=2):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(
    "way",
    [{}, MUON, LORA],
    ids=str,
)
def test_two_ranks_equal_one(way: dict[str, Any], tiny_model_dir: Path, rows: str, tmp_path: Path) -> None:
    """Batches of 5 rows, forward passes of at most 60 tokens: the ranks need different numbers of passes."""
    changes = {
        **way,
        "data.train_batch_size": 5,
        "data.max_token_len": 60,
        "data.val_files": rows,
        "trainer.test_freq": 2,
        "trainer.total_training_steps": 4,
        "trainer.save_freq": 3,
    }
    folders, heard = [], []
    for ranks in (1, 2):
        heard.append(Memory())
        config = sft_config(tiny_model_dir, rows, tmp_path / str(ranks), {**changes, "trainer.n_gpus_per_node": ranks})
        folders.append(run_sft(config, [heard[-1]]))
    before, one, two = weights_of(tiny_model_dir), *map(weights_of, folders)
    assert max(float((one[name] - before[name]).abs().max()) for name in one) > 1e-4
    assert_close(one, two)
    for step, metrics in heard[0].steps.items():
        for name in ("train/loss", "train/accuracy", "train/grad_norm", "train/lr", "val/loss", "val/accuracy"):
            assert heard[1].steps[step].get(name) == pytest.approx(metrics.get(name), abs=1e-5), (step, name)
    # A checkpoint of two ranks goes on with one.
    resumed = {**changes, "trainer.resume_mode": "resume_path"}
    resumed["trainer.resume_from_path"] = str(tmp_path / "2" / "global_step_3")
    assert_close(weights_of(run_sft(sft_config(tiny_model_dir, rows, tmp_path / "3", resumed), [])), one)


def test_a_resumed_run_is_bit_equal_to_one_that_was_not_stopped(
    tiny_model_dir: Path, rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {
        "data.train_batch_size": 4,
        "trainer.total_training_steps": 7,
        "trainer.save_freq": 2,
        "trainer.log_freq": 3,
        "trainer.max_ckpt_to_keep": 2,
        "trainer.logger": ["jsonl"],
    }
    whole = run_sft(sft_config(tiny_model_dir, rows, tmp_path / "whole", changes))
    step = FSDPModel.step
    counted = []

    def dies(model: FSDPModel, lr: float) -> Any:
        counted.append(1)
        if len(counted) == 6:
            raise RuntimeError("pulled the plug")
        return step(model, lr)

    config = sft_config(tiny_model_dir, rows, tmp_path / "parts", changes)
    monkeypatch.setattr(FSDPModel, "step", dies)
    monkeypatch.setattr(SFTTrainer, "_save_at_end", lambda *_: None)
    with pytest.raises(RuntimeError, match="plug"):
        run_sft(config)
    monkeypatch.undo()
    assert sorted(path.name for path in (tmp_path / "parts").glob("global_step_*")) == [
        "global_step_2",
        "global_step_4",
    ]
    assert same(weights_of(run_sft(config)), weights_of(whole))
    assert metrics_of(tmp_path / "parts") == metrics_of(tmp_path / "whole")
    exported = CliRunner().invoke(app, ["export", str(tmp_path / "parts"), str(tmp_path / "exported")])
    assert exported.exit_code == 0, exported.output
    assert same(weights_of(tmp_path / "exported"), weights_of(whole))


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on(tiny_model_dir: Path, rows: str, tmp_path: Path) -> None:
    """`kill -9` of the command after its second checkpoint; the same command then finishes the run."""
    changes = {"data.train_batch_size": 2, "trainer.total_training_steps": 40, "trainer.save_freq": 2}
    config = sft_config(tiny_model_dir, rows, tmp_path / "run", changes)
    (tmp_path / "sft.yaml").write_text(dump_config(config))
    command = [sys.executable, "-m", "agentrl", "sft", str(tmp_path / "sft.yaml")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        latest = tmp_path / "run" / "latest_checkpointed_iteration.txt"
        while not (latest.exists() and int(latest.read_text()) >= 4) and time.monotonic() < deadline:
            assert process.poll() is None, "ended by itself"
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    assert not (tmp_path / "run" / "huggingface").exists()
    memory = Memory()
    resumed = run_sft(config, [memory])
    assert memory.run is not None
    assert (memory.run.resumed_from or 0) >= 4
    whole = run_sft(sft_config(tiny_model_dir, rows, tmp_path / "whole", changes), [])
    assert same(weights_of(resumed), weights_of(whole))


def test_ctrl_c_saves_the_finished_steps(
    tiny_model_dir: Path, rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"data.train_batch_size": 4, "trainer.total_training_steps": 5, "trainer.save_freq": 100}
    config = sft_config(tiny_model_dir, rows, tmp_path / "run", changes)
    step = FSDPModel.step
    counted = []

    def interrupted(model: FSDPModel, lr: float) -> Any:
        counted.append(1)
        if len(counted) == 3:
            signal.raise_signal(signal.SIGINT)
        return step(model, lr)

    with monkeypatch.context() as patch:
        patch.setattr(FSDPModel, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_sft(config, [])
    assert (tmp_path / "run" / "latest_checkpointed_iteration.txt").read_text() == "3"
    memory = Memory()
    run_sft(config, [memory])
    assert list(memory.steps) == [4, 5]


def test_what_is_in_the_run_folder(tiny_model_dir: Path, rows: str, tmp_path: Path, caplog: Any) -> None:
    """A finished model is never replaced unasked; a finished run with checkpoints has nothing left to do."""
    steps = {"data.train_batch_size": 4, "trainer.total_training_steps": 1}
    run_sft(sft_config(tiny_model_dir, rows, tmp_path / "a", steps), [])
    again = sft_config(tiny_model_dir, rows, tmp_path / "a", steps)
    with pytest.raises(ConfigError, match=r"huggingface exists already.*another folder.*resume_mode=disable"):
        SFTTrainer(again, [])
    again.trainer.resume_mode = "disable"
    run_sft(again, [])
    saved = sft_config(tiny_model_dir, rows, tmp_path / "b", {**steps, "trainer.save_freq": 1})
    run_sft(saved, [])
    memory = Memory()
    run_sft(saved, [memory])
    assert memory.steps == {}
    assert "all 1 steps are done already" in caplog.text
    other = write_rows(tmp_path / "other.parquet", sums(3))
    with pytest.raises(ConfigError, match=r"data\.train_files: the checkpoint was made with rows=11, this run has 3"):
        run_sft(sft_config(tiny_model_dir, other, tmp_path / "b", {**steps, "trainer.save_freq": 1}), [])
    missing = {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": str(tmp_path / "none")}
    with pytest.raises(CheckpointError, match="does not exist"):
        SFTTrainer(sft_config(tiny_model_dir, rows, tmp_path / "c", missing), [])
