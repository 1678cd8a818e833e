"""Models on a mesh (replicate, shard, sp, tp) of two and four gloo ranks learn what one rank learns."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from mesh_ranks import BUCKET_BYTES, FAMILIES, MESHES, ROLES, by_mesh, joined, learn, plan_for, started, state_of
from safetensors.torch import load_file
from warm_commands import warm_commands

from agentrl.data_proto import DataProto
from agentrl.testing.models import build_tiny_classifier, build_tiny_model

pytestmark = pytest.mark.timeout(900)  # the first test starts the ranks of all
# The quick ones are on two meshes of four ranks, each of which starts once; sp and tp and experts are among them.
QUICK = [
    *("actor/qwen2/sp 2 x tp 2", "actor/qwen3_moe/sp 2 x tp 2"),
    *("critic/qwen3/sp 2 x tp 2", "lora/qwen2/shard 2 x sp 2"),
]
EVERY = [f"{role}/{family}/{mesh}" for role in ROLES for family in FAMILIES for mesh in MESHES]
SLOW = [job for job in (*EVERY, "lora/qwen3_moe/replicate 2 x shard 2") if job not in QUICK]
BUCKETS = ["buckets_bfloat16/qwen3_moe/sp 2 x tp 2", "buckets_lora/qwen2/shard 2 x sp 2"]
SLOW_BUCKETS = [
    "buckets/qwen3/sp 2 x tp 2",
    *("buckets/llama/shard 2 x tp 2", "buckets/qwen3_moe/replicate 2 x shard 2"),
    *("buckets_bfloat16/qwen3_moe/shard 2 x tp 2", "buckets_lora/qwen2/replicate 2 x shard 2"),
    *("buckets/qwen2/shard 2", "buckets/qwen3_moe/shard 2", "buckets/qwen3/tp 2", "buckets_bfloat16/qwen3_moe/tp 2"),
    "buckets_lora/qwen2/shard 2",
]
CHECKPOINTS, SLOW_CHECKPOINTS = ("shard 2 x sp 2",), ("shard 2 x tp 2", "replicate 2 x shard 2")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("families")
    for family, fields in FAMILIES.items():
        build_tiny_model(folder / family, family, **fields)
        build_tiny_classifier(folder / f"{family}_classifier", family, **fields)
    return folder


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    with joined():
        yield


def spread(models: Path, folder: Path, world: int, jobs: Sequence[str]) -> dict[str, list[Any]]:
    """Run jobs on ranks of their own; what each rank found, by job."""
    script, output = Path(__file__).with_name("mesh_ranks.py"), folder / "found"
    command = [str(warm_commands() / "python"), str(script), str(models), str(world), str(output), *jobs]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as ranks:
        try:
            errors = ranks.communicate(timeout=850)[1]
        except BaseException:
            os.killpg(ranks.pid, signal.SIGKILL)
            raise
    assert ranks.returncode == 0, errors[-5000:]
    found: dict[str, list[Any]] = {}
    for number, own in enumerate(by_mesh(jobs)):
        parts = [torch.load(f"{output}{number}.{rank}", weights_only=True) for rank in range(world)]
        found |= {job: [part[job] for part in parts] for job in own}
    return found


class Runs:
    """What was learned, on one rank and on meshes; each is computed once."""

    def __init__(self, models: Path, folder: Path, jobs: Sequence[str]) -> None:
        self._models = models
        self._alone: dict[tuple[str, str], dict[str, Any]] = {}
        self.found: dict[str, list[Any]] = {}
        for world in (2, 4):
            if own := [job for job in jobs if MESHES[job.split("/")[2]][0] == world]:
                (folder / str(world)).mkdir()
                self.found |= spread(models, folder / str(world), world, own)

    def alone(self, role: str, family: str) -> dict[str, Any]:
        if (role, family) not in self._alone:
            self._alone[role, family] = learn(role, self._models / family, {})
        return self._alone[role, family]


@pytest.fixture(scope="module")
def quick(models: Path, first_update: object, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(models, tmp_path_factory.mktemp("quick"), [*QUICK, *checkpoints(CHECKPOINTS), *BUCKETS])


@pytest.fixture(scope="module")
def slow(models: Path, first_update: object, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(models, tmp_path_factory.mktemp("slow"), [*SLOW, *checkpoints(SLOW_CHECKPOINTS), *SLOW_BUCKETS])


def checkpoints(meshes: Sequence[str]) -> list[str]:
    return [f"{what}/llama/{mesh}" for mesh in meshes for what in ("save", "load")]


@pytest.mark.parametrize("job", QUICK)
def test_a_mesh_learns_what_one_rank_learns(job: str, quick: Runs) -> None:
    assert_equal(job, quick)


@pytest.mark.slow
@pytest.mark.parametrize("job", SLOW)
def test_every_family_learns_on_every_mesh(job: str, slow: Runs) -> None:
    assert_equal(job, slow)


def assert_equal(job: str, runs: Runs) -> None:
    """Metrics, values per token, gradients and weights of all ranks against those of one."""
    role, family, mesh = job.split("/")
    expected, ranks = runs.alone(role, family), runs.found[job]
    world, sizes = MESHES[mesh]
    copies = sizes.get("ulysses_sequence_parallel_size", 1) * sizes.get("tensor_parallel_size", 1)
    for got in ranks:
        for one, other in zip(expected["metrics"], got["metrics"], strict=True):
            assert other == pytest.approx(one, rel=1e-4, abs=1e-5)
        assert got["summed"] == pytest.approx(expected["summed"], rel=1e-5)
    joined = DataProto.concat([DataProto(ranks[rank]["values"]) for rank in range(0, world, copies)])
    for name, values in expected["values"].items():
        torch.testing.assert_close(joined.batch[name], values, atol=1e-5, rtol=1e-5, msg=name)
    close(ranks[0]["gradients"], expected["gradients"])
    close(ranks[0]["weights"], expected["weights"])
    if role != "reward_model":
        assert max(float(value.abs().max()) for value in expected["gradients"].values()) > 1e-3


def close(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, atol=1e-5, rtol=0, msg=name)


@pytest.mark.parametrize("job", BUCKETS)
def test_buckets_hold_the_tensors_of_the_checkpoint_once(job: str, models: Path, quick: Runs) -> None:
    assert_buckets(job, models, quick)


@pytest.mark.slow
@pytest.mark.parametrize("job", SLOW_BUCKETS)
def test_buckets_of_other_meshes(job: str, models: Path, slow: Runs) -> None:
    assert_buckets(job, models, slow)


def assert_buckets(job: str, models: Path, runs: Runs) -> None:
    role, family, _ = job.split("/")
    ranks = runs.found[job]
    saved = load_file(models / family / "model.safetensors")
    if role == "buckets_lora":
        changed = {name: t for name, t in ranks[0]["merged"].items() if not torch.equal(t, saved[name])}
        assert len(changed) == 14  # seven matrices in each of two layers
        saved = ranks[0]["merged"]
    dtype = torch.bfloat16 if role == "buckets_bfloat16" else torch.float32
    kept: dict[str, torch.Tensor] = {}
    for number, rank in enumerate(ranks):
        assert rank["names"] == ranks[0]["names"]
        assert all(bucket % len(ranks) == number for bucket in rank["kept"])
        for bucket, tensors in rank["kept"].items():
            assert list(tensors) == rank["names"][bucket]
            assert not kept.keys() & tensors.keys()
            kept |= tensors
    assert kept.keys() == saved.keys()
    for name, tensor in kept.items():
        assert torch.equal(tensor, saved[name].to(dtype)), name
    sizes, units = ranks[0]["sizes"], ranks[0]["units"]
    assert all(size <= BUCKET_BYTES or count == 1 for size, count in zip(sizes, units, strict=True))
    assert len(sizes) > 3


@pytest.fixture(scope="module")
def first_update(models: Path, alone: None) -> Iterator[tuple[Any, dict[str, Any]]]:
    """One rank after an update, saved where `load` jobs find it; and its state."""
    with started("actor", models / "llama", {}) as (worker, copies):
        (rows,), _ = plan_for(copies).calls[0]
        worker.update_actor(rows)
        worker.save_checkpoint(str(models / "by one"))
        yield worker, state_of(worker.model)


@pytest.mark.parametrize("mesh", CHECKPOINTS)
def test_checkpoints_are_read_by_other_meshes(
    mesh: str, models: Path, quick: Runs, first_update: tuple[Any, dict[str, Any]]
) -> None:
    assert_read(mesh, models, quick, first_update)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", SLOW_CHECKPOINTS)
def test_checkpoints_of_more_meshes(
    mesh: str, models: Path, slow: Runs, first_update: tuple[Any, dict[str, Any]]
) -> None:
    assert_read(mesh, models, slow, first_update)


def assert_read(mesh: str, models: Path, runs: Runs, first_update: tuple[Any, dict[str, Any]]) -> None:
    """What a mesh writes one rank reads, and the other way round: weights and moments."""
    one, expected = first_update
    assert_state(runs.found[f"load/llama/{mesh}"][0], expected)
    one.load_checkpoint(str(models / mesh))
    assert_state(state_of(one.model), runs.found[f"save/llama/{mesh}"][0])


def assert_state(got: dict[str, Any], expected: dict[str, Any]) -> None:
    for part in ("gradients", "weights"):
        assert got[part].keys() == expected[part].keys()
        for name, value in expected[part].items():
            assert torch.equal(got[part][name], value), name
