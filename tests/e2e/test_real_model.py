"""Two GRPO steps of a real model on real rows: SmolLM2-135M on GSM8K with a calculator and a grader."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from runs import Process, Run, finished, started

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(2400)]
MAX_GIB = 12


class PeakMemory(threading.Thread):
    """Largest memory of all processes of a run, shared pages counted once (PSS)."""

    def __init__(self, process: Process) -> None:
        super().__init__(daemon=True)
        self.gib = 0.0
        self._process = process

    def run(self) -> None:
        while self._process.popen.poll() is None:
            self.gib = max(self.gib, sum(map(_pss, self._process.family())) / 2**30)
            time.sleep(1.0)


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def test_two_steps_of_smollm2_on_gsm8k_with_tools(
    smollm2_folder: Path, shared_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = finished(
        "data", "gsm8k", "--variant", "tool", "--source", str(shared_folder / "data/gsm8k"), "--out", str(tmp_path)
    )
    assert code == 0, output
    folder = tmp_path / "run"
    settings = {
        "actor_rollout_ref.model.path": smollm2_folder,
        "data.train_files": tmp_path / "train.parquet",
        "trainer.default_local_dir": folder,
        "trainer.rollout_data_dir": folder / "rollouts",
        # half the recipe's prompts and a third of its tokens: the same path, in a test's time
        "data.train_batch_size": 2,
        "data.max_response_length": 64,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
    }
    began = time.monotonic()
    with started("train", "gsm8k_tool_smollm2", *(f"{key}={value}" for key, value in settings.items())) as process:
        peak = PeakMemory(process)
        peak.start()
        code, output = process.finish(2300)
        peak.join()
    seconds = time.monotonic() - began
    assert code == 0, output
    run = Run(tmp_path, folder)
    one, two = run.metrics
    with capsys.disabled():
        sys.stdout.write(f"\nSmolLM2-135M on GSM8K with tools: {seconds:.0f} s for 2 steps, peak {peak.gib:.1f} GiB\n")
        for step, row in ((1, one), (2, two)):
            stages = ("gen", "update_actor", "update_weights", "step")
            shown = ", ".join(f"{stage} {row[f'timing_s/{stage}']:.1f}" for stage in stages)
            sys.stdout.write(f"step {step}: {shown} s, {row['perf/total_num_tokens']:.0f} tokens\n")
    assert peak.gib < MAX_GIB
    assert len(run.rollouts(1)) == len(run.rollouts(2)) == 4
    assert two["rollout/env_error_rate"] == 0
    assert '"name": "calculator"' in run.rollouts(2)[0]["input"]
    assert (folder / "global_step_2" / "actor" / "huggingface" / "model.safetensors").is_file()
