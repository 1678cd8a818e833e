"""The configuration of `agentrl sft`: a supervised warm start on demonstrations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from agentrl.config.actor import OptimConfig
from agentrl.config.base import InputPath, ModelPath, Names, OutputPath, Section


class SFTDataConfig(Section):
    """Demonstrations: each row holds a whole conversation."""

    train_files: InputPath | list[InputPath] | None = None
    """Parquet file, list of files, or glob with the training rows."""
    val_files: InputPath | list[InputPath] | None = None
    """Parquet file, list of files, or glob with the validation rows; null: no validation."""
    messages_key: str = "messages"
    """Column with the conversation: `{role, content, tool_calls?, …}`."""
    tools_key: str = "tools"
    """Column with the function schemas that a row offers: JSON text or a list; default: `tool_config_path`."""
    tool_config_path: InputPath | None = None
    """Tool YAML for rows without their own `tools`; null: no tools."""
    max_length: int = Field(default=2048, ge=2)
    """Most tokens of a conversation."""
    filter_overlong: bool = False
    """Drop (and count) conversations over `max_length`; false: such a row is an error."""
    train_batch_size: int = Field(default=32, ge=1)
    """Conversations per optimizer step."""
    max_token_len: int = Field(default=8192, ge=1)
    """Most tokens of one forward pass, padding included. Never changes the result."""
    shuffle: bool = True
    """Use the rows in a seeded random order, a new one in each epoch."""
    apply_chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables for the chat template, for example `{enable_thinking: false}`."""


class SFTModelConfig(Section):
    """The model to start from."""

    path: ModelPath = ""
    """Hugging Face folder with weights, configuration and tokenizer; or a checkpoint of a run, which has one in it."""
    tokenizer_path: ModelPath | None = None
    """Folder of the tokenizer; null: the model's."""
    chat_template: InputPath | None = None
    """A Jinja chat template (text, or path of a `.jinja` file) that replaces the tokenizer's own."""
    enable_gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third slower."""
    trust_remote_code: bool = False
    """Run model code that comes with the model folder."""


class SFTOptimConfig(OptimConfig):
    """AdamW for all parameters, or Muon for the matrices of the layers and AdamW for the rest."""

    name: Literal["adamw", "muon"] = "adamw"
    """`muon` trains small models from scratch much faster; `lr` then applies to AdamW's part."""
    muon_lr: float = Field(default=0.02, gt=0)
    """Peak learning rate of Muon's matrices; it follows the same schedule."""
    muon_momentum: float = Field(default=0.95, ge=0, lt=1)
    """Momentum of Muon."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Gradients are clipped to this norm; a step whose norm is not finite is skipped and counted."""


class SFTTrainerConfig(Section):
    """The run: its length, device and logs."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the training; auto: cuda if available."""
    total_epochs: int = Field(default=1, ge=1)
    """Passes over the training rows."""
    total_training_steps: int | None = Field(default=None, ge=1)
    """Number of steps; null: as many as `total_epochs` gives."""
    project_name: str = "agentrl"
    """Name of the project in the trackers."""
    experiment_name: str = "sft"
    """Name of the run in the trackers."""
    default_local_dir: OutputPath = "outputs/${trainer.project_name}/${trainer.experiment_name}"
    """Run folder: resolved config, logs, and the trained model in `huggingface/`."""
    logger: Names = Field(default_factory=lambda: ["console", "jsonl"])
    """`console`, `jsonl`, `tensorboard`, `wandb`, `mlflow`; a single name needs no list."""
    log_freq: int = Field(default=10, ge=1)
    """Report means every `log_freq` steps."""
    test_freq: int = -1
    """Validate every `test_freq` steps; -1: only after the last step."""
    seed: int = 1
    """Seed of the order of rows."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; null: all cores."""


class SFTConfig(Section):
    """A supervised warm start."""

    data: SFTDataConfig = Field(default_factory=SFTDataConfig)
    """Demonstrations."""
    model: SFTModelConfig = Field(default_factory=SFTModelConfig)
    """The model to start from."""
    optim: SFTOptimConfig = Field(default_factory=SFTOptimConfig)
    """Optimizer and schedule."""
    trainer: SFTTrainerConfig = Field(default_factory=SFTTrainerConfig)
    """The run."""


def check_sft_required(config: SFTConfig) -> Iterator[str]:
    """A model and rows are given."""
    if not config.model.path:
        yield "model.path: not given, wanted a model folder"
    if not config.data.train_files:
        yield "data.train_files: not given, wanted a parquet file, a list of files or a glob"


SFT_CHECKS = (check_sft_required,)
