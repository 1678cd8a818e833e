"""The configuration of `agentrl sft`: supervised training on demonstrations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from agentrl.config.actor import FSDPConfig, ModelConfig, OptimConfig
from agentrl.config.base import InputPath, Names, OutputPath, RowsDecide, Section
from agentrl.config.checkpoint import CheckpointConfig
from agentrl.config.checks import resume_problems
from agentrl.config.lora_checks import lora_problems
from agentrl.config.machine_checks import cluster_problems, offload_problems
from agentrl.config.parallel_checks import parallel_problems
from agentrl.config.sft_keys import SFT_KEYS
from agentrl.config.trainer import MOST_MACHINES, MOST_RANKS, RayInitConfig
from agentrl.config.verl_keys import Answer

SINGLE_TURN = ("prompt_key", "response_key", "prompt_dict_keys", "response_dict_keys")
"""Keys of `data` for rows with a prompt and a response."""


Every = int | Literal["after_each_epoch"]


class MultiturnConfig(Section):
    """The kind of rows."""

    enable: bool | None = None
    """true: conversations (`data.messages_key`); false: a prompt and a response (`data.prompt_key`, `response_key`);
    null: the latter if a key of them is given, or if the file has columns of these names and no conversations."""


class SFTDataConfig(RowsDecide):
    """Demonstrations: each row holds a whole conversation, or a prompt and a response."""

    rows_key: ClassVar[str] = "micro_batch_size_per_gpu"
    dynamic_key: ClassVar[str] = "use_dynamic_bsz"
    train_files: InputPath | list[InputPath] | None = None
    """Parquet file, list of files, or glob with the training rows."""
    val_files: InputPath | list[InputPath] | None = None
    """Parquet file, list of files, or glob with the validation rows; null: no validation."""
    train_max_samples: int = -1
    """Use at most this many training rows; -1: all."""
    val_max_samples: int = -1
    """Use at most this many validation rows; -1: all."""
    multiturn: MultiturnConfig = Field(default_factory=MultiturnConfig)
    """The kind of rows."""
    messages_key: str = "messages"
    """Column with the conversation: `{role, content, tool_calls?, …}`."""
    tools_key: str = "tools"
    """Column with the function schemas that a row offers: JSON text or a list; default: `tool_config_path`."""
    enable_thinking_key: str = "enable_thinking"
    """Column with true or false: the template's variable `enable_thinking` in that row; null: as in all rows."""
    prompt_key: str | None = None
    """Column with the prompt: text, or messages; null: `prompt`."""
    response_key: str | None = None
    """Column with the response to learn: text; null: `response`."""
    prompt_dict_keys: Names | None = None
    """Where the prompt's column holds structs: the field, or the fields from the outside in; null: it holds none."""
    response_dict_keys: Names | None = None
    """The same for the response's column."""
    tool_config_path: InputPath | None = None
    """Tool YAML for rows without their own `tools`; null: no tools."""
    in_turn_text: str | None = None
    r"""How tool messages stand where the loop puts them within the model's own turn, as `search_r1_agent` does:
    `"\n\n{content}\n\n"`; null: as messages of their own, by the template."""
    max_length: int = Field(default=2048, ge=2)
    """Most tokens of a conversation."""
    truncation: Literal["error", "left", "right"] = "error"
    """What happens to a longer one: an error, or its tokens on the left or right are cut off."""
    filter_overlong: bool = False
    """Drop (and count) conversations over `max_length` instead."""
    train_batch_size: int = Field(default=32, ge=1)
    """Conversations per optimizer step, over all ranks."""
    use_dynamic_bsz: bool = True
    """Split a batch into forward passes by tokens (`max_token_len`) instead of by rows. Never changes the result."""
    max_token_len: int = Field(default=8192, ge=1)
    """Most tokens of one forward pass, padding included."""
    micro_batch_size_per_gpu: int | None = Field(default=None, ge=1)
    """Rows of one forward pass. Where it is given, `use_dynamic_bsz` is false unless it is given too."""
    shuffle: bool = True
    """Use the rows in a seeded random order, a new one in each epoch."""
    apply_chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables for the chat template, for example `{enable_thinking: false}`."""


class SFTModelConfig(ModelConfig):
    """The model to start from, and how it is sharded."""

    fsdp_config: FSDPConfig = Field(default_factory=FSDPConfig)
    """Sharding and precision."""


class SFTOptimConfig(OptimConfig):
    """AdamW for all parameters, or Muon for the matrices of the layers and AdamW for the rest."""

    lr: float = Field(default=1e-5, gt=0)
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of the first and second moment."""
    lr_warmup_steps_ratio: float = Field(default=0.1, ge=0, le=1)
    """Share of all steps used for the warm-up."""
    warmup_style: Literal["constant", "linear", "cosine"] = "cosine"
    """Schedule after the warm-up, down to `min_lr_ratio` at the last step."""
    name: Literal["adamw", "muon"] = "adamw"
    """`muon` trains small models from scratch much faster; `lr` then applies to AdamW's part."""
    muon_lr: float = Field(default=0.02, gt=0)
    """Peak learning rate of Muon's matrices; it follows the same schedule."""
    muon_momentum: float = Field(default=0.95, ge=0, lt=1)
    """Momentum of Muon."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Gradients are clipped to this norm; a step whose norm is not finite is skipped and counted."""


class SFTTrainerConfig(Section):
    """The run: its length, machines, logs and checkpoints."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the training; auto: cuda if available."""
    nnodes: int = Field(default=1, ge=1, le=MOST_MACHINES)
    """Number of machines."""
    n_gpus_per_node: int = Field(default=1, ge=1, le=MOST_RANKS)
    """Ranks per machine (processes on CPU). One rank in all runs in this process, several run on Ray."""
    total_epochs: int = Field(default=1, ge=1)
    """Passes over the training rows."""
    total_training_steps: int | None = Field(default=None, ge=1)
    """Number of steps; null: as many as `total_epochs` gives."""
    project_name: str = "agentrl"
    """Name of the project in the trackers."""
    experiment_name: str = "sft"
    """Name of the run in the trackers."""
    default_local_dir: OutputPath = "outputs/${trainer.project_name}/${trainer.experiment_name}"
    """Run folder: resolved config, logs, checkpoints, and the trained model in `huggingface/`."""
    logger: Names = Field(default_factory=lambda: ["console", "jsonl"])
    """`console`, `jsonl`, `tensorboard`, `wandb`, `mlflow`; a single name needs no list."""
    log_freq: int = Field(default=1, ge=1)
    """Report means every `log_freq` steps."""
    test_freq: Every = -1
    """Validate every `test_freq` steps, or after_each_epoch, and after the last step; -1: only then."""
    save_freq: Every = -1
    """Save a checkpoint every `save_freq` steps, or after_each_epoch, and after the last step; -1: never."""
    max_ckpt_to_keep: int | None = Field(default=None, ge=1)
    """Number of checkpoints to keep; null: all."""
    async_save: bool = False
    """Go on with the next step while a checkpoint is written: a step waits only until weights and optimizer are copied
    to host memory. The checkpoint counts when it is whole; an error of its writing ends the run at the end of a
    step."""
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    """What a checkpoint holds."""
    max_skipped_steps: int | None = Field(default=20, ge=1)
    """The run stops after this many steps in a row whose gradient is not finite; null: never."""
    resume_mode: Literal["auto", "disable", "resume_path"] = "auto"
    """auto: resume from the newest checkpoint in the run folder, if it has one; a folder with a finished model and no
    checkpoint is an error. disable: always start from the beginning; a model in the folder is replaced at the end.
    resume_path: resume from `resume_from_path`."""
    resume_from_path: InputPath | None = None
    """Checkpoint folder (`…/global_step_N`) for `resume_mode: resume_path`."""
    deterministic: bool = False
    """Get the same numbers in every run on the same GPUs. Slower."""
    seed: int = 1
    """Seed of the order of rows."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of a rank; null: cores divided by ranks."""

    @property
    def ranks(self) -> int:
        """Ranks over all machines."""
        return self.nnodes * self.n_gpus_per_node


class SFTConfig(Section):
    """Supervised training."""

    foreign_keys: ClassVar[Mapping[str, Answer]] = SFT_KEYS
    data: SFTDataConfig = Field(default_factory=SFTDataConfig)
    """Demonstrations."""
    model: SFTModelConfig = Field(default_factory=SFTModelConfig)
    """The model to start from."""
    optim: SFTOptimConfig = Field(default_factory=SFTOptimConfig)
    """Optimizer and schedule."""
    trainer: SFTTrainerConfig = Field(default_factory=SFTTrainerConfig)
    """The run."""
    ray_init: RayInitConfig = Field(default_factory=RayInitConfig)
    """Ray, which several ranks run on."""


def check_sft_required(config: SFTConfig) -> Iterator[str]:
    """A model and rows are given."""
    if not config.model.path:
        yield "model.path: not given, wanted a model folder"
    if not config.data.train_files:
        yield "data.train_files: not given, wanted a parquet file, a list of files or a glob"


def check_sft_rows(config: SFTConfig) -> Iterator[str]:
    """A size is given for the way in which batches are split, and the keys of one kind of rows."""
    data = config.data
    if not data.use_dynamic_bsz and data.micro_batch_size_per_gpu is None:
        yield "data.use_dynamic_bsz: got false, which needs data.micro_batch_size_per_gpu"
    if data.in_turn_text is not None and "{content}" not in data.in_turn_text:
        yield (
            f"data.in_turn_text: got {data.in_turn_text!r}, wanted a text with {{content}} where the tool's answer "
            "stands, such as '({content})'"
        )
    single = [name for name in SINGLE_TURN if getattr(data, name) is not None]
    if data.multiturn.enable and single:
        yield (
            f"data.multiturn.enable: got true (rows hold conversations), but data.{single[0]} is given, which is for "
            "rows with a prompt and a response: leave one of them out"
        )


def check_sft_resume(config: SFTConfig) -> Iterator[str]:
    """`resume_path` and its path are given together."""
    yield from resume_problems(config.trainer.resume_mode, config.trainer.resume_from_path)


def check_sft_machine(config: SFTConfig) -> Iterator[str]:
    """Several ranks find their machines; nothing is offloaded on a CPU."""
    trainer = config.trainer
    yield from cluster_problems(trainer.nnodes, config.ray_init)
    if trainer.device == "cpu":
        yield from offload_problems("model.fsdp_config", config.model.fsdp_config)


def check_sft_lora(config: SFTConfig) -> Iterator[str]:
    """LoRA has a rank and no dropout."""
    yield from lora_problems("model", config.model, "model.fsdp_config", config.model.fsdp_config)


def check_sft_parallel(config: SFTConfig) -> Iterator[str]:
    """The model can be spread over the ranks as its section asks."""
    yield from parallel_problems(
        "model.fsdp_config", config.model.fsdp_config, config.trainer.ranks, "model", config.model
    )


SFT_CHECKS = (
    check_sft_required,
    check_sft_rows,
    check_sft_resume,
    check_sft_machine,
    check_sft_lora,
    check_sft_parallel,
)
