"""Log-probs and entropies in chunks equal the whole computation, values and gradients."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
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
    monkeypatch.setitem(token_stats.LOGITS_PER_CHUNK, "cpu", chunk)
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
    monkeypatch.setitem(token_stats.LOGITS_PER_CHUNK, "cpu", chunk)
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


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("entropy", [EntropyMode.VALUE, EntropyMode.GRADIENT])
def test_chunks_bound_the_memory(entropy: EntropyMode, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """512 positions over 18,750 ids are an eighth of 4,096 over 150,000 each: 64 times less must stay below 1.2 GiB."""
    chunk = token_stats.LOGITS_PER_CHUNK[device] // 64
    monkeypatch.setitem(token_stats.LOGITS_PER_CHUNK, "cpu", chunk)
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
