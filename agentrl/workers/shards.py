"""A worker's checkpoint: every rank writes its shards, any number of ranks reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from agentrl.errors import CheckpointError
from agentrl.workers.fsdp_model import FSDPModel


def save_shards(folder: str | Path, model: FSDPModel, updates_done: int) -> None:
    """Write parameters, optimizer state, the number of updates and this rank's random state. A collective call.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        state_dict_saver.save(_state(model, updates_done), checkpoint_id=str(folder))
        torch.save(_random_state(model.device), _random_file(folder))
    except (OSError, RuntimeError, CheckpointException) as error:
        raise CheckpointError(f"cannot write the checkpoint {folder}: {_reason(error)}") from error


def load_shards(folder: str | Path, model: FSDPModel) -> int:
    """Read what `save_shards` wrote into the live tensors, for any number of ranks. A collective call.

    The random state is restored if this rank had one.

    Returns:
        The number of updates that the model had taken.

    Raises:
        CheckpointError: the folder is missing, damaged, or of another model.
    """
    folder = Path(folder)
    if not (folder / ".metadata").is_file():
        raise CheckpointError(f"{folder} holds no checkpoint: it has no .metadata")
    state = _state(model, 0)
    try:
        state_dict_loader.load(state, checkpoint_id=str(folder))
        if _random_file(folder).is_file():
            _restore_random_state(torch.load(_random_file(folder), weights_only=True), model.device)
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, CheckpointException) as error:
        raise CheckpointError(f"cannot read the checkpoint {folder}: {_reason(error)}") from error
    return int(state["updates_done"])


def _state(model: FSDPModel, updates_done: int) -> dict[str, Any]:
    optimizer = model.optimizer.state_tensors() if model.optimizer is not None else {}
    return {"model": model.state_tensors(), "optimizer": optimizer, "updates_done": torch.tensor(updates_done)}


def _random_file(folder: Path) -> Path:
    return folder / f"random_state_rank_{dist.get_rank()}.pt"


def _random_state(device: torch.device) -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _restore_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def _reason(error: BaseException) -> str:
    """The innermost cause in one line: a failed save wraps one traceback per rank."""
    failures = getattr(error, "failures", None)
    if failures:
        rank, (cause, _) = next(iter(failures.items()))
        return f"rank {rank}: {_reason(cause)}"
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, OSError):
        inner = inner.__cause__ or inner.__context__
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return f"{type(error).__name__}: {error}".splitlines()[0]
