"""Small files and configurations for tests of `agentrl sft`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.config import load
from agentrl.config.idle_sft_keys import IDLE_SFT_KEYS
from agentrl.config.sft import SFT_CHECKS, SFTConfig
from agentrl.observability.tracker import RunInfo, Tracker


class Memory(Tracker):
    """Keeps what a tracker is told."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, float]] = {}
        self.run: RunInfo | None = None
        self.closed = 0

    def on_start(self, run: RunInfo) -> None:
        self.run = run

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.steps[step] = metrics

    def close(self) -> None:
        self.closed += 1


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def sums(count: int) -> list[dict[str, Any]]:
    """Conversations of different lengths, every third with two turns."""
    rows = []
    for i in range(count):
        messages = [{"role": "user", "content": f"{i}+{i}" * (i % 4 + 1)}, {"role": "assistant", "content": f"{2 * i}"}]
        if i % 3 == 0:
            messages += [{"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Yes" * (i % 5 + 1)}]
        rows.append({"messages": messages})
    return rows


def sft_config(model: Path, data: str | Path, out: Path, changes: Mapping[str, Any] | None = None) -> SFTConfig:
    base = {
        "model.path": str(model),
        "data.train_files": str(data),
        "trainer.default_local_dir": str(out),
        "trainer.threads": 1,
        "trainer.device": "cpu",
        "optim.lr": 1e-3,
    }
    return load({**base, **(changes or {})}, [], SFTConfig, SFT_CHECKS, IDLE_SFT_KEYS)


def metrics_of(folder: Path) -> list[dict[str, float]]:
    """Lines of `metrics.jsonl` without times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(("perf/", "timing_s/"))} for line in lines]
