"""Saves the finished steps of a run: at once, or while the run goes on.

In the background, a checkpoint passes three moments::

    save(7)      workers have copied what step 8 changes        .part_global_step_7 fills
    poll()       after each step: all workers have written?     not yet
    poll()       yes                                            global_step_7, the newest; old ones are removed

A run that is killed before the last moment resumes from the checkpoint before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agentrl.errors import CheckpointError, ConfigError
from agentrl.single_controller import WorkerGroup
from agentrl.trainer.checkpoint import CheckpointManager
from agentrl.trainer.disk_space import Need, free_bytes, in_gib, room_problems

logger = logging.getLogger(__name__)
_SMALLER = "save less with `checkpoint.save_contents` (`hf_model` is the policy once more, for other programs)"


class Saver:
    """Writes checkpoints of a run's folder.

    Args:
        checkpoints: of the folder.
        groups: the workers that learn, by the name of their part of a checkpoint.
        write_state: writes the trainer's own files to a folder.
        background: whether the run goes on while workers write.
    """

    def __init__(
        self,
        checkpoints: CheckpointManager,
        groups: Sequence[tuple[str, WorkerGroup]],
        write_state: Callable[[Path], None],
        *,
        background: bool,
    ) -> None:
        self._checkpoints, self._groups, self._write_state = checkpoints, groups, write_state
        self._background = background
        self._checked = False
        self._pending: int | None = None
        self.saved_step: int | None = None
        """The newest step with a whole checkpoint in the folder."""
        self.failed = False
        """A checkpoint could not be written."""

    @property
    def num_bytes(self) -> int:
        """What a checkpoint needs on the disk."""
        return sum(group.checkpoint_bytes()[0] for _, group in self._groups)

    def check_room(self, planned: int, others: Sequence[Need] = ()) -> None:
        """Look at the disks before the first step.

        Args:
            planned: checkpoints that the run will write.
            others: what else it writes.

        Raises:
            ConfigError: there is no room for one checkpoint and the others.
        """
        if planned:  # what a killed run has half written is in the way until the first save, and counts as full
            self._checkpoints.remove_leftovers()
        size, keep, folder = (self.num_bytes if planned else 0), self._checkpoints.keep, self._checkpoints.folder
        problems = room_problems([*([Need("a checkpoint", folder, size)] if planned else []), *others])
        if problems:
            raise ConfigError([f"{problem}. Give other folders, or {_SMALLER}" for problem in problems])
        together = planned if keep is None else min(planned, keep + 1)  # an old one goes when the new one is whole
        free = free_bytes(folder)
        if size * together > free:
            logger.warning(
                "%d checkpoints of %s will be in %s at a time, but %s are free: keep fewer with "
                "trainer.max_ckpt_to_keep, or %s",
                *(together, in_gib(size), folder, in_gib(free), _SMALLER),
            )

    def save(self, step: int) -> None:
        """Write a checkpoint of a finished step, or begin to, after an earlier one is whole.

        Raises:
            CheckpointError: it, or the one before, cannot be written; earlier checkpoints are kept.
        """
        self.finish()
        with self._noting_failure():
            part = self._checkpoints.begin(step)
            try:
                self._check_before_first()
                self._write(part)
            except (OSError, CheckpointError) as error:
                self._wait_for_writers()
                raise self._checkpoints.abandon(step, error) from error
        self._pending = step
        if not self._background:
            self.finish()

    @property
    def under_way(self) -> bool:
        """Whether a checkpoint is written in the background."""
        return self._pending is not None

    def poll(self) -> None:
        """If all workers have written the checkpoint that is under way, make it the newest. Errors as `save`."""
        if self._pending is not None and all(all(group.checkpoint_written()) for _, group in self._groups):
            self.finish()

    def finish(self) -> None:
        """Wait until the checkpoint that is under way is whole, and make it the newest. Errors as `save`."""
        step, self._pending = self._pending, None
        if step is None:
            return
        with self._noting_failure():
            error = self._wait_for_writers()
            if error is not None:
                raise self._checkpoints.abandon(step, error) from error
            self._checkpoints.commit(step)
        self.saved_step = step

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except CheckpointError:
            self.failed = True
            raise

    def _write(self, part: Path) -> None:
        self._write_state(part)
        for name, group in self._groups:
            group.save_checkpoint(str(part / name), self._background)

    def _check_before_first(self) -> None:
        """Other programs may have filled the disk since the run began."""
        if not self._checked:
            size, free = self.num_bytes, free_bytes(self._checkpoints.folder)
            if size > free:
                raise CheckpointError(f"it needs {in_gib(size)}, {in_gib(free)} are free")
            self._checked = True

    def _wait_for_writers(self) -> CheckpointError | None:
        """The first error of a worker's writing; every group is waited for."""
        errors = []
        for _, group in self._groups if self._background else ():
            try:
                group.finish_checkpoint()
            except CheckpointError as error:
                errors.append(error)
        return errors[0] if errors else None
