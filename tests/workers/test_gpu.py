"""What only a GPU runs: the variable-length kernel, offloading, bfloat16. Without a GPU, on a simulated one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from simulated_cuda import gpu_or_simulated, simulated_cuda
from torch.distributed.tensor import DTensor

from agentrl.config.root import RunConfig
from agentrl.single_controller import Placement, Worker
from agentrl.testing.batches import random_batch
from agentrl.testing.models import build_tiny_model
from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker
from agentrl.workers.attention import VARLEN
from agentrl.workers.critic import CriticWorker

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {},
    "llama": {},
    "mistral": {"sliding_window": 6},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "moe_intermediate_size": 32},
}
BATCH = random_batch([(3, 5), (7, 1), (1, 9), (4, 4), (5, 0), (2, 12), (6, 3)], 261)
OFFLOADS = [(False, False), (True, False), (False, True), (True, True)]
Make = Callable[..., Any]


@pytest.fixture
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's GPU, else a simulated one; a parameter `False` makes it too old for the variable-length kernel."""
    with gpu_or_simulated(monkeypatch, (9, 0) if getattr(request, "param", True) else (7, 5)):
        yield


@pytest.fixture
def make(make_config: Make) -> Iterator[Make]:
    """A worker that is ready, on the GPU or, with `use_gpu=False`, on the CPU."""
    workers: list[Worker] = []

    def make_worker(
        folder: Path | None = None,
        offload: tuple[bool, bool] = (False, False),
        *,
        role: str = "actor",
        use_gpu: bool = True,
        dtypes: tuple[str, str] = ("bfloat16", "float32"),
        checkpointing: bool | None = None,
    ) -> Any:
        config: RunConfig = make_config(folder)
        config.actor_rollout_ref.model.enable_gradient_checkpointing = checkpointing
        config.critic.model.enable_gradient_checkpointing = checkpointing
        computed, config.actor_rollout_ref.rollout.dtype = dtypes
        for section in (config.actor_rollout_ref.actor, config.actor_rollout_ref.ref, config.critic):
            section.fsdp_config.param_offload, section.fsdp_config.optimizer_offload = offload
            section.fsdp_config.compute_dtype = computed
        roles = () if role == "critic" else (role,)
        kind: Any = CriticWorker if role == "critic" else ActorRolloutRefWorker
        worker = kind.place(Placement(use_gpu=use_gpu), None, config, *roles)
        workers.append(worker)
        worker.init_model(10)
        return worker

    yield make_worker
    for worker in workers:
        worker.close()


@cache
def folder_of(family: str, parent: Path) -> Path:
    return build_tiny_model(parent / family, family, **FAMILIES[family])


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def two_updates(worker: ActorRolloutRefWorker) -> tuple[torch.Tensor, list[float]]:
    """Log-probs before and after, and the gradient norms of two updates."""
    before = worker.compute_log_prob(BATCH).batch["old_log_probs"]
    norms = [worker.update_actor(BATCH).meta_info["metrics"]["actor/grad_norm"] for _ in range(2)]
    return torch.stack([before, worker.compute_log_prob(BATCH).batch["old_log_probs"]]), norms


@pytest.fixture(scope="module")
def on_cpu() -> dict[str, tuple[torch.Tensor, list[float]]]:
    """What each family gives on the CPU, filled by the first test that asks."""
    return {}


@pytest.mark.parametrize("gpu", [True, False], indirect=True, ids=["varlen", "sdpa"])
@pytest.mark.parametrize(
    ("family", "offload"),
    [
        *(pytest.param(each, (True, True), marks=pytest.mark.slow if each == "llama" else ()) for each in FAMILIES),
        *(("qwen2", pair) for pair in OFFLOADS[:3]),
    ],
)
def test_two_updates_equal_those_on_a_cpu(
    family: str, offload: tuple[bool, bool], gpu: None, parent: Path, make: Make, on_cpu: Any, request: Any
) -> None:
    folder = folder_of(family, parent)
    if family not in on_cpu:
        reference = make(folder, use_gpu=False)
        on_cpu[family] = two_updates(reference)
        reference.close()  # its process group knows no nccl
    worker = make(folder, offload)
    packed = "varlen" in request.node.callspec.id
    assert (worker._lm.config._attn_implementation == VARLEN) is packed
    assert worker._limits.packed is packed
    log_probs, norms = two_updates(worker)
    difference = (log_probs - on_cpu[family][0]).abs()
    assert float(difference.mean()) < 0.02
    assert norms == pytest.approx(on_cpu[family][1], rel=0.05)
    assert_places(worker, offload)


def test_layers_that_are_computed_again_change_nothing(gpu: None, make: Make) -> None:
    """The default from a billion weights on."""
    kept, again = (two_updates(make(offload=(True, True), checkpointing=chosen)) for chosen in (False, True))
    assert float((kept[0] - again[0]).abs().mean()) < 0.01
    assert kept[1] == pytest.approx(again[1], rel=0.02)
    critic = make(role="critic", checkpointing=True)
    assert critic.update_critic(BATCH).meta_info["metrics"]["critic/grad_norm"] > 0


def assert_places(worker: ActorRolloutRefWorker, offload: tuple[bool, bool]) -> None:
    """Weights and moments lie where the configuration wants them between updates."""
    assert worker.model.optimizer is not None
    tensors = [("", worker.model.net.named_parameters(), offload[0])]
    tensors.append(("exp_avg", worker.model.optimizer.state_tensors().items(), offload[1]))
    for prefix, named, on_host in tensors:
        places = {local(value).device.type for name, value in named if name.startswith(prefix)}
        assert places == {"cpu" if on_host else "cuda"}


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@pytest.mark.parametrize("offload", OFFLOADS[2:])
def test_checkpoints_and_weights_for_engines(offload: tuple[bool, bool], gpu: None, tmp_path: Path, make: Make) -> None:
    first, second = make(offload=offload), make(offload=OFFLOADS[0])
    first.update_actor(BATCH)
    first.save_checkpoint(str(tmp_path / "shards"))
    second.load_checkpoint(str(tmp_path / "shards"))
    metrics = [worker.update_actor(BATCH).meta_info["metrics"] for worker in (first, second)]
    assert metrics[0]["actor/grad_norm"] == pytest.approx(metrics[1]["actor/grad_norm"], rel=1e-2)
    files = []
    for number, worker in enumerate((first, second)):
        worker.export_weights(str(tmp_path / str(number)))
        files.append(load_file(tmp_path / str(number) / "model.safetensors"))
    for name, value in files[0].items():
        torch.testing.assert_close(value, files[1][name], atol=2e-4, rtol=1e-3)


def test_types_that_auto_means(gpu: None, tmp_path: Path, make: Make) -> None:
    """On a GPU, passes and the engines' weights are in bfloat16, and what learns stays in float32."""
    worker = make(dtypes=("auto", "auto"))
    assert worker.compute_log_prob(BATCH).batch["old_log_probs"].isfinite().all()
    metrics = worker.update_actor(BATCH).meta_info["metrics"]
    assert metrics["actor/grad_norm"] > 0
    assert metrics["perf/max_memory_allocated_gb"] > 0
    assert {parameter.dtype for parameter in worker.model.net.parameters()} == {torch.float32}
    worker.export_weights(str(tmp_path))
    assert {value.dtype for value in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}


def test_critic_and_reference(gpu: None, make: Make) -> None:
    critic, reference, actor = (make(offload=(True, True), role=role) for role in ("critic", "ref", "actor"))
    critic.update_critic(BATCH)
    critic.update_critic(BATCH)
    assert float(critic.compute_values(BATCH).batch["values"].abs().max()) > 0
    expected = actor.compute_log_prob(BATCH).batch["old_log_probs"]
    assert torch.equal(reference.compute_ref_log_prob(BATCH).batch["ref_log_prob"], expected)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a test of the simulation")
def test_the_simulation_has_two_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_cuda(monkeypatch):
        here = torch.ones(3)
        there = here.to("cuda")
        assert (there.device.type, there.is_cuda, (there * 2)[1:].device.type) == ("cuda", True, "cuda")
        there += 1
        assert here.tolist() == [1.0, 1.0, 1.0]
        with pytest.raises(RuntimeError, match="cuda:0 and cpu"):
            here + there
        assert (here + there.cpu()).tolist() == [3.0, 3.0, 3.0]
        assert torch.zeros(2, device="cuda").device.type == "cuda"
