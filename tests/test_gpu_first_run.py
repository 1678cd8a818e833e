"""`benchmarks/gpu_first_run.sh` with tiny sizes: every part gives numbers, and one that fails costs only its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert found["rig"]["ok"]
    assert found["demo"]["ok"]
    assert found["update"]["tokens_per_s"] > 0
    assert found["decode"]["tokens_per_s"] > 0


def test_parts_that_fail_cost_their_own_numbers_only(tmp_path: Path) -> None:
    for name, end in {"machine": "0 1", "rig": "124 120", "decode": "1 3"}.items():
        (tmp_path / f"{name}.end").write_text(end)
        (tmp_path / f"{name}.json").write_text('{"cpus": 2}' if name == "machine" else "")
        (tmp_path / f"{name}.log").write_text("CUDA out of memory" if name == "decode" else "")
    out = tmp_path / "out.json"
    command = [sys.executable, str(BENCHMARKS / "gpu_parts.py"), "report", str(tmp_path), str(out)]
    subprocess.run(command, capture_output=True, check=True)
    found = json.loads(out.read_text())
    assert list(found) == PARTS
    assert found["machine"] == {"cpus": 2, "part_s": 1}
    assert found["rig"]["error"] == "it took longer than its limit"
    assert (found["decode"]["error"], found["decode"]["log"]) == ("it ended with exit code 1", "CUDA out of memory")
    assert "error" in found["demo"]
