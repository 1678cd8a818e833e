"""Log-probs and entropies in chunks equal the whole computation, values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from agentrl.workers import token_stats
from agentrl.workers.token_stats import EntropyMode, token_log_probs


def make(seed: int = 0) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    head = nn.Linear(8, 13, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.randn(13, 8, generator=draw))
    hidden = torch.randn(11, 8, generator=draw, requires_grad=True)
    return head, hidden, torch.randint(0, 13, (11,), generator=draw)


@pytest.mark.parametrize("chunk", [13, 13 * 4, 13 * 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, chunk: int, temperature: float) -> None:
    monkeypatch.setitem(token_stats.LOGITS_PER_CHUNK, "cpu", chunk)
    head, hidden, labels = make()
    log_probs, entropy = token_log_probs(
        head, hidden, labels, 13, temperature=temperature, entropy=EntropyMode.GRADIENT
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
