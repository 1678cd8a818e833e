"""`benchmarks/gpu_first_run.sh` with tiny sizes: every part gives numbers, and one that fails costs only its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from simulated_cuda import simulated_cuda

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PARTS = ["machine", "rig", "decode", "update", "phases", "transport", "demo"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_part_runs_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    command = [str(BENCHMARKS / "gpu_first_run.sh"), "--tiny", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert list(found) == PARTS
    assert {name: part["log"] for name, part in found.items() if "error" in part} == {}
    assert {name: part["ok"] for name, part in found.items() if "ok" in part} == dict.fromkeys(
        ("rig", "transport", "demo"), True
    )
    assert found["rig"]["passed"] == 1
    assert found["update"]["tokens_per_s"] > 0
    assert found["decode"]["tokens_per_s"] > 0
    assert found["transport"]["ipc_s"] > 0
    assert found["transport"]["disk_s"] > 0


@pytest.fixture
def parts() -> Any:
    """The benchmark as a module."""
    spec = importlib.util.spec_from_file_location("gpu_parts", BENCHMARKS / "gpu_parts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_only_a_gpu_is_asked_for(parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_cuda(monkeypatch) as labels:
        found = {name: parts.PARTS[name](tmp_path, True) for name in ("machine", "update", "phases")}
        assert labels.operations > 1000
    assert found["machine"]["gpu"].startswith("NVIDIA H100")
    assert found["update"]["ok"] is False, "the arithmetic of a CPU is no 40 % of an H100"
    assert found["update"]["peak_gib"] == 1.0
    assert found["update"]["micro_batch_tokens"] == 16_384
    assert {"load_s", "offload_s"} <= found["phases"].keys()


def test_a_small_gpu_gets_small_micro_batches(parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the forecast for half a billion weights, of which only the configuration is here."""
    (tmp_path / "model").mkdir()
    sizes = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], **parts.HALF_BILLION}
    (tmp_path / "model" / "config.json").write_text(json.dumps(sizes))
    tokens = {}
    with simulated_cuda(monkeypatch):
        for gib in (22, 40, 78):
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None, gib=gib: (gib * 2**30, 2**40))
            config = parts.config_of(tmp_path, tiny=False)
            config.data.max_prompt_length, config.data.max_response_length = 256, 768
            parts._fit(config)
            tokens[gib] = config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu
    assert tokens == {22: 4096, 40: 16_384, 78: 16_384}


def test_parts_that_fail_cost_their_own_numbers_only(parts: Any, tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text('{"cpus": 2, "part_s": 1}')
    for name, end, log in (
        ("rig", "124 rig", ""),
        ("decode", "137 decode", ""),
        ("update", "139 update", "CUDA error"),
    ):
        (tmp_path / f"{name}.end").write_text(end)
        (tmp_path / f"{name}.log").write_text(log)
    (tmp_path / "demo.end").write_text("139 update")  # it was to follow in the same process
    parts.PARTS["phases"] = lambda work, tiny: 1 / 0
    parts.run("phases", tmp_path, tiny=True)
    out = tmp_path / "out.json"
    command = [sys.executable, str(BENCHMARKS / "gpu_parts.py"), str(tmp_path), "--report", str(out)]
    subprocess.run(command, capture_output=True, check=True)
    found = json.loads(out.read_text())
    assert list(found) == PARTS
    assert found["machine"] == {"cpus": 2, "part_s": 1}
    assert found["rig"]["error"] == found["decode"]["error"] == "it took longer than its limit"
    assert (found["update"]["error"], found["update"]["log"]) == ("it ended with exit code 139", "CUDA error")
    assert found["demo"]["log"] == "CUDA error"
    assert found["phases"]["error"] == "ZeroDivisionError: division by zero"
    assert "in <lambda>" in found["phases"]["log"]
    assert found["transport"]["error"] == "it ended with exit code -1"
