"""A pre-trained model learns to use a calculator: `configs/arithmetic_smollm2.yaml`, from its rows to its bar."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from runs import Run, started

LIMIT_S = 90 * 60
pytestmark = [pytest.mark.slow, pytest.mark.pretrained, pytest.mark.e2e, pytest.mark.timeout(LIMIT_S)]
MINUTES = 75
SUCCESS = "val-core/agentrl/arithmetic/reward/mean@1"


def agentrl(*arguments: str) -> None:
    """Run a command to its end, which must be a good one."""
    with started(*arguments) as process:
        code, output = process.finish(LIMIT_S)
    assert code == 0, output


def test_smollm2_doubles_its_success_on_arithmetic_in_words(
    smollm2_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, start, folder = (tmp_path / name for name in ("data", "sft", "train"))
    sizes = ["--train", "2000", "--test", "64", "--demonstrations", "128", "--call-share", "0.25"]
    agentrl("data", "arithmetic", "--words", *sizes, "--out", str(data))
    settings = {
        "model.path": smollm2_folder,
        "data.train_files": data / "demonstrations.parquet",
        "trainer.default_local_dir": start,
    }
    agentrl("sft", "arithmetic_smollm2_sft", *(f"{key}={value}" for key, value in settings.items()))
    settings = {
        "actor_rollout_ref.model.path": start / "huggingface",
        "data.train_files": data / "train.parquet",
        "data.val_files": data / "test.parquet",
        "trainer.default_local_dir": folder,
        "trainer.rollout_data_dir": folder / "rollouts",
        "trainer.validation_data_dir": folder / "validation",
    }
    began = time.monotonic()
    agentrl("train", "arithmetic_smollm2", *(f"{key}={value}" for key, value in settings.items()))
    minutes = (time.monotonic() - began) / 60
    curve = {int(row["step"]): row[SUCCESS] for row in Run(tmp_path, folder).metrics if SUCCESS in row}
    with capsys.disabled():
        shown = ", ".join(f"{step}: {success:.2f}" for step, success in curve.items())
        sys.stdout.write(f"\nSmolLM2-135M, held-out success by step: {shown}; {minutes:.0f} minutes\n")
    before, after = curve[0], curve[max(curve)]
    # A start that never succeeds would double with nothing learned: the end must also be seen in a fifth of the rows.
    assert after >= max(2 * before, 0.2)
    assert minutes < MINUTES
