"""SFT commands and YAML as verl's users write them: every key acts, or is refused or noted in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sft_runs import sums, write_rows
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.config import load
from agentrl.config.idle_sft_keys import IDLE_SFT_KEYS
from agentrl.config.sft import SFT_CHECKS, SFTConfig
from agentrl.errors import ConfigError
from agentrl.trainer.fsdp_sft_trainer import sft_arguments

GSM8K = [{"extra_info": {"question": f"{i} + {i}?", "answer": f"#### {2 * i}"}, "data_source": "x"} for i in range(6)]
WHOLE_YAML = """
data:
  train_batch_size: 4
  micro_batch_size: null
  micro_batch_size_per_gpu: 2
  train_files: {rows}
  val_files: {rows}
  prompt_key: question
  response_key: answer
  prompt_dict_keys: null
  response_dict_keys: null
  multiturn:
    enable: true
    messages_key: messages
    tools_key: tools
    enable_thinking_key: enable_thinking
  max_length: 1024
  truncation: error
  balance_dp_token: False
  chat_template: null
  custom_cls: {{path: null, name: null}}
  use_shm: False
model:
  partial_pretrain: {model}
  use_shm: False
  fsdp_config:
    model_dtype: fp32
    wrap_policy: {{min_num_params: 0}}
    cpu_offload: False
    offload_params: False
  external_lib: null
  enable_gradient_checkpointing: True
  trust_remote_code: False
  lora_rank: 0
  lora_alpha: 16
  target_modules: all-linear
  use_liger: False
  strategy: fsdp2
optim:
  lr: 1e-3
  betas: [0.9, 0.95]
  weight_decay: 0.01
  warmup_steps_ratio: 0.1
  clip_grad: 1.0
  lr_scheduler: cosine
ulysses_sequence_parallel_size: 1
use_remove_padding: False
trainer:
  default_local_dir: {out}
  default_hdfs_dir: null
  project_name: gsm8k-sft
  experiment_name: test
  total_epochs: 4
  total_training_steps: 2
  logger: ['jsonl']
  seed: 1
  save_freq: -1
  test_freq: -1
  nnodes: 1
  n_gpus_per_node: 1
  max_ckpt_to_keep: null
  resume_mode: auto
  resume_from_path: null
  checkpoint:
    save_contents: ["model", "optimizer", "extra"]
    load_contents: ${{trainer.checkpoint.save_contents}}
  device: cpu
"""


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def gsm8k(tmp_path: Path) -> str:
    return write_rows(tmp_path / "gsm8k.parquet", GSM8K)


@pytest.mark.slow
def test_verls_torchrun_command_trains_on_two_ranks(tiny_model_dir: Path, gsm8k: str, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes=1", "--nproc_per_node=2"),
        *("-m", "agentrl.trainer.fsdp_sft_trainer", f"data.train_files={gsm8k}", f"data.val_files={gsm8k}"),
        *("data.prompt_key=extra_info", "data.response_key=extra_info", "optim.lr=1e-3"),
        *("data.prompt_dict_keys=['question']", "+data.response_dict_keys=['answer']"),
        *("data.micro_batch_size_per_gpu=1", "data.train_batch_size=6", f"model.partial_pretrain={tiny_model_dir}"),
        *(f"trainer.default_local_dir={tmp_path / 'run'}", "trainer.project_name=gsm8k-sft"),
        *("trainer.experiment_name=tiny", "trainer.logger=['console','jsonl']", "trainer.total_training_steps=1"),
        *("trainer.default_hdfs_dir=null", "trainer.n_gpus_per_node=8", "ulysses_sequence_parallel_size=1"),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("this is `agentrl sft` here") == 1
    assert "gsm8k-sft/tiny: 1 steps" in done.stdout
    (step,) = lines(tmp_path / "run")
    assert step["val/loss"] < step["train/loss"]
    assert "n_gpus_per_node: 2" in (tmp_path / "run" / "config.yaml").read_text()
    after, before = (load_file(f / "model.safetensors") for f in (tmp_path / "run" / "huggingface", tiny_model_dir))
    assert any(not torch.equal(value, before[name]) for name, value in after.items())


def test_processes_of_torchrun() -> None:
    assert sft_arguments(["a=1"], {}) == ["a=1"]
    first = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    assert sft_arguments(["a=1"], first) == ["a=1", "trainer.n_gpus_per_node=2", "trainer.nnodes=2"]
    assert sft_arguments(["a=1"], {**first, "RANK": "1"}) is None


def test_verls_whole_yaml(tiny_model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = write_rows(tmp_path / "rows.parquet", sums(6))
    text = WHOLE_YAML.format(rows=rows, model=tiny_model_dir, out=tmp_path / "run")
    (tmp_path / "sft.yaml").write_text(text)
    refused = invoke("sft", str(tmp_path / "sft.yaml"))
    assert refused.exit_code == 2
    assert "data.multiturn.enable: got true" in refused.output
    (tmp_path / "sft.yaml").write_text(text.replace("  prompt_key: question\n  response_key: answer\n", ""))
    done = invoke("sft", str(tmp_path / "sft.yaml"))
    assert done.exit_code == 0, done.output
    assert [line["step"] for line in lines(tmp_path / "run")] == [1, 2]
    assert lines(tmp_path / "run")[0]["train/lr"] == pytest.approx(1e-3)
    assert lines(tmp_path / "run")[1]["train/lr"] == pytest.approx(1e-3 * 0.5)


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("model.partial_pretrain=/some/where", "model.path", "/some/where"),
        ("optim.warmup_steps_ratio=0.3", "optim.lr_warmup_steps_ratio", 0.3),
        ("optim.lr_scheduler=constant", "optim.warmup_style", "constant"),
        ("optim.clip_grad=0.5", "optim.grad_clip", 0.5),
        ("data.multiturn.messages_key=talk", "data.messages_key", "talk"),
        ("data.multiturn.tools_key=offers", "data.tools_key", "offers"),
        ("data.max_token_len_per_gpu=77", "data.max_token_len", 77),
        ("data.micro_batch_size_per_gpu=3", "data.use_dynamic_bsz", False),
        ("model.fsdp_config.cpu_offload=true", "model.fsdp_config.offload_policy", True),
        ("model.fsdp_config.model_dtype=bf16", "model.fsdp_config.model_dtype", "bfloat16"),
        ("use_remove_padding=false", "model.use_remove_padding", False),
        ("data.prompt_dict_keys=question", "data.prompt_dict_keys", ["question"]),
    ],
)
def test_a_key_of_verl_is_one_of_ours(override: str, key: str, value: Any) -> None:
    config: Any = load(None, ["model.path=/m", "data.train_files=r", override], SFTConfig, SFT_CHECKS, IDLE_SFT_KEYS)
    for name in key.split("."):
        config = getattr(config, name)
    assert config == value


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.lora.use_dora=true", r"model\.lora\.use_dora: got true, but LoRA here is plain"),
        ("ulysses_sequence_parallel_size=2", "but the run has 1 rank, which it does not divide"),
        ("data.micro_batch_size=4", r"give `data\.micro_batch_size_per_gpu` instead"),
        ("data.custom_cls.path=my.py", "no dataset plug-ins"),
        ("trainer.default_hdfs_dir=hdfs://x", "HDFS is not supported"),
        ("data.truncation=middle", "wanted one of 'error', 'left', 'right'"),
        ("model.use_liger=true", "Liger kernels are not supported"),
        ("optim.lr_sheduler=cosine", "unknown key.*Did you mean"),
        ("data.multiturn.messages=talk", "unknown key"),
        ("actor_rollout_ref.rollout.n=4", r"actor_rollout_ref: unknown key"),
        ("data.use_dynamic_bsz=false", r"needs data\.micro_batch_size_per_gpu"),
        ("trainer.nnodes=2", r"without ray_init\.address"),
        ("trainer.resume_mode=resume_path", r"trainer\.resume_from_path: not given"),
    ],
)
def test_what_asks_for_something_else_is_refused(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(None, ["model.path=/m", "data.train_files=r", override], SFTConfig, SFT_CHECKS, IDLE_SFT_KEYS)


def test_hydras_options_and_base_configuration(tiny_model_dir: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.parquet", sums(6))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text(
        f"defaults: [sft_trainer, _self_]\ndata: {{train_files: {rows}, train_batch_size: 3}}\n"
        f"model: {{partial_pretrain: {tiny_model_dir}}}\ntrainer: {{default_local_dir: {tmp_path / 'run'}}}\n"
    )
    given = ["sft", f"--config-path={tmp_path / 'conf'}", "--config-name=mine", "optim.lr=1e-4", "--dry-run"]
    shown = invoke(*given)
    assert shown.exit_code == 0, shown.output
    assert "2 of 3 conversations" in shown.output


def test_the_recipe_of_another_trainer_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "axolotl.yaml").write_text(
        "base_model: m\ndatasets: [{path: x, type: chat_template}]\nsequence_len: 4096\nlearning_rate: 1e-5\n"
        "micro_batch_size: 2\nnum_epochs: 3\n"
    )
    refused = invoke("sft", str(tmp_path / "axolotl.yaml"))
    assert refused.exit_code == 2
    said = " ".join(refused.output.split())
    assert "is the recipe of another trainer (axolotl)" in said
    assert "base_model is model.path, datasets is data.train_files, sequence_len is data.max_length" in said


def test_a_dry_run_checks_everything_and_starts_nothing(tiny_model_dir: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.parquet", sums(6))
    given = [f"data.train_files={rows}", f"model.path={tiny_model_dir}", f"trainer.default_local_dir={tmp_path / 'r'}"]
    shown = invoke("sft", *given, "data.train_batch_size=2", "trainer.device=cpu", "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert "6 conversations of" in shown.output
    assert "3 of 2 conversations, from the model folder" in shown.output
    assert not (tmp_path / "r").exists()
    (tmp_path / "again.yaml").write_text(shown.stdout)
    assert invoke("sft", str(tmp_path / "again.yaml"), "--dry-run").exit_code == 0
