"""Weights over a process group and through shared memory: the server's refusals. That they arrive: tests/e2e."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from agentrl.inference.embedded.frontend import Frontend
from agentrl.inference.embedded.options import EngineOptions
from agentrl.inference.embedded.server import create_app
from agentrl.inference.weights.buckets import as_fields, flatten, specs_of
from agentrl.inference.weights.shared_memory import SharedMemory

BUCKET = {"names": ["model.norm.weight"], "dtypes": ["float32"], "shapes": [[32]]}


@pytest.fixture(scope="module")
def client(tiny_model_dir: Path) -> Iterator[TestClient]:
    with TestClient(create_app(Frontend(EngineOptions(model=str(tiny_model_dir), device="cpu")))) as client:
        yield client


def refusal(client: TestClient, path: str, body: dict[str, Any]) -> str:
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    found = answer.json()
    return str(found.get("message") or found["error"]["message"])


def test_an_update_has_a_begin_and_an_end(client: TestClient) -> None:
    """As SGLang: outside of an update no bucket is taken, and there is one update at a time."""
    group = {"group_name": "g", **BUCKET}
    assert "must run between begin" in refusal(client, "/update_weights_from_distributed", group)
    memory = {"load_format": "shared_memory", "shared_memory": "x", **BUCKET}
    assert "must run between begin" in refusal(client, "/update_weights_from_tensor", memory)
    assert "no weight-update session is open" in refusal(client, "/end_weight_update", {})
    assert client.post("/begin_weight_update", json={}).json() == {"success": True, "message": "Success"}
    assert "already open" in refusal(client, "/begin_weight_update", {})
    assert "Group g not in []" in refusal(client, "/update_weights_from_distributed", group)
    assert "wanted a name such as" in refusal(client, "/update_weights_from_tensor", memory)
    assert client.post("/end_weight_update", json={}).status_code == 200


def test_a_group_that_cannot_be_joined(client: TestClient) -> None:
    body = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2, "group_name": "g"}
    assert "got 'nccl', but the engine's weights are on cpu" in refusal(client, "/init_weights_update_group", body)
    assert "wanted a text" in refusal(client, "/init_weights_update_group", {**body, "group_name": ""})
    odd = {**body, "backend": "gloo", "world_size": "2"}
    assert "master_address and numbers" in refusal(client, "/init_weights_update_group", odd)
    assert "does not exist" in refusal(client, "/destroy_weights_update_group", {"group_name": "g"})


def test_a_bucket_in_shared_memory(client: TestClient) -> None:
    tensors = {"model.norm.weight": torch.full((32,), 2.0)}
    client.post("/begin_weight_update", json={})
    with SharedMemory(200) as memory:
        flatten(tensors, memory.bytes)
        body = {"load_format": "shared_memory", "shared_memory": memory.name, **as_fields(specs_of(tensors))}
        assert client.post("/update_weights_from_tensor", json={**body, "weight_version": "5"}).json()["success"]
        assert client.get("/model_info").json()["weight_version"] == "5"
        much = {**body, "shapes": [[320]]}
        assert "has 200 bytes, wanted 1280" in refusal(client, "/update_weights_from_tensor", much)
        other = {**body, "names": ["model.nom.weight"]}
        assert "the model has no weight 'model.nom.weight'" in refusal(client, "/update_weights_from_tensor", other)
        assert "wanted such as" in refusal(client, "/update_weights_from_tensor", {**body, "dtypes": ["floaty"]})
        assert "wanted a list" in refusal(client, "/update_weights_from_tensor", {**body, "dtypes": None})
    gone = refusal(client, "/update_weights_from_tensor", body)
    assert "trainer and engine must be on one machine" in gone
    client.post("/end_weight_update", json={})
