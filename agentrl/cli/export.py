"""`agentrl export`: copies the trained policy of a checkpoint to a Hugging Face folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import typer

from agentrl.errors import CheckpointError, UserInputError

MODEL = Path("actor") / "huggingface"


def export_policy(checkpoint: Path, out: Path) -> None:
    """Copy a checkpoint's model folder; the copy appears under its name only when it is complete.

    Args:
        checkpoint: a `global_step_N` folder, or a run folder for its newest checkpoint.
        out: folder to create.

    Raises:
        CheckpointError: no complete checkpoint is found, or the copy cannot be written.
        UserInputError: `out` exists.
    """
    from agentrl.trainer.checkpoint import LATEST, CheckpointManager, check_complete

    folder = CheckpointManager(checkpoint).latest() if (checkpoint / LATEST).is_file() else check_complete(checkpoint)
    source = (folder or checkpoint) / MODEL
    if not (source / "config.json").is_file() or not list(source.glob("*.safetensors")):
        raise CheckpointError(f"{source} holds no model: wanted config.json and safetensors")
    if out.exists():
        raise UserInputError(f"{out} already exists: choose another folder, or remove it")
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        shutil.copytree(source, part)
        os.replace(part, out)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise CheckpointError(f"cannot write {out}: {getattr(error, 'strerror', None) or error}") from error
    typer.echo(f"{source} -> {out}")
