"""Worker: the base class of a training rank."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store

from agentrl.errors import WorkerError


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a rank runs: its number, the number of ranks, and where rank 0 listens (port 0: a group of one)."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    use_gpu: bool = False
    threads: int | None = None

    def environment(self) -> dict[str, str]:
        """The environment variables that `torch.distributed` and libraries on top of it read."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
        }

    def apply_to_process(self) -> None:
        """Set variables and threads of the whole process. Only for a process that is exactly one rank."""
        os.environ.update(self.environment())
        if self.threads is not None:
            torch.set_num_threads(self.threads)


class Worker:
    """One rank. Subclass it and mark methods with `@register`.

    A subclass needs no `super().__init__()`: the backend sets the placement before `__init__` runs. Built directly, a
    worker is rank 0 of 1.
    """

    placement: Placement = Placement()
    _group_users: ClassVar[int] = 0
    """Workers of this process that use the default process group (several in the local backend)."""
    _uses_group: bool = False
    _store: Store | None = None

    @classmethod
    def place(cls, placement: Placement, store: Store | None, *args: Any, **kwargs: Any) -> Self:
        """Build a worker at `placement`; the ranks meet through `store` (None: a group of one)."""
        worker = cls.__new__(cls)
        worker.placement, worker._store = placement, store
        worker.__init__(*args, **kwargs)  # type: ignore[misc]
        return worker

    @classmethod
    def copies_of(cls, *_args: Any, **_kwargs: Any) -> int:
        """How many neighbouring ranks of a worker with these arguments get the same rows: a divisor of all ranks."""
        return 1

    @property
    def rank(self) -> int:
        """Number of this rank, 0 to `world_size` - 1."""
        return self.placement.rank

    @property
    def world_size(self) -> int:
        """Number of ranks in the group."""
        return self.placement.world_size

    @property
    def local_rank(self) -> int:
        """Number of this rank on its machine."""
        return self.placement.local_rank

    @property
    def device(self) -> torch.device:
        """The GPU of this rank, or the CPU."""
        if not self.placement.use_gpu:
            return torch.device("cpu")
        # Ray shows each actor only its own GPU; elsewhere all GPUs of the machine are visible.
        return torch.device("cuda", min(self.local_rank, torch.cuda.device_count() - 1))

    def init_process_group(self, backend: str | None = None, timeout_s: float | None = None) -> None:
        """Join the default process group of these ranks; calling it again does nothing.

        Args:
            backend: `gloo` or `nccl`; None: by device.
            timeout_s: how long a collective may wait for the other ranks; None: 1800.

        Raises:
            WorkerError: this process is already in another group.
        """
        if self._uses_group:
            return
        if dist.is_initialized():
            if dist.get_world_size() != self.world_size or dist.get_rank() != self.rank:
                raise WorkerError(
                    f"this process is already rank {dist.get_rank()} of {dist.get_world_size()}; "
                    f"it cannot also be rank {self.rank} of {self.world_size}"
                )
        else:
            self._join(backend or ("nccl" if self.placement.use_gpu else "gloo"), timeout_s or 1800.0)
        self._uses_group = True
        Worker._group_users += 1

    def close(self) -> None:
        """Leave the process group; the backend calls it before the rank ends. Overrides must call it too."""
        if not self._uses_group:
            return
        self._uses_group = False
        Worker._group_users -= 1
        if Worker._group_users == 0 and dist.is_initialized():
            dist.destroy_process_group()

    def _join(self, backend: str, timeout_s: float) -> None:
        if self.placement.use_gpu:
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            backend,
            store=self._store or HashStore(),
            rank=self.rank,
            world_size=self.world_size,
            timeout=datetime.timedelta(seconds=timeout_s),
        )
