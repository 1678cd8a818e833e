"""Keys of `agentrl sft` that have no effect in some runs, and the reason that their user is told."""

from __future__ import annotations

from agentrl.config.idle import Idle
from agentrl.config.idle_keys import schedule
from agentrl.config.idle_machine_keys import rows_or_tokens
from agentrl.config.lora_checks import idle_lora
from agentrl.config.machine import is_cuda
from agentrl.config.sft import SINGLE_TURN, SFTConfig, SFTDataConfig


def _single_turn(run: SFTConfig) -> bool:
    return run.data.multiturn.enable is False or any(getattr(run.data, key) is not None for key in SINGLE_TURN)


IDLE_SFT_KEYS: tuple[Idle[SFTConfig], ...] = (
    Idle(("optim.muon_*",), lambda run: run.optim.name == "adamw", "optim.name is adamw"),
    Idle(("trainer.test_freq", "data.val_*"), lambda run: not run.data.val_files, "data.val_files is not given"),
    Idle(
        ("data.messages_key", "data.in_turn_text"),
        _single_turn,
        "rows hold a prompt and a response, as data.multiturn.enable or prompt_key says",
    ),
    Idle(("data.truncation",), lambda run: run.data.filter_overlong, "data.filter_overlong is true"),
    *rows_or_tokens("data", SFTDataConfig, "max_token_len"),
    Idle(
        ("trainer.total_epochs",),
        lambda run: run.trainer.total_training_steps is not None,
        "trainer.total_training_steps is {trainer.total_training_steps}",
    ),
    Idle(
        ("trainer.max_ckpt_to_keep", "trainer.async_save", "trainer.checkpoint.save_contents"),
        lambda run: isinstance(run.trainer.save_freq, int) and run.trainer.save_freq <= 0,
        "trainer.save_freq is {trainer.save_freq}, so no checkpoint is saved",
    ),
    Idle(("trainer.seed",), lambda run: not run.data.shuffle, "data.shuffle is false"),
    Idle(
        ("model.fsdp_config.*_offload", "model.fsdp_config.offload_policy", "model.use_remove_padding"),
        lambda run: not is_cuda(run.trainer.device),
        "training runs on the CPU",
    ),
    Idle(
        ("model.fsdp_config.*_offload",),
        lambda run: run.model.fsdp_config.offload_policy,
        "model.fsdp_config.offload_policy is true: FSDP2 keeps all of them in host memory",
    ),
    Idle(
        ("model.fsdp_config.reshard_after_forward", "model.fsdp_config.fsdp_size", "ray_init.*"),
        lambda run: run.trainer.ranks == 1,
        "one rank holds the whole model and runs in this process",
    ),
    *idle_lora("model"),
    *schedule("optim"),
)
