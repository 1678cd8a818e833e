"""The ranks' side of a weight update: gathers buckets and brings them to engines that have begun an update.

All ranks gather every bucket together. Rank 0 talks to the engines; with `ipc` on GPUs every rank lends its own copy.
Whatever an engine does, the ranks gather to the end: one that stopped would leave the others waiting for it.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.errors import EngineError
from agentrl.inference.client import EngineClient
from agentrl.inference.weights.buckets import as_fields, flatten, specs_of, total_bytes
from agentrl.inference.weights.calls import UpdateCalls, each
from agentrl.inference.weights.group_sender import GroupSender
from agentrl.inference.weights.handles import device_handles
from agentrl.inference.weights.shared_memory import SharedMemory
from agentrl.types import JsonDict

if TYPE_CHECKING:
    from agentrl.workers.weight_source import Bucket, WeightSource

PARTING_S = 1.0
"""How long engines may take to leave the last group when a run ends."""


@dataclass(frozen=True, slots=True)
class SendJob:
    """What ranks send, and to whom.

    Attributes:
        transport: `distributed`, `ipc` (handles of GPU memory, on CPUs shared memory) or `tensor` (in the request).
        engines: by address, the number of each: engine k has the GPUs of the ranks k * n to (k + 1) * n - 1.
        engine_ranks: n, the ranks of each engine (its tensor-parallel size).
        bucket_bytes: most bytes of weights that a rank holds beside its shards, unless one tensor has more.
        timeout_s: limit of the whole way.
    """

    transport: Literal["distributed", "ipc", "tensor"]
    engines: Mapping[str, int]
    engine_ranks: int
    bucket_bytes: int
    timeout_s: float

    @property
    def gathered_bytes(self) -> int:
        """Half of `bucket_bytes`: what is gathered is laid out once more, as one run of bytes."""
        return self.bucket_bytes // 2


@dataclass(frozen=True, slots=True)
class SendReport:
    """What became of it.

    Attributes:
        failed: engines to leave out, and why.
        again: the others did not get all of it, and must begin again from the start.
    """

    failed: Mapping[str, EngineError] = field(default_factory=dict)
    again: bool = False


class WeightSender:
    """One rank's part in sending. Every call of `send` is a collective call.

    Args:
        source: the weights.
        dtype: what floating weights are cast to.
        device: where they are.
    """

    def __init__(self, source: WeightSource, dtype: torch.dtype, device: torch.device) -> None:
        self._source, self._dtype, self._device = source, dtype, device
        self._group = GroupSender("nccl" if device.type == "cuda" else "gloo")
        self._enough = False
        """Nobody takes what is still gathered."""

    def send(self, job: SendJob) -> SendReport:
        """Bring all weights to engines that have begun an update. Only rank 0's report tells of engines."""
        lends = job.transport == "ipc" and self._device.type == "cuda"
        keeps = lends or dist.get_rank() == 0
        self._enough = not keeps
        buckets = self._source.buckets(job.gathered_bytes, self._dtype, keep=lambda number: not self._enough)
        report = SendReport()
        try:
            if lends:
                report = self._lend(job, buckets)
            elif keeps:
                report = asyncio.run(self._talk(job, buckets))
        except BaseException:
            if lends:  # out of memory, say: the others wait for this rank at this bucket, and it must not gather on
                buckets = iter(())
            raise
        finally:
            self._enough = True
            for _ in buckets:
                pass
        return report

    def close(self) -> None:
        """Leave the group, and let engines leave it, which may go on serving others."""
        self._group.close()
        if self._group.held:
            asyncio.run(self._part())

    async def _part(self) -> None:
        clients = {address: _client(address) for address in self._group.held}
        await self._group.let_leave(clients, time.monotonic() + PARTING_S)
        await asyncio.gather(*(client.close() for client in clients.values()))

    async def _talk(self, job: SendJob, buckets: Iterator[Bucket]) -> SendReport:
        """On rank 0: all buckets to all engines, by one way."""
        clients = {address: _client(address) for address in job.engines}
        deadline = time.monotonic() + job.timeout_s
        try:
            if job.transport == "distributed":
                aligned = map(_taken, buckets)
                failed, again = await self._group.send(clients, job.engine_ranks, aligned, self._device, deadline)
                return SendReport(failed, again)
            if job.transport == "tensor":
                return await _one_by_one(clients, buckets, _file_fields, job.timeout_s)
            plan = self._source.plan(job.gathered_bytes, self._dtype)
            largest = max(sum(total_bytes(unit.specs) for unit in units) for units in plan)
            with SharedMemory(largest) as memory:
                return await _one_by_one(clients, buckets, partial(_shared_fields, memory), job.timeout_s)
        finally:
            await asyncio.gather(*(client.close() for client in clients.values()))

    def _lend(self, job: SendJob, buckets: Iterator[Bucket]) -> SendReport:
        """On GPUs: every rank lends its copy of a bucket to the engine rank on the same GPU."""
        failed: dict[str, EngineError] = {}
        deadline = time.monotonic() + job.timeout_s
        for bucket in buckets:
            tensors = _taken(bucket)
            specs, flat = specs_of(tensors), flatten(tensors).to(self._device)  # offloaded ones come from host memory
            tensors.clear()
            torch.cuda.synchronize(self._device)
            lent: list[str] = [""] * dist.get_world_size()
            dist.all_gather_object(lent, device_handles(flat, specs, dist.get_rank() % job.engine_ranks))
            if dist.get_rank() == 0:
                new = asyncio.run(_offer(job, lent, failed, deadline))
                failed |= new
                deadline = time.monotonic() + job.timeout_s if new else deadline
            dist.barrier()  # until all engines have read it, the memory is theirs
        return SendReport(failed)


async def _one_by_one(
    clients: Mapping[str, EngineClient],
    buckets: Iterator[Bucket],
    fields_of: Callable[[Bucket], JsonDict],
    timeout_s: float,
) -> SendReport:
    """Every bucket to every engine on its own: one that fails is left out, and the others go on."""
    failed: dict[str, EngineError] = {}
    deadline = time.monotonic() + timeout_s
    for bucket in buckets:
        fields, limit_s, before = fields_of(bucket), _left(deadline), len(failed)
        left = {address: client for address, client in clients.items() if address not in failed}
        failed |= await each({address: UpdateCalls(client, limit_s).load(fields) for address, client in left.items()})
        if len(failed) == len(clients):
            break
        if len(failed) > before:  # a silent engine took the time of the others
            deadline = time.monotonic() + timeout_s
    return SendReport(failed)


def _shared_fields(memory: SharedMemory, bucket: Bucket) -> JsonDict:
    """A bucket in shared memory."""
    tensors = _taken(bucket)
    flatten(tensors, memory.bytes)
    fields = {"load_format": "shared_memory", "shared_memory": memory.name, "serialized_named_tensors": []}
    return {**fields, **as_fields(specs_of(tensors))}


def _file_fields(bucket: Bucket) -> JsonDict:
    """A bucket as a safetensors file in the request."""
    from safetensors.torch import save

    whole = {name: tensor.detach().cpu() for name, tensor in _taken(bucket).items()}
    encoded = base64.b64encode(save(whole)).decode("ascii")
    return {"load_format": "safetensors", "serialized_named_tensors": [encoded]}


async def _offer(
    job: SendJob, lent: list[str], failed: Mapping[str, EngineError], deadline: float
) -> dict[str, EngineError]:
    """Tell each engine that is left which handles its ranks may read."""
    clients = {address: _client(address) for address in job.engines if address not in failed}
    ranks, limit_s = job.engine_ranks, _left(deadline)
    try:
        asked = {}
        for address, client in clients.items():
            first = job.engines[address] * ranks
            handles = {"serialized_named_tensors": lent[first : first + ranks]}
            asked[address] = UpdateCalls(client, limit_s).load(handles)
        return await each(asked)
    finally:
        await asyncio.gather(*(client.close() for client in clients.values()))


def _taken(bucket: Bucket) -> dict[str, Tensor]:
    """The bucket's tensors, which the bucket then no longer holds, wide data types first.

    Each then begins where its data type may: a float32 tensor behind 3 bytes of bool would begin at byte 3.
    """
    tensors = dict(sorted(bucket.tensors.items(), key=lambda item: -item[1].element_size()))
    bucket.tensors.clear()
    return tensors


def _left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())


def _client(address: str) -> EngineClient:
    return EngineClient(address, vocab_size=1, retries=0)
