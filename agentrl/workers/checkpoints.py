"""A worker's part of a checkpoint, written at once or while the worker goes on.

::

    actor/*.distcp, .metadata        each rank's shards of weights and optimizer
    actor/random_state_rank_N.pt
    actor/huggingface/               the policy for other programs; see `hf_folder.py`
    actor/lora_adapter/              of a model with LoRA

In the background, `save` returns when everything that a later step changes has been copied to host memory: a rank's
shards, and its files of the Hugging Face folder. A thread then writes the copies, through a process group of its own:
its messages must not meet those of the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from agentrl.config.actor import BackboneConfig, ModelConfig
from agentrl.config.checkpoint import CheckpointConfig
from agentrl.errors import CheckpointError
from agentrl.files import flush
from agentrl.hub import ADAPTER_FOLDER
from agentrl.single_controller import Dispatch, register
from agentrl.workers.fsdp_model import FSDPModel
from agentrl.workers.hf_folder import HFFolder, folder_bytes
from agentrl.workers.lora_checkpoint import check_adapter, export_adapter
from agentrl.workers.shards import load_shards, save_shards, shard_bytes, stage_shards

HF_FOLDER = "huggingface"


class WorkerCheckpoints:
    """Writes and reads the part of one worker.

    Args:
        model: the sharded model.
        transformer: the transformers model in it.
        config: names the model folder; a `ModelConfig` is that of a policy, which has a Hugging Face folder.
        contents: what is written and read.
    """

    def __init__(self, model: FSDPModel, transformer: Any, config: BackboneConfig, contents: CheckpointConfig) -> None:
        self._model, self._transformer, self._config, self._contents = model, transformer, config, contents
        self._pool: ThreadPoolExecutor | None = None
        self._group: Any = None
        self._pending: Future[None] | None = None

    def save(self, folder: str | Path, updates_done: int, *, background: bool = False) -> None:
        """Write this worker's part. A collective call.

        Args:
            folder: of the worker in the checkpoint.
            updates_done: by the model.
            background: return as soon as the weights may change; `finish` waits for the rest.

        Raises:
            CheckpointError: the folder cannot be written, or an earlier save in the background has failed.
        """
        self.finish()
        folder, jobs, errors = Path(folder), list[Callable[[], None]](), list[CheckpointError]()
        steps = (partial(self._state, updates_done), self._adapter, self._hf_folder)
        for write in steps:
            try:
                jobs += write(folder, background)
            except CheckpointError as error:  # the other ranks go on, and each would wait for this one
                errors.append(error)
        if jobs:
            self._pool = self._pool or ThreadPoolExecutor(1, "checkpoint")
            self._pending = self._pool.submit(_run, jobs, folder)
        if errors:
            raise errors[0]

    @property
    def written(self) -> bool:
        """Whether no save is under way."""
        return self._pending is None or self._pending.done()

    def finish(self) -> None:
        """Wait until the save in the background, if there is one, has ended.

        Raises:
            CheckpointError: it has failed.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def load(self, folder: str | Path) -> int:
        """Read what `save` wrote, if it is of this kind of model, of this adapter and of these weights.

        Returns:
            The number of updates that the model had taken.

        Raises:
            CheckpointError: see `load_shards`; or it was saved with another adapter, or on other weights; or its
                weights are not among what is read, so that later steps would begin with the first weights.
        """
        wanted = self._contents.loaded
        if "model" not in wanted:
            raise CheckpointError(_without_weights(Path(folder), self._contents))
        check_adapter(Path(folder), self._model, self._transformer, self._config)
        return load_shards(folder, self._model, wanted)

    @property
    def num_bytes(self) -> int:
        """What a save of all ranks writes, but for small files."""
        size = shard_bytes(self._model, set(self._contents.save_contents))
        if self._has_hf_folder:
            assert isinstance(self._config, ModelConfig)
            size += folder_bytes(self._model, self._transformer, self._config)
        return size

    def _state(self, updates_done: int, folder: Path, background: bool) -> list[Callable[[], None]]:
        """The shards; what is left to do in the background."""
        parts = set(self._contents.save_contents) - {"hf_model"}
        if not parts:
            return []
        if background:
            return [stage_shards(folder, self._model, updates_done, parts, self._own_group())]
        save_shards(folder, self._model, updates_done, parts)
        return []

    def _adapter(self, folder: Path, _background: bool) -> list[Callable[[], None]]:
        """A few megabytes: written at once."""
        if self._model.adapted and "model" in self._contents.save_contents:
            export_adapter(folder / ADAPTER_FOLDER, self._model, self._transformer, self._config)
        return []

    def _hf_folder(self, folder: Path, background: bool) -> list[Callable[[], None]]:
        """The folder for other programs; what is left to do in the background."""
        if not self._has_hf_folder:
            return []
        assert isinstance(self._config, ModelConfig)
        written = HFFolder(folder / HF_FOLDER, self._model, self._transformer, self._config)
        if background:
            return [written.stage()]
        written.write()
        return []

    @property
    def _has_hf_folder(self) -> bool:
        policy = isinstance(self._config, ModelConfig) and not self._model.adapted
        return policy and "hf_model" in self._contents.save_contents

    def _own_group(self) -> Any:
        """The process group of saves in the background: never used by a pass."""
        if self._group is None:
            self._group = dist.new_group(backend="gloo")
        return self._group


def _run(jobs: list[Callable[[], None]], folder: Path) -> None:
    """Every job, also after one that fails: other ranks wait for it."""
    errors: list[CheckpointError] = []
    for job in jobs:
        try:
            job()
        except CheckpointError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    _flush(folder)


def _flush(folder: Path) -> None:
    """Bring what is written to the disk here, so that whoever completes the checkpoint does not wait for it."""
    try:
        for path in folder.rglob("*"):
            if path.is_file():
                with suppress(FileNotFoundError):  # another rank has just given its file another name
                    flush(path)
    except OSError as error:
        raise CheckpointError(f"cannot write the checkpoint {folder}: {error}") from error


class SavedWorker:
    """The methods of a worker whose model learns, beside its own."""

    checkpoints: WorkerCheckpoints
    updates_done: int

    @register(Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, folder: str, background: bool = False) -> None:
        """Write this rank's part; in the background, only copy it, while `checkpoint_written` is false."""
        self.checkpoints.save(folder, self.updates_done, background=background)

    @register(Dispatch.ONE_TO_ALL)
    def checkpoint_written(self) -> bool:
        """Whether no save is under way in the background."""
        return self.checkpoints.written

    @register(Dispatch.ONE_TO_ALL)
    def finish_checkpoint(self) -> None:
        """Wait for the save in the background, if there is one; raises its error."""
        self.checkpoints.finish()

    @register(Dispatch.ONE_TO_ALL)
    def checkpoint_bytes(self) -> int:
        """Bytes that a checkpoint of all ranks needs on the disk."""
        return self.checkpoints.num_bytes

    @register(Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, folder: str) -> None:
        """Resume from what `save_checkpoint` wrote, with any number of ranks."""
        self.updates_done = self.checkpoints.load(folder)


def _without_weights(folder: Path, contents: CheckpointConfig) -> str:
    """The message about a run that would resume its steps, but not its weights."""
    key = "save_contents" if contents.load_contents is None else "load_contents"
    given, model = ", ".join(getattr(contents, key)), folder / HF_FOLDER
    start = f", or start again with trainer.resume_mode=disable and the model {model}" if model.is_dir() else ""
    return (
        f"cannot resume from {folder}: `checkpoint.{key}` is [{given}], so the run would go on from this step with its "
        f"first weights. Wanted model in it{start}"
    )
