"""`ipc` on GPUs: what each engine is told, on a simulated GPU, with a recorded request."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from simulated_cuda import simulated_cuda

from agentrl.workers import weight_senders
from agentrl.workers.weight_senders import SendJob
from agentrl.workers.weight_source import WeightSource


def test_a_rank_that_fails_does_not_gather_on_alone(
    make_config: Any, make_actor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait for it at the same bucket, and would answer another collective call."""

    def handles(flat: torch.Tensor, specs: Any, reader_gpu: int) -> str:
        raise torch.OutOfMemoryError("as told")

    def counted(buckets: Any) -> Any:
        for bucket in buckets:
            taken.append(bucket.number)
            yield bucket

    taken: list[int] = []
    monkeypatch.setattr(weight_senders, "device_handles", handles)
    worker = make_actor(make_config())
    with simulated_cuda(monkeypatch):
        source = WeightSource(worker.model, worker._lm)
        sender = weight_senders.WeightSender(source, torch.bfloat16, torch.device("cuda"))
        buckets, gpu = source.buckets, torch.device("cuda")
        monkeypatch.setattr(
            source, "buckets", lambda *args, **options: counted(buckets(*args, **options | {"device": gpu}))
        )
        with pytest.raises(torch.OutOfMemoryError):
            sender.send(SendJob("ipc", {"http://engine": 0}, 1, 40_000, 60.0))
    assert taken == [0]


@pytest.mark.parametrize("offloaded", [False, True])
def test_every_engine_rank_gets_the_handles_of_its_gpu(
    offloaded: bool, make_config: Any, make_actor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the parameters are in host memory, as at the start of a run with `param_offload`."""
    requests: list[dict[str, Any]] = []
    lent: list[dict[str, torch.Tensor]] = []

    def handles(flat: torch.Tensor, specs: Any, reader_gpu: int) -> str:
        assert flat.device.type == "cuda"
        lent.append({spec.name: spec.shape for spec in specs})
        return f"handles {len(lent)} for {reader_gpu}"

    async def load(self: Any, fields: dict[str, Any]) -> None:
        requests.append({"address": self.client.address, **fields})

    monkeypatch.setattr(weight_senders, "device_handles", handles)
    monkeypatch.setattr(weight_senders.UpdateCalls, "load", load)
    worker = make_actor(make_config())
    with simulated_cuda(monkeypatch):
        sender = weight_senders.WeightSender(
            WeightSource(worker.model, worker._lm), torch.bfloat16, torch.device("cuda")
        )
        if not offloaded:
            monkeypatch.setattr(sender._source, "buckets", on_gpu(sender._source.buckets))
        report = sender.send(SendJob("ipc", {"http://engine": 0}, 1, 40_000, 60.0))
    assert not report.failed
    assert [request["serialized_named_tensors"] for request in requests] == [
        [f"handles {number + 1} for 0"] for number in range(len(lent))
    ]
    assert len(lent) >= 3
    names = [name for bucket in lent for name in bucket]
    assert sorted(names) == sorted(name for name, _ in worker._lm.named_parameters())


def on_gpu(buckets: Any) -> Any:
    def moved(*args: Any, **options: Any) -> Any:
        return buckets(*args, **options, device=torch.device("cuda"))

    return moved
