"""`agentrl export`: the trained policy of a checkpoint as a Hugging Face folder, or its LoRA adapter."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import typer

from agentrl.errors import AgentRLError, CheckpointError, UserInputError

MODEL = Path("actor") / "huggingface"


def export_policy(checkpoint: Path, out: Path, *, adapter: bool = False, base: str | None = None) -> None:
    """Write a checkpoint's policy as a model folder, which appears under its name only when it is complete.

    Of a run with LoRA the adapter is merged into its model first, or written alone.

    Args:
        checkpoint: a `global_step_N` folder, a run folder for its newest checkpoint, or the folder of an adapter.
        out: folder to create.
        adapter: write the LoRA adapter as peft reads it.
        base: the model that the adapter was trained on, where it has moved.

    Raises:
        CheckpointError: no complete checkpoint is found, or the folder cannot be written.
        UserInputError: `out` exists, or the checkpoint has no adapter.
    """
    source, write = _what_to_write(checkpoint, adapter, base)
    if out.exists():
        raise UserInputError(f"{out} already exists: choose another folder, or remove it")
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        write(part)
        os.replace(part, out)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise CheckpointError(f"cannot write {out}: {getattr(error, 'strerror', None) or error}") from error
    except AgentRLError:
        shutil.rmtree(part, ignore_errors=True)
        raise
    typer.echo(f"{source} -> {out}")


def _what_to_write(checkpoint: Path, adapter: bool, base: str | None) -> tuple[Path, Callable[[Path], object]]:
    """Where the policy is, and the function that writes it to a folder."""
    from agentrl.hub import ADAPTER_FOLDER

    folder = checkpoint if (checkpoint / "adapter_config.json").is_file() else _actor(checkpoint) / ADAPTER_FOLDER
    if (folder / "adapter_config.json").is_file():
        from agentrl.workers.lora_export import copy_adapter, write_merged

        return folder, lambda out: copy_adapter(folder, out) if adapter else write_merged(folder, out, base)
    if adapter or base is not None:
        raise UserInputError(f"{checkpoint} holds no LoRA adapter, which --adapter and --base are about")
    source = _actor(checkpoint) / MODEL.name
    if not (source / "config.json").is_file() or not list(source.glob("*.safetensors")):
        raise CheckpointError(
            f"{source} holds no model: wanted config.json and safetensors, as a run writes them whose "
            "`checkpoint.save_contents` names hf_model"
        )
    return source, lambda out: shutil.copytree(source, out)


def _actor(checkpoint: Path) -> Path:
    """The policy's part of a checkpoint, or of the newest one of a run."""
    from agentrl.trainer.checkpoint import LATEST, CheckpointManager, check_complete

    folder = CheckpointManager(checkpoint).latest() if (checkpoint / LATEST).is_file() else check_complete(checkpoint)
    return (folder or checkpoint) / MODEL.parent
