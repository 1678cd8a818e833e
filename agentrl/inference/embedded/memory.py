"""Memory that an engine gives back while others need it: `/release_memory_occupation`, `/resume_memory_occupation`.

As SGLang has them: the engine must be idle, the prefix cache is forgotten, and new requests wait until everything is
back. Two things differ, because here nothing dies of them: an engine that is not idle answers 400, and what was not
released is resumed without effect. Weights on a GPU wait in host memory; on a CPU they are there already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from agentrl.errors import UserInputError, suggest
from agentrl.inference.embedded.http import Handler, read_object

if TYPE_CHECKING:
    from agentrl.inference.embedded.engine import Engine

KV_CACHE, WEIGHTS, GRAPHS = "kv_cache", "weights", "cuda_graph"
TAGS = (KV_CACHE, WEIGHTS, GRAPHS)
"""What can be released. This engine has no CUDA graphs."""


class Occupation:
    """What of an engine's memory is released now. Used in the engine's thread."""

    def __init__(self) -> None:
        self.released: set[str] = set()
        self._on_host: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []

    def release(self, engine: Engine, tags: Iterable[str]) -> None:
        """Give memory back.

        Raises:
            UserInputError: requests run, or wait for an engine that is not paused.
        """
        queue = engine.scheduler
        if queue.running or (queue.waiting and not engine.paused):
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

    def resume(self, engine: Engine, tags: Iterable[str]) -> None:
        """Take memory again; the cache is empty, the weights are those of before."""
        for tag in set(tags) & self.released:
            if tag == KV_CACHE:
                engine.scheduler.lay_out_cache()
            elif tag == WEIGHTS:
                for storage, copy in self._on_host:
                    storage.resize_(copy.nbytes())
                    storage.copy_(copy)
                self._on_host = []
            self.released.discard(tag)


def memory_routes(engine: Engine) -> dict[tuple[str, str], Handler]:
    """Handlers by method and path."""

    def handler(change: Callable[[Engine, Iterable[str]], None]) -> Handler:
        async def handle(request: HTTPRequest) -> Response:
            tags = (await read_object(request, ("tags",))).get("tags") or TAGS
            unknown = [tag for tag in tags if tag not in TAGS] if isinstance(tags, list | tuple) else [tags]
            if unknown:
                raise UserInputError(f"tags: got {unknown[0]!r}.{suggest(str(unknown[0]), TAGS)}")
            await asyncio.wrap_future(engine.call(lambda: change(engine, tags)))
            return Response(status_code=200)

        return handle

    return {
        ("POST", "/release_memory_occupation"): handler(engine.occupation.release),
        ("POST", "/resume_memory_occupation"): handler(engine.occupation.resume),
    }


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
