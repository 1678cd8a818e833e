"""Memory that an engine gives back while others need it: `/release_memory_occupation`, `/resume_memory_occupation`.

As SGLang has them: the engine must be idle, the prefix cache is forgotten, and new requests wait until everything is
back. Two things differ, because here nothing dies of them: an engine that is not idle answers 400, and what was not
released is resumed without effect. Weights on a GPU wait in host memory; on a CPU they are there already.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from agentrl.errors import UserInputError
from agentrl.inference.embedded.scheduler import Scheduler

if TYPE_CHECKING:
    from agentrl.inference.hf.batches import BatchQueue

KV_CACHE, WEIGHTS, GRAPHS = "kv_cache", "weights", "cuda_graph"
TAGS = (KV_CACHE, WEIGHTS, GRAPHS)
"""What can be released. This engine has no CUDA graphs."""


class Occupation:
    """What of an engine's memory is released now. Used in the engine's thread."""

    def __init__(self, queue: Scheduler | BatchQueue) -> None:
        self._queue = queue
        self.released: set[str] = set()
        self._on_host: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []

    def release(self, tags: Iterable[str], *, paused: bool) -> None:
        """Give memory back.

        Args:
            tags: some of `TAGS`.
            paused: whether requests may wait, because the engine does not run them.

        Raises:
            UserInputError: requests run, or wait for an engine that is not paused.
        """
        queue = self._queue
        if queue.running or (queue.waiting and not paused):
            count = len(queue.running) + len(queue.waiting)
            raise UserInputError(f"{count} requests are open, wanted none: pause the engine in abort mode first")
        for tag in set(tags) - self.released:
            if tag == KV_CACHE:
                queue.drop_cache()
            elif tag == WEIGHTS:
                self._on_host = [(storage, _to_host(storage)) for storage in _on_gpu(queue.model.tensors())]
            self.released.add(tag)
        if queue.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def resume(self, tags: Iterable[str]) -> None:
        """Take memory again; the cache is empty, the weights are those of before."""
        for tag in set(tags) & self.released:
            if tag == KV_CACHE:
                self._queue.lay_out_cache()
            elif tag == WEIGHTS:
                for storage, copy in self._on_host:
                    storage.resize_(copy.nbytes())
                    storage.copy_(copy)
                self._on_host = []
            self.released.discard(tag)


def _on_gpu(tensors: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    """The storages of tensors that lie on a GPU, each once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors if t.device.type == "cuda"}
    return list(storages.values())


def _to_host(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """A copy in host memory; the storage itself then holds nothing."""
    copy = torch.UntypedStorage(storage.nbytes())  # type: ignore[no-untyped-call]
    copy.copy_(storage)
    storage.resize_(0)
    return copy
