"""A worker's checkpoint: every rank writes its shards, any number of ranks reads them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader

from agentrl.config.checkpoint import STATE
from agentrl.errors import CheckpointError
from agentrl.workers.fsdp_model import FSDPModel

ALL = frozenset(STATE)
_RANDOM = "random_state_rank_{}.pt"
_DAMAGED = (pickle.UnpicklingError, AttributeError, TypeError, IndexError)
"""What reading raises where a file holds something else."""


def save_shards(folder: str | Path, model: FSDPModel, updates_done: int, parts: Collection[str] = ALL) -> None:
    """Write parameters, optimizer state, the number of updates and this rank's random state. A collective call.

    Args:
        folder: created if missing.
        model: the sharded model.
        updates_done: by the model.
        parts: which of `STATE` are written.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    folder = Path(folder)
    with _readable("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
        state_dict_saver.save(_state(model, updates_done, parts), checkpoint_id=str(folder))
        if "extra" in parts:
            torch.save(_random_state(model.device), _random_file(folder))


def stage_shards(
    folder: Path, model: FSDPModel, updates_done: int, parts: Collection[str], group: Any
) -> Callable[[], None]:
    """Copy what `save_shards` writes, and begin to write it in the background. A collective call.

    Args:
        folder: as `save_shards`.
        model: as `save_shards`.
        updates_done: as `save_shards`.
        parts: as `save_shards`.
        group: a process group that nothing else uses.

    Returns:
        What waits for the end. It raises CheckpointError if the folder cannot be written.
    """
    with _readable("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
        random_state = _random_state(model.device)
        state = _state(model, updates_done, parts)  # torch copies it before it returns
        written = state_dict_saver.async_save(state, checkpoint_id=str(folder), process_group=group)
    assert isinstance(written, Future)

    def finish() -> None:
        with _readable("write", folder):
            if "extra" in parts:
                torch.save(random_state, _random_file(folder))
            written.result()

    return finish


def load_shards(folder: str | Path, model: FSDPModel, parts: Collection[str] = ALL) -> int:
    """Read what `save_shards` wrote into the live tensors, for any number of ranks. A collective call.

    The random state is restored if this rank had one.

    Args:
        folder: of the worker in a checkpoint.
        model: the sharded model.
        parts: which of `STATE` are read.

    Returns:
        The number of updates that the model had taken; without `extra` 0, so that schedules begin again.

    Raises:
        CheckpointError: the folder is missing, damaged, of another model, or lacks a part.
    """
    folder = Path(folder)
    if not (folder / ".metadata").is_file():
        raise CheckpointError(f"{folder} holds no checkpoint: it has no .metadata")
    state = _state(model, 0, parts)
    with _readable("read", folder):
        saved = FileSystemReader(folder).read_metadata().state_dict_metadata.keys()
        _check_parts(folder, parts, saved)
        _check_same_model(folder, state, saved)
        state_dict_loader.load(state, checkpoint_id=str(folder))
        if "extra" in parts and _random_file(folder).is_file():
            _restore_random_state(torch.load(_random_file(folder), weights_only=True), model.device)
    return int(state["updates_done"]) if "extra" in parts else 0


def shard_bytes(model: FSDPModel, parts: Collection[str]) -> int:
    """Bytes of the shards of all ranks."""
    tensors = [
        tensor for part in _state(model, 0, parts).values() if isinstance(part, dict) for tensor in part.values()
    ]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _state(model: FSDPModel, updates_done: int, parts: Collection[str]) -> dict[str, Any]:
    state: dict[str, Any] = {"updates_done": torch.tensor(updates_done)}
    if "model" in parts:
        state["model"] = model.state_tensors()
    if "optimizer" in parts and model.optimizer is not None:
        state["optimizer"] = model.optimizer.state_tensors()
    return state


def _check_parts(folder: Path, parts: Collection[str], names: Collection[str]) -> None:
    """Compare the parts that are wanted with those that were saved."""
    saved = {name.partition(".")[0] for name in names}
    lacking = sorted({"model", "optimizer"} & set(parts) - saved)
    if lacking:
        extra = ["extra"] if any(folder.glob(_RANDOM.format("*"))) else []
        there = [*sorted(saved & {"model", "optimizer"}), *extra]
        remedy = (
            f"Set checkpoint.load_contents=[{','.join(there)}]"
            if "model" in there
            else "No run can resume from it: start again with trainer.resume_mode=disable"
        )
        raise CheckpointError(
            f"{folder} holds no {' and no '.join(lacking)}, but only {', '.join(there) or 'the number of updates'}: "
            f"it was saved with other `checkpoint.save_contents`. {remedy}"
        )


def _check_same_model(folder: Path, state: dict[str, Any], saved: Collection[str]) -> None:
    """Look for saved tensors that this model lacks: torch would leave them out, and 24 layers of 28 would go on."""
    for part in sorted({"model", "optimizer"} & state.keys()):
        own = {f"{part}.{name}" for name in state[part]}
        left = sorted(name for name in saved if name.startswith(f"{part}.") and name not in own)
        if left:
            raise CheckpointError(
                f"{folder} is a checkpoint of another model: it holds {left[0]}, which this model lacks, and "
                f"{len(left) - 1} more such tensors. Give the model that the run was started with"
            )


@contextmanager
def _readable(what: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, CheckpointException, *_DAMAGED) as error:
        raise CheckpointError(f"cannot {what} the checkpoint {folder}: {_reason(error)}") from error


def _random_file(folder: Path) -> Path:
    return folder / _RANDOM.format(dist.get_rank())


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
