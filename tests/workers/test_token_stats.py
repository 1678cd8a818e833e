"""Log-probs and entropies in chunks equal the whole computation, values and gradients."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from simulated_cuda import simulated_cuda
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agentrl.workers import token_stats
from agentrl.workers.token_stats import EntropyMode, token_hits, token_log_probs


def make(seed: int = 0) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    head = nn.Linear(8, 13, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.randn(13, 8, generator=draw))
    hidden = torch.randn(11, 8, generator=draw, requires_grad=True)
    return head, hidden, torch.randint(0, 13, (11,), generator=draw)


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("chunk", [13, 13 * 4, 13 * 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, chunk: int, temperature: float, plain: bool) -> None:
    monkeypatch.setattr(token_stats, "LOGITS_PER_CHUNK", chunk)
    head, hidden, labels = make()
    log_probs, entropy = token_log_probs(
        head if plain else nn.Sequential(head),
        hidden,
        labels,
        13,
        temperature=temperature,
        entropy=EntropyMode.GRADIENT,
    )
    assert entropy is not None
    (log_probs.sum() + 0.5 * entropy.pow(2).sum()).backward()
    got = hidden.grad.clone(), head.weight.grad.clone()

    head, hidden, _ = make()
    distribution = torch.distributions.Categorical(logits=head(hidden) / temperature)
    expected = distribution.log_prob(labels)
    torch.testing.assert_close(log_probs, expected)
    torch.testing.assert_close(entropy, distribution.entropy())
    (expected.sum() + 0.5 * distribution.entropy().pow(2).sum()).backward()
    torch.testing.assert_close(got[0], hidden.grad)
    torch.testing.assert_close(got[1], head.weight.grad)


def test_entropy_without_gradient() -> None:
    head, hidden, labels = make()
    log_probs, entropy = token_log_probs(head, hidden, labels, 13, entropy=EntropyMode.VALUE)
    assert entropy is not None
    assert not entropy.requires_grad
    assert log_probs.requires_grad


def test_no_entropy_unless_asked() -> None:
    head, hidden, labels = make()
    assert token_log_probs(head, hidden, labels, 13)[1] is None


def test_half_precision_logits_are_reduced_in_float32() -> None:
    head, hidden, labels = make()
    log_probs, _ = token_log_probs(head.to(torch.bfloat16), hidden.to(torch.bfloat16), labels, 13)
    assert log_probs.dtype == torch.float32


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("chunk", [13 * 4, 13 * 100])
def test_hits_are_the_most_likely_tokens(monkeypatch: pytest.MonkeyPatch, chunk: int, plain: bool) -> None:
    monkeypatch.setattr(token_stats, "LOGITS_PER_CHUNK", chunk)
    head, hidden, labels = make()
    best = head(hidden).argmax(-1)
    labels[::2] = best[::2]
    log_probs, hits = token_hits(head if plain else nn.Sequential(head), hidden, labels, 13)
    assert torch.equal(hits, best == labels)
    torch.testing.assert_close(log_probs, head(hidden).log_softmax(-1).gather(1, labels[:, None])[:, 0])
    log_probs.sum().backward()
    assert head.weight.grad.abs().max() > 0


def test_no_position_has_a_gradient_of_zero() -> None:
    """A rank whose tokens predict nothing still takes part in every exchange of gradients."""
    head, hidden, labels = make()
    log_probs, _ = token_log_probs(head, hidden[:0], labels[:0], 13)
    log_probs.sum().backward()
    assert torch.equal(head.weight.grad, torch.zeros_like(head.weight))


def test_a_frozen_head_gets_no_gradient() -> None:
    head, hidden, labels = make()
    head.weight.requires_grad_(False)
    token_log_probs(head, hidden, labels, 13)[0].sum().backward()
    assert head.weight.grad is None
    assert hidden.grad.abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("entropy", [EntropyMode.NONE, EntropyMode.VALUE, EntropyMode.GRADIENT])
def test_4096_positions_of_a_large_vocabulary_take_less_than_1200_mib(
    entropy: EntropyMode, plain: bool, dtype: torch.dtype
) -> None:
    """Forward and backward, on tensors without memory; the gradient of the head itself is counted too."""
    head = nn.Linear(16, 151_936, bias=False, device="meta", dtype=dtype)
    hidden = torch.empty(4096, 16, requires_grad=True, device="meta", dtype=dtype)
    labels = torch.empty(4096, dtype=torch.long, device="meta")
    with Peak() as peak:
        log_probs, entropies = token_log_probs(
            head if plain else nn.Sequential(head), hidden, labels, 151_936, entropy=entropy
        )
        loss = log_probs.sum() if entropies is None else log_probs.sum() + entropies.sum()
        loss.backward()
    assert 4 * token_stats.LOGITS_PER_CHUNK / 2 < peak.bytes < 1.2 * 2**30, f"{peak.bytes / 2**20:.0f} MiB"


@pytest.mark.parametrize(
    ("free_gib", "kept_gib", "logits"),
    [(60, 0, 2**26), (2, 0, 2**26), (1.5, 0, 2**25), (0.5, 1.0, 2**25), (0.1, 0, 2**21), (0.0, 0, 2**21)],
)
def test_chunks_fit_into_the_free_memory(
    free_gib: float, kept_gib: float, logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated_cuda(monkeypatch):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free_gib * 2**30), 80 * 2**30))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: int(kept_gib * 2**30))
        gpu = torch.device("cuda", 0)
        assert token_stats.logits_per_chunk(gpu) == logits
        torch.use_deterministic_algorithms(True)
        try:
            assert token_stats.logits_per_chunk(gpu) == token_stats.LOGITS_PER_CHUNK
        finally:
            torch.use_deterministic_algorithms(False)
    assert token_stats.logits_per_chunk(torch.device("cpu")) == token_stats.LOGITS_PER_CHUNK


@pytest.mark.parametrize("entropy", [EntropyMode.VALUE, EntropyMode.GRADIENT])
def test_chunks_bound_the_memory(entropy: EntropyMode, monkeypatch: pytest.MonkeyPatch) -> None:
    """512 positions over 18,750 ids are an eighth of 4,096 over 150,000 each: 64 times less must stay below 1.2 GiB."""
    chunk = token_stats.LOGITS_PER_CHUNK // 64
    monkeypatch.setattr(token_stats, "LOGITS_PER_CHUNK", chunk)
    head, hidden = nn.Linear(16, 18_750, bias=False), torch.randn(512, 16, requires_grad=True)
    labels = torch.randint(0, 18_750, (512,))
    with Peak() as peak:
        log_probs, entropies = token_log_probs(head, hidden, labels, 18_750, entropy=entropy)
        (log_probs.sum() + entropies.sum()).backward()
    assert 4 * chunk < peak.bytes < 1.2 * 2**30 / 64


class Peak(TorchDispatchMode):
    """The most bytes that tensors made in this block held at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self._now = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage())._cdata not in self._seen:
                known = {
                    arg.untyped_storage()._cdata for arg in tree_leaves((args, kwargs)) if isinstance(arg, torch.Tensor)
                }
                if storage._cdata not in known:
                    self._count(storage)
        self.bytes = max(self.bytes, self._now)
        return result

    def _count(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._seen.add(key)
        self._now += size
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self._now -= size
