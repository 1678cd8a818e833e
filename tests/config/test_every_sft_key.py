"""Every key of `agentrl sft` acts in a tiny warm start, or its user is told why it does not."""

from __future__ import annotations

import contextlib
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
from agentrl.single_controller import ResourcePool, create_worker_group, ray_runtime
from agentrl.testing.models import build_tiny_model
from agentrl.trainer import sft
from agentrl.workers import fsdp_model
from agentrl.workers import sft as workers_sft

KEYS = [key for key, field in walk(SFTConfig) if section_of(field) is None]
GPU = "needs a GPU: tests/workers runs it there"
RANKS = "needs several ranks: tests/workers/test_mesh.py runs it on them"
UNSEEN = {
    "model.trust_remote_code": "needs a model folder with code of its own",
    "model.enable_gradient_checkpointing": "changes the memory, never the result",
    "model.lora_dropout": "only 0 is allowed with LoRA",
    "model.fsdp_config.param_offload": GPU,
    "model.fsdp_config.optimizer_offload": GPU,
    "model.fsdp_config.offload_policy": GPU,
    "model.use_remove_padding": GPU,
    **{
        f"model.fsdp_config.{key}": RANKS
        for key in ("fsdp_size", "ulysses_sequence_parallel_size", "tensor_parallel_size")
    },
    "trainer.device": GPU,
    "trainer.async_save": "changes when files are written: tests/trainer/test_saving.py",
    "trainer.checkpoint.save_contents": "changes a checkpoint: tests/workers/test_saved_contents.py",
    "trainer.checkpoint.load_contents": "changes what is read: tests/workers/test_saved_contents.py",
    "trainer.logger": "the trackers are stand-ins here",
    "trainer.max_skipped_steps": "no configuration makes gradients that are not finite: tests/trainer breaks them",
}
THINKING = TEMPLATE + "{% if enable_thinking is defined and enable_thinking %}hm{% endif %}"
SCENARIOS: dict[str, dict[str, Any]] = {
    "plain": {},
    "muon": {"optim.name": "muon"},
    "adapters": {"model.lora_rank": 2},
    "falling": {"optim.warmup_style": "cosine", "optim.total_training_steps": 5, "optim.lr_warmup_steps_ratio": 0.2},
    "validates": {"data.val_files": "rows.parquet"},
    "epochs": {"trainer.total_training_steps": None},
    "overlong": {"data.max_length": 20},
    "rows with tools": {"data.train_files": "tools.parquet"},
    "rows with tool messages": {"data.train_files": "searches.parquet"},
    "rows with thinking": {"data.train_files": "thinking.parquet", "model.chat_template": THINKING},
    "by rows": {"data.micro_batch_size_per_gpu": 1},
    "saves": {"trainer.save_freq": 1},
    "a finished model": {"trainer.default_local_dir": "finished"},
    "resumes": {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": "saved/global_step_1"},
    "ranks": {"trainer.n_gpus_per_node": 2},
    "a cluster": {"trainer.n_gpus_per_node": 2, "ray_init.address": "10.0.0.1:6379"},
}
ACTS_IN = {
    "data.filter_overlong": "overlong",
    "data.truncation": "overlong",
    "data.tools_key": "rows with tools",
    "data.in_turn_text": "rows with tool messages",
    "data.enable_thinking_key": "rows with thinking",
    "data.use_dynamic_bsz": "by rows",
    "optim.warmup_style": "falling",
    "trainer.resume_mode": "a finished model",
    "trainer.max_ckpt_to_keep": "saves",
}
OWN: dict[str, list[Any]] = {
    "data.train_files": ["other.parquet"],
    "data.val_files": ["other.parquet"],
    "data.tool_config_path": ["tools/calculator.yaml"],
    "data.multiturn.enable": [False],
    "data.max_length": [20],
    "data.in_turn_text": ["({content})"],
    "data.max_token_len": [10],
    "data.micro_batch_size_per_gpu": [1],
    "data.train_batch_size": [1],
    "data.apply_chat_template_kwargs": [{"hint": "So"}],
    "model.path": ["other_model"],
    "model.target_modules": [["q_proj"]],
    "model.exclude_modules": [["q_proj"]],
    "model.tokenizer_path": ["nothing"],
    "model.chat_template": [TEMPLATE.replace("assistant", "robot")],
    "model.fsdp_config.model_dtype": ["bfloat16"],
    "model.fsdp_config.compute_dtype": ["bfloat16"],
    "model.fsdp_config.fsdp_size": [2],
    "model.fsdp_config.ulysses_sequence_parallel_size": [2],
    "model.fsdp_config.tensor_parallel_size": [2],
    "optim.betas": [[0.5, 0.6]],
    "optim.lr_warmup_steps": [4],
    "optim.lr_warmup_steps_ratio": [1.0],
    "trainer.default_local_dir": ["elsewhere"],
    "trainer.test_freq": [1],
    "trainer.log_freq": [2],
    "trainer.threads": [7],
    "trainer.save_freq": [2],
    "trainer.resume_mode": ["disable"],
    "trainer.resume_from_path": ["saved/global_step_2"],
    "ray_init.address": ["10.0.0.2:6379"],
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
    said = [("user", "Zoru?"), ("assistant", "<search>Zoru</search>"), ("tool", "Balund"), ("assistant", "Balund")]
    search = [{"role": role, "content": content} for role, content in said]
    pq.write_table(pa.table({"messages": [search] * 3}), folder / "searches.parquet")
    thinking = rows.append_column("enable_thinking", pa.array([True] * len(rows)))
    pq.write_table(thinking, folder / "thinking.parquet")
    shutil.copytree(tiny_model_dir, folder / "model")
    build_tiny_model(folder / "other_model", seed=5)
    (folder / "finished" / "huggingface").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        saving = {"trainer.default_local_dir": "saved", "trainer.save_freq": 1, "trainer.total_training_steps": 2}
        sft.run_sft(configured(saving), [])
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
        "optim.warmup_style": "constant",
        "optim.lr_warmup_steps_ratio": 0.0,
        "trainer.total_training_steps": 3,
        "trainer.default_local_dir": "run",
        "trainer.device": "cpu",
    }
    return load({**base, **changes}, [], SFTConfig, SFT_CHECKS, IDLE_SFT_KEYS)


def watched(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Everything that a warm start shows: ranks are one rank in this process, and Ray is a stand-in."""
    shutil.rmtree("run", ignore_errors=True)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(False)  # whatever tests before this one have left
    seen: list[Any] = []
    real_group, real_shard, real_passes = create_worker_group, fsdp_model.fully_shard, fsdp_model.FSDPModel.passes

    def group(backend: Any, pool: ResourcePool, *args: Any) -> Any:
        seen.append((backend, list(pool.process_on_nodes), pool.threads_per_rank))
        return real_group("local", ResourcePool((1,), threads_per_rank=1), *args)

    def cluster(*args: Any, **options: Any) -> Any:
        seen.append((args, options))
        return contextlib.nullcontext()

    def shard(*args: Any, **options: Any) -> Any:
        seen.append(options.get("reshard_after_forward"))
        return real_shard(*args, **options)

    def passes(model: Any, micros: Any, *args: Any) -> Any:
        seen.append([micro.mask.shape[0] for micro in micros.batches])
        return real_passes(model, micros, *args)

    def write(folder: str, model: fsdp_model.FSDPModel, lm: Any, _config: Any) -> None:
        weights = model.full_weights(lm)
        seen.append(sum(float(weight.detach().double().abs().sum()) for weight in weights.values()))
        Path(folder).mkdir(parents=True)

    tracker = Kept()
    with monkeypatch.context() as patch:
        patch.setattr(sft, "create_worker_group", group)
        patch.setattr(ray_runtime, "init_ray", cluster)
        patch.setattr(fsdp_model, "fully_shard", shard)
        patch.setattr(fsdp_model.FSDPModel, "passes", passes)
        patch.setattr(workers_sft, "write_hf_folder", write)
        try:
            sft.SFTTrainer(configured(changes), [tracker]).fit()
        except AgentRLError as error:
            seen.append(str(error))
    seen.append(torch.are_deterministic_algorithms_enabled())
    torch.use_deterministic_algorithms(False)
    return seen, tracker.told, sorted(str(path) for path in Path("run").glob("*"))


@pytest.fixture(scope="module")
def unchanged() -> dict[str, Any]:
    """What is seen in each scenario as it is, once somebody looked."""
    return {}


@pytest.mark.parametrize("key", KEYS)
def test_a_key_acts_or_is_told(key: str, unchanged: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first = None
    for name in [ACTS_IN[key]] if key in ACTS_IN else SCENARIOS:
        scenario = SCENARIOS[name]
        value = changed_value(SFTConfig, key, get_value(configured(scenario).model_dump(), key), OWN)
        told = heard(key, lambda: configured({**scenario, key: value}))  # noqa: B023
        first = first or told or "accepted in silence"
        if told is None and key not in UNSEEN:
            if name not in unchanged:
                unchanged[name] = watched(scenario, monkeypatch)
            if watched({**scenario, key: value}, monkeypatch) != unchanged[name]:
                return
            assert name != "plain", f"{key}={value} is accepted in silence and changes nothing"
    assert key in UNSEEN, f"{key} acts in no scenario; plain: {first}"


def test_the_tables_name_only_keys_that_exist() -> None:
    assert (UNSEEN.keys() | ACTS_IN.keys() | OWN.keys()) <= set(KEYS)


def test_what_is_required_is_told() -> None:
    with pytest.raises(ConfigError, match=r"model\.path: not given"):
        load({}, [], SFTConfig, SFT_CHECKS, IDLE_SFT_KEYS)


def test_a_text_without_a_place_for_the_tool_s_answer() -> None:
    with pytest.raises(ConfigError, match=r"data\.in_turn_text: got 'own', wanted a text with \{content\}"):
        configured({"data.in_turn_text": "own"})
