"""Checkpoints of a run: written to a temporary folder, then renamed, so a half-written one is never loaded.

Layout under `trainer.default_local_dir`::

    global_step_N/actor/, critic/     sharded training state, written by the workers
    global_step_N/data.pt             cursor of the data loader
    global_step_N/trainer_state.pt    global step, KL controller, random states
    latest_checkpointed_iteration.txt N, replaced atomically after everything else
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from agentrl.errors import CheckpointError
from agentrl.files import flush

logger = logging.getLogger(__name__)
LATEST = "latest_checkpointed_iteration.txt"
PREFIX = "global_step_"
PART = ".part_"
_OLD = f"{PART}old_"
DATA_FILE = "data.pt"
STATE_FILE = "trainer_state.pt"
_MOST_SHOWN = 5
"""Checkpoints that a message names at most."""


class CheckpointManager:
    """Saves, finds and prunes the checkpoints of one run folder.

    Args:
        folder: the run folder.
        keep: number of checkpoints to keep; None: all.
    """

    def __init__(self, folder: Path, keep: int | None = None) -> None:
        self.folder = folder
        self.keep = keep

    def save(self, step: int, write: Callable[[Path], None]) -> Path:
        """Write a checkpoint.

        Args:
            step: the global step.
            write: fills the folder that it is given.

        Returns:
            The finished folder.

        Raises:
            CheckpointError: it cannot be written; earlier checkpoints are kept.
        """
        part = self.begin(step)
        try:
            write(part)
        except (OSError, CheckpointError) as error:
            raise self.abandon(step, error) from error
        return self.commit(step)

    def begin(self, step: int) -> Path:
        """Make the folder that a checkpoint is written to; it counts when `commit` has given it its name.

        Raises:
            CheckpointError: it cannot be made.
        """
        part = self._part(step)
        try:
            self.remove_leftovers()
            part.mkdir(parents=True)
        except OSError as error:
            raise self.abandon(step, error) from error
        return part

    def commit(self, step: int) -> Path:
        """Make a whole checkpoint the newest one, and remove those that are too many.

        Returns:
            The finished folder.

        Raises:
            CheckpointError: it cannot be completed; earlier checkpoints are kept.
        """
        part, final = self._part(step), self.folder / f"{PREFIX}{step}"
        try:
            _flush_folder(part)
            if final.exists():
                _replace_folder(part, final)
            else:
                os.replace(part, final)
            self._name_latest(step)
        except OSError as error:
            raise self.abandon(step, error) from error
        self._prune(step)
        return final

    def abandon(self, step: int, error: BaseException) -> CheckpointError:
        """Remove what is written of a checkpoint; returns an error that says which, why and what remains."""
        shutil.rmtree(self._part(step), ignore_errors=True)
        final = self.folder / f"{PREFIX}{step}"
        return CheckpointError(f"cannot write checkpoint {final}: {_reason(error)}. {self.what_remains()}")

    def _part(self, step: int) -> Path:
        return self.folder / f"{PART}{PREFIX}{step}"

    def latest(self) -> Path | None:
        """The newest complete checkpoint; None if the run has none.

        Raises:
            CheckpointError: the folder that the run names as its newest is missing or damaged.
        """
        folder = self._named_latest()
        if folder is None:
            return None
        replaced = _set_aside(folder)
        if replaced.is_dir() and not folder.exists():  # killed while a checkpoint of the same step took its place
            os.replace(replaced, folder)
        return check_complete(folder)

    def find(self, mode: Literal["auto", "disable", "resume_path"], path: str | None) -> Path | None:
        """The checkpoint to resume from under `trainer.resume_mode`; None: start from the beginning."""
        if mode == "disable":
            return None
        if mode == "auto":
            return self.latest()
        try:
            return check_complete(Path(path or ""))
        except CheckpointError as error:
            raise CheckpointError(f"trainer.resume_from_path: {error}") from error

    def check(self, mode: Literal["auto", "disable", "resume_path"], path: str | None) -> None:
        """Look whether `find` would find what it is asked for; nothing is repaired.

        Raises:
            CheckpointError: see `find`.
        """
        if mode == "resume_path":
            self.find(mode, path)
        elif mode == "auto" and (newest := self._named_latest()) is not None and not _set_aside(newest).is_dir():
            check_complete(newest)

    def _named_latest(self) -> Path | None:
        """The folder that the run names as its newest checkpoint; None: it names none."""
        pointer = self.folder / LATEST
        if not pointer.is_file():
            return None
        text = pointer.read_text(encoding="utf-8").strip()
        if not text.isdigit():
            raise CheckpointError(
                f"{pointer} holds {text!r}, wanted a step number. Write one, or remove the file to start from step 1"
            )
        return self.folder / f"{PREFIX}{text}"

    def remove_leftovers(self) -> None:
        """Remove half-written checkpoints of a killed run; a whole one that was set aside gets its name back."""
        for leftover in self.folder.glob(f"{PART}*"):
            final = self.folder / leftover.name.removeprefix(_OLD)
            if leftover.name.startswith(_OLD) and not final.exists():
                os.replace(leftover, final)
            else:
                shutil.rmtree(leftover, ignore_errors=True)

    def _name_latest(self, step: int) -> None:
        part = self.folder / f"{PART}{LATEST}"
        with part.open("w", encoding="utf-8") as file:
            file.write(str(step))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self.folder / LATEST)
        flush(self.folder)

    def _prune(self, newest: int) -> None:
        if self.keep is None:
            return
        steps = sorted(step for step in self.steps() if step <= newest)
        for step in steps[: -self.keep]:
            shutil.rmtree(self.folder / f"{PREFIX}{step}", ignore_errors=True)

    def steps(self) -> list[int]:
        """Of the checkpoints in the folder, in no order."""
        names = (path.name.removeprefix(PREFIX) for path in self.folder.glob(f"{PREFIX}*"))
        return [int(name) for name in names if name.isdigit()]

    def what_remains(self) -> str:
        """A sentence about the newest checkpoint, for a message about one that is not written."""
        pointer = self.folder / LATEST
        if not pointer.is_file():
            return "There is no earlier one"
        return f"The one of step {pointer.read_text(encoding='utf-8').strip()} is untouched"


def check_complete(folder: Path) -> Path:
    """Return `folder` if it holds a complete checkpoint.

    Raises:
        CheckpointError: it is missing, half-written, or not a checkpoint.
    """
    if folder.name.startswith(PART):
        raise CheckpointError(f"{folder} is a half-written checkpoint and is never loaded")
    missing = _missing(folder)
    if not folder.is_dir() or missing:
        absent = "is a file" if folder.exists() else "does not exist"
        what = f"lacks {', '.join(missing)}" if folder.is_dir() else absent
        raise CheckpointError(f"checkpoint {folder} {what}. Wanted {_whole_ones(folder)}")
    return folder


def _missing(folder: Path) -> list[str]:
    return [name for name in (STATE_FILE, DATA_FILE, "actor") if not (folder / name).exists()]


def _whole_ones(near: Path) -> str:
    """What may be named instead of a folder: the newest checkpoints beside it, or in it."""
    for run in (near.parent, near):
        steps = sorted(step for step in CheckpointManager(run).steps() if not _missing(run / f"{PREFIX}{step}"))
        if steps:
            held = ", ".join(f"{PREFIX}{step}" for step in steps[-_MOST_SHOWN:])
            return f"a whole `{PREFIX}N` folder; {run} has {held}"
    return f"a whole `{PREFIX}N` folder"


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write plain state (numbers, lists, tensors).

    Raises:
        CheckpointError: the disk is full, or the write failed in another way.
    """
    try:
        torch.save(state, path)
    except RuntimeError as error:  # torch wraps a failed write of the archive
        raise CheckpointError(f"{path.name}: {_reason(error)}") from error


def load_state(path: Path) -> dict[str, Any]:
    """Read what `save_state` wrote.

    Raises:
        CheckpointError: the file is damaged, or holds something else.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, TypeError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"cannot read {path}: {_reason(error)}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"cannot read {path}: it holds a {type(state).__name__}, wanted the state of a run")
    return state


@contextmanager
def resuming(folder: Path, kind: str) -> Iterator[None]:
    """Within it, state that was read is taken up.

    Args:
        folder: the checkpoint.
        kind: of the run that resumes, such as `agentrl sft`.

    Raises:
        CheckpointError: the state lacks a value, or has one of another kind: another program wrote it.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        lacks = f"no {error}" if isinstance(error, KeyError) else f"a value of another kind ({_reason(error)})"
        raise CheckpointError(
            f"{folder} is no checkpoint of `{kind}`: its {STATE_FILE} and {DATA_FILE} have {lacks}. Wanted one that "
            f"`{kind}` has saved; the weights alone are in {folder / 'actor' / 'huggingface'}, for the model's path"
        ) from error


def _flush_folder(folder: Path) -> None:
    """Make the bytes of a folder durable before it gets its final name."""
    for path in [*folder.rglob("*"), folder]:
        flush(path)


def _replace_folder(part: Path, final: Path) -> None:
    old = _set_aside(final)
    os.replace(final, old)
    os.replace(part, final)
    shutil.rmtree(old, ignore_errors=True)


def _set_aside(folder: Path) -> Path:
    """Where a checkpoint waits while a new one of the same step takes its place."""
    return folder.with_name(f"{_OLD}{folder.name}")


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).splitlines()[0] if str(error) else type(error).__name__
