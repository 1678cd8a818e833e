"""Every key of `agentrl sft` acts in a tiny warm start, or its user is told why it does not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from watched_run import TEMPLATE, changed_value, heard

from agentrl.config import load
from agentrl.config.idle_sft_keys import IDLE_SFT_KEYS
from agentrl.config.schema import section_of, walk
from agentrl.config.sft import SFT_CHECKS, SFTConfig
from agentrl.config.value_tree import get_value
from agentrl.errors import AgentRLError, ConfigError
from agentrl.observability.tracker import RunInfo, Tracker
from agentrl.testing.models import build_tiny_model
from agentrl.trainer import sft

KEYS = [key for key, field in walk(SFTConfig) if section_of(field) is None]
UNSEEN = {
    "model.trust_remote_code": "needs a model folder with code of its own",
    "model.enable_gradient_checkpointing": "changes the memory, never the result",
    "data.max_token_len": "changes the number of passes, never the result",
    "trainer.device": "needs a GPU",
    "trainer.threads": "changes the speed, never the result",
    "trainer.logger": "the trackers are stand-ins here",
}
SCENARIOS: dict[str, dict[str, Any]] = {
    "plain": {},
    "muon": {"optim.name": "muon"},
    "falling": {"optim.warmup_style": "cosine", "optim.total_training_steps": 5, "optim.lr_warmup_steps_ratio": 0.2},
    "validates": {"data.val_files": "rows.parquet"},
    "epochs": {"trainer.total_training_steps": None},
    "overlong": {"data.max_length": 20},
    "rows with tools": {"data.train_files": "tools.parquet"},
}
ACTS_IN = {
    "data.filter_overlong": "overlong",
    "data.tools_key": "rows with tools",
    "optim.warmup_style": "falling",
}
OWN: dict[str, list[Any]] = {
    "data.train_files": ["other.parquet"],
    "data.val_files": ["other.parquet"],
    "data.tool_config_path": ["tools/calculator.yaml"],
    "data.max_length": [20],
    "data.train_batch_size": [1],
    "data.apply_chat_template_kwargs": [{"hint": "So"}],
    "model.path": ["other_model"],
    "model.tokenizer_path": ["nothing"],
    "model.chat_template": [TEMPLATE.replace("assistant", "robot")],
    "optim.betas": [[0.5, 0.6]],
    "optim.lr_warmup_steps": [4],
    "optim.lr_warmup_steps_ratio": [1.0],
    "trainer.default_local_dir": ["elsewhere"],
    "trainer.test_freq": [1],
    "trainer.log_freq": [1],
}


class Kept(Tracker):
    """Keeps what a tracker is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_start(self, run: RunInfo) -> None:
        self.told.append((run.project, run.experiment, run.total_steps))

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.told.append(
            (step, {name: value for name, value in metrics.items() if name.startswith(("train/", "val/"))})
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Path:
    folder = tmp_path_factory.mktemp("sft_walk")
    for name, count in (("rows", 5), ("other", 3)):
        rows = [
            [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": "1" * (i + 1)}] for i in range(count)
        ]
        pq.write_table(pa.table({"messages": rows}), folder / f"{name}.parquet")
    offered = json.dumps([{"type": "function", "function": {"name": "times", "parameters": {"type": "object"}}}])
    rows = pq.read_table(folder / "rows.parquet")
    pq.write_table(rows.append_column("tools", pa.array([offered] * len(rows))), folder / "tools.parquet")
    shutil.copytree(tiny_model_dir, folder / "model")
    build_tiny_model(folder / "other_model", seed=5)
    return folder


@pytest.fixture(autouse=True)
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def configured(changes: dict[str, Any]) -> SFTConfig:
    base = {
        "data.train_files": "rows.parquet",
        "data.train_batch_size": 2,
        "model.path": "model",
        "model.chat_template": TEMPLATE,
        "optim.lr": 1e-2,
        "optim.grad_clip": 0.1,
        "trainer.total_training_steps": 3,
        "trainer.default_local_dir": "run",
        "trainer.device": "cpu",
    }
    return load({**base, **changes}, [], SFTConfig, SFT_CHECKS, IDLE_SFT_KEYS)


def watched(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Everything that a warm start shows."""
    shutil.rmtree("run", ignore_errors=True)
    seen: list[Any] = []
    monkeypatch.setattr(sft, "write_hf_folder", lambda folder, *_: folder.mkdir())
    tracker = Kept()
    try:
        trainer = sft.SFTTrainer(configured(changes), [tracker])
        trainer.fit()
        seen.append(sum(float(p.detach().double().abs().sum()) for p in trainer.model.parameters()))
    except AgentRLError as error:
        seen.append(str(error))
    return seen, tracker.told, sorted(str(path) for path in Path("run").glob("*"))


@pytest.mark.parametrize("key", KEYS)
def test_a_key_acts_or_is_told(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    first = None
    for name in [ACTS_IN[key]] if key in ACTS_IN else SCENARIOS:
        scenario = SCENARIOS[name]
        value = changed_value(SFTConfig, key, get_value(configured(scenario).model_dump(), key), OWN)
        told = heard(key, lambda: configured({**scenario, key: value}))  # noqa: B023
        first = first or told or "accepted in silence"
        if told is None and key not in UNSEEN:
            if watched(scenario, monkeypatch) != watched({**scenario, key: value}, monkeypatch):
                return
            assert name != "plain", f"{key}={value} is accepted in silence and changes nothing"
    assert key in UNSEEN, f"{key} acts in no scenario; plain: {first}"


def test_the_tables_name_only_keys_that_exist() -> None:
    assert (UNSEEN.keys() | ACTS_IN.keys() | OWN.keys()) <= set(KEYS)


def test_what_is_required_is_told() -> None:
    with pytest.raises(ConfigError, match=r"model\.path: not given"):
        load({}, [], SFTConfig, SFT_CHECKS, IDLE_SFT_KEYS)
