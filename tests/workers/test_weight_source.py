"""Buckets are gathered one by one, and travel as bytes. That meshes give the checkpoint's tensors: `test_mesh.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from mesh_ranks import BUCKET_BYTES

from agentrl.inference.weights.buckets import as_fields, flatten, from_fields, specs_of, total_bytes, unflatten
from agentrl.testing.models import build_tiny_model
from agentrl.workers.weight_source import WeightSource


def test_no_more_than_a_bucket_is_whole_at_once(tmp_path: Path, make_config: Any, make_actor: Any, monkeypatch) -> None:
    """Every tensor is gathered when its bucket is taken, once, and tied ones once."""
    import agentrl.workers.weight_source as module

    worker = make_actor(make_config(build_tiny_model(tmp_path / "model", "qwen3_moe", tie_word_embeddings=True)))
    gathered: list[int] = []
    gather = module._gathered

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        gathered.append(tensor.numel() * tensor.element_size())
        return gather(tensor)

    monkeypatch.setattr(module, "_gathered", counted)
    source = WeightSource(worker.model, worker._lm)
    plan = source.plan(BUCKET_BYTES)
    seen = 0
    for number, bucket in enumerate(source.buckets(BUCKET_BYTES)):
        assert sum(gathered) - seen == total_bytes(bucket.specs) == sum(total_bytes(u.specs) for u in plan[number])
        assert specs_of(bucket.tensors) == list(bucket.specs)
        assert all(tensor.is_contiguous() for tensor in bucket.tensors.values())
        seen = sum(gathered)
    assert seen == sum(p.numel() * p.element_size() for p in worker._lm.parameters())


def test_a_bucket_as_bytes() -> None:
    tensors = {
        "a": torch.arange(4.0),
        "odd": torch.tensor([True, False, True]),
        "b": torch.ones(2, 3, dtype=torch.bfloat16),
        "none": torch.zeros(0, 5),
    }
    specs = specs_of(tensors)
    for flat in (flatten(tensors), flatten(tensors, torch.zeros(100, dtype=torch.uint8))):
        assert len(flat) == total_bytes(specs) == 16 + 3 + 12
        again = dict(unflatten(flat, from_fields(**as_fields(specs))))
        assert again.keys() == tensors.keys()
        assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())
