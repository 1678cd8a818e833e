"""An update waits for its GPU as often as it takes optimizer steps, however many micro-batches there are."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import simulated_cuda as simulated_cuda_module
import torch
from simulated_cuda import Labels, simulated_cuda

from agentrl.single_controller import Placement, Worker
from agentrl.testing.batches import random_batch
from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker
from agentrl.workers.critic import CriticWorker
from agentrl.workers.on_policy import ON_POLICY

LENGTHS = [(3, 5), (7, 1), (1, 9), (4, 4), (5, 2), (2, 12), (6, 3), (3, 3)]
COUNTING = ("nonzero", "masked_select", "_local_scalar_dense", "is_nonzero", "equal.default", "unique", "bincount")
"""Operations whose result's shape or value the host must know: on a GPU they wait for everything before them."""


def counts(labels: Labels, func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operation on the GPU has a result that the host must wait for."""
    first = args[0] if args and isinstance(args[0], torch.Tensor) else None
    index = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
    counted = any(name in str(func) for name in COUNTING)
    counted |= "aten.index" in str(func) and any(getattr(i, "dtype", None) == torch.bool for i in index)
    counted |= "repeat_interleave" in str(func) and not kwargs.get("output_size")
    return counted and first is not None and labels.device(first).type == "cuda"


@pytest.fixture
def labels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Labels]:
    if torch.cuda.is_available():
        pytest.skip("counts on a simulated GPU")
    with simulated_cuda(monkeypatch) as labels:
        yield labels


def waits_of(labels: Labels, monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> list[str]:
    """What waits for the GPU in a call, and where: numbers, shapes that depend on values, copies to host memory."""
    found: list[str] = []
    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "__bool__", "__float__", "__int__", "cpu", "numpy"):
            real = getattr(torch.Tensor, name)

            def told(tensor: torch.Tensor, *args: Any, name: str = name, real: Any = real, **options: Any) -> Any:
                if labels.device(tensor).type == "cuda" and not in_stand_in():
                    found.append(f"{name} in {place()}")
                return real(tensor, *args, **options)

            patch.setattr(torch.Tensor, name, told)
        dispatch = simulated_cuda_module._Operations.__torch_dispatch__

        def operation(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if counts(labels, func, args, kwargs or {}) and not in_stand_in():
                found.append(f"{func} in {place()}")
            return dispatch(mode, func, types, args, kwargs)

        patch.setattr(simulated_cuda_module._Operations, "__torch_dispatch__", operation)
        call()
    return found


def in_stand_in() -> bool:
    """Whether the loop runs that stands for the attention kernel: it counts, the kernel does not."""
    return any(frame.name == "varlen_by_loop" for frame in traceback.extract_stack())


def place() -> str:
    """The line of the product, or of what it calls, that is being run."""
    frames = [f for f in traceback.extract_stack() if "/torch/" not in f.filename and "/tests/" not in f.filename]
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno} {frames[-1].line}"


@pytest.fixture
def make(make_config: Callable[..., Any], labels: Labels) -> Iterator[Callable[..., Any]]:
    workers: list[Worker] = []

    def make_worker(max_tokens: int, *, critic: bool = False, change: Callable[[Any], None] = lambda _: None) -> Any:
        config = make_config()
        for section in (config.actor_rollout_ref.actor, config.critic):
            section.ppo_max_token_len_per_gpu, section.ppo_mini_batch_size = max_tokens, 1000
        change(config)
        kind: Any = CriticWorker if critic else ActorRolloutRefWorker
        worker = kind.place(Placement(use_gpu=True), None, config)
        workers.append(worker)
        worker.init_model(10)
        return worker

    yield make_worker
    for worker in workers:
        worker.close()


def with_kl(config: Any) -> None:
    actor = config.actor_rollout_ref.actor
    actor.use_kl_loss, actor.entropy_coeff = True, 0.01


def with_covariance(config: Any) -> None:
    config.actor_rollout_ref.actor.policy_loss = "clip_cov"


def with_bypass(config: Any) -> None:
    correction = config.algorithm.rollout_correction
    correction.bypass_old_log_prob, correction.loss_type, correction.is_level = True, "reinforce", "token"
    correction.is_batch_normalize, correction.rs = True, (0.5, 2.0)


def by_rows(config: Any) -> None:
    config.actor_rollout_ref.model.use_remove_padding = False


CHANGES: dict[str, Callable[[Any], None]] = {
    "KL and entropy": with_kl,
    "clip_cov": with_covariance,
    "rows": by_rows,
}


@pytest.mark.parametrize("name", [*CHANGES, "on-policy", "bypass", "critic"])
def test_more_micro_batches_wait_no_more(name: str, make: Any, labels: Labels, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = random_batch(LENGTHS, 261)
    if name == "on-policy":
        batch.meta_info[ON_POLICY] = True
    found = []
    for max_tokens in (1000, 15):
        change = with_bypass if name == "bypass" else CHANGES.get(name, lambda config: None)
        worker = make(max_tokens, critic=name == "critic", change=change)
        update = worker.update_critic if name == "critic" else worker.update_actor
        update(batch)
        found.append(waits_of(labels, monkeypatch, lambda update=update: update(batch)))
    if name == "rows":  # transformers looks for packed runs in every pass of its own attention
        found = [[wait for wait in each if "in masking_utils.py" not in wait] for each in found]
    assert found[0] == found[1]
    places = {wait.partition(" in ")[2] for wait in found[0]}
    assert len(places) == {"clip_cov": 5, "bypass": 4}.get(name, 2), places
    # The step must know whether its gradient is finite, and metrics are read once.
    assert any("value = float(norm)" in place for place in places)
    assert any("numbers = dict(" in place for place in places)


def test_log_probs_wait_once(make: Any, labels: Labels, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, worker = random_batch(LENGTHS, 261), make(1000)
    found = []
    for max_tokens in (1000, 15):
        worker._infer_limits = type(worker._infer_limits)(max_tokens, None, True, False)
        found.append(waits_of(labels, monkeypatch, lambda: worker.compute_log_prob(batch)))
    assert len({wait.partition(" in ")[2] for wait in found[0]}) == 2, "log-probs and entropies"
    assert found[0] == found[1]
