"""Advantage estimators and policy losses of the user's own: bound, called, and told with their line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentrl.algorithms import ADVANTAGE_ESTIMATORS, POLICY_LOSSES
from agentrl.errors import PluginError
from agentrl.plugins import register
from agentrl.plugins.own_algorithms import find_estimator, find_policy_loss
from agentrl.testing.algorithm_contracts import check_advantage_estimator, check_policy_loss
from agentrl.testing.plugin_check import check_plugin

OWN = '''
import torch


def centred(token_level_rewards, response_mask, group_ids, scale=1.0):
    rewards = token_level_rewards.sum(-1)
    groups = [[i for i, other in enumerate(group_ids) if other == own] for own in group_ids]
    return scale * torch.stack([rewards[row] - rewards[group].mean() for row, group in enumerate(groups)])


def both(response_mask, outcomes, gamma):
    return outcomes * gamma, outcomes.unsqueeze(-1).expand(response_mask.shape) + 1.0


def verls(token_level_rewards, response_mask, index=None, config=None, **kwargs):
    """As it stands in a project of verl."""
    assert len(index) == len(response_mask) and config is None
    return token_level_rewards * response_mask, token_level_rewards


def needs_values(values, response_mask):
    return values


def ratio(log_probs, old_log_probs, advantages, response_mask, *, power=1.0):
    losses = -advantages * ((log_probs - old_log_probs) * power).exp()
    return losses, {"own/mean_log_prob": log_probs, "own/three": 3}


def whole(log_prob, advantages, response_mask, num_tokens=None):
    return -(advantages * log_prob * response_mask).sum() / max(num_tokens or int(response_mask.sum()), 1)


def depends_on_the_cut(log_probs, response_mask):
    return (log_probs * response_mask).sum() / response_mask.sum().clamp(min=1)


def raises(log_probs):
    wrong = 1
    return {}["loss"] + wrong


def misspelt(log_probs, advantagse):
    return log_probs


def of_rows(log_probs):
    return log_probs.sum(-1)
'''


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path / 'own.py'}"


@pytest.mark.parametrize("name", [*ADVANTAGE_ESTIMATORS])
def test_agentrls_estimators_keep_the_contract(name: str) -> None:
    check_advantage_estimator(name)


@pytest.mark.parametrize("name", [name for name in POLICY_LOSSES if name not in ("clip_cov", "kl_cov")])
def test_agentrls_losses_keep_the_contract(name: str) -> None:
    check_policy_loss(name)


def test_own_estimators_keep_the_contract(own: str) -> None:
    for name in ("centred", "both", "verls"):
        check_advantage_estimator(f"{own}:{name}")
    check_advantage_estimator(f"{own}:centred", scale=2.0)


def test_own_losses_keep_the_contract(own: str) -> None:
    check_policy_loss(f"{own}:ratio")
    check_policy_loss(f"{own}:ratio", power=0.5)
    assert {verdict.problem for verdict in check_plugin(f"{own}:ratio", "policy_losses", None, {"power": 2})[1]} == {
        None
    }
    verdicts = check_plugin(f"{own}:depends_on_the_cut", "policy_losses", None, {})[1]
    assert "return token losses" in str(verdicts[0].problem)


def test_an_own_estimator_gets_what_it_asks_for(own: str) -> None:
    rewards, mask = torch.tensor([[0.0, 1.0, 9.0], [0.0, 0.0, 0.0]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    advantages, returns = find_estimator(f"{own}:centred", {"scale": 4})(rewards, mask, group_ids=["a", "a"])
    assert advantages.tolist() == returns.tolist() == [[2.0, 2.0, 0.0], [-2.0, 0.0, 0.0]]
    advantages, returns = find_estimator(f"{own}:both")(rewards, mask, gamma=0.5, outcomes=torch.tensor([1.0, 3.0]))
    assert advantages.tolist() == [[0.5, 0.5, 0.0], [1.5, 0.0, 0.0]]
    assert returns.tolist() == [[2.0, 2.0, 0.0], [4.0, 0.0, 0.0]]


def test_an_own_loss_equals_agentrls(own: str) -> None:
    old = torch.tensor([[-1.0, -2.0, -0.5], [-0.7, -0.3, -2.2]])
    new, advantages = old + torch.tensor([[0.1, -0.2, 0.3], [0.2, 0.0, 5.0]]), torch.tensor([[1.0] * 3, [-0.5] * 3])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    weights = torch.tensor([[0.5] * 3, [2.0] * 3])
    given = {"loss_agg_mode": "seq-mean-token-mean", "rollout_is_weights": weights, "num_sequences": 4}
    value, metrics = find_policy_loss(f"{own}:ratio")(new, old, advantages, mask, num_tokens=10, **given)
    expected, theirs = POLICY_LOSSES["vanilla"](
        new, old, advantages, mask, num_tokens=10, clip_ratio_low=1.0, clip_ratio_high=99.0, clip_ratio_c=99.0, **given
    )
    torch.testing.assert_close(value, expected)
    assert metrics["ppo_kl"] == pytest.approx(theirs["ppo_kl"])
    assert metrics["own/three"] == pytest.approx(3 * 5 / 10)  # the other half comes from other micro-batches
    assert metrics["own/mean_log_prob"] == pytest.approx(float(new[mask.bool()].sum()) / 10)
    value, _ = find_policy_loss(f"{own}:whole")(new, old, advantages, mask, num_tokens=10)
    assert float(value) == pytest.approx(float(-(advantages * new)[mask.bool()].sum()) / 10)


@pytest.mark.parametrize(
    ("kind", "name", "kwargs", "message"),
    [
        ("loss", "misspelt", {}, r"misspelt \(.*own.py:\d+\): nothing fills its parameter 'advantagse': wanted one of"),
        ("loss", "ratio", {"powr": 2}, "got the keyword 'powr', which it does not take. Did you mean 'power'"),
        ("loss", "raises", {"x": 2}, "got the keyword 'x', which it does not take. It has no parameter of its own"),
        ("estimator", "needs_values", {}, "nothing fills its parameter 'values': only gae has a critic"),
        ("estimator", "nothing", {}, "has no 'nothing'"),
        ("estimator", "ratio", {}, "nothing fills its parameter 'log_probs'"),
    ],
)
def test_what_cannot_be_bound_is_told_at_the_start(
    kind: str, name: str, kwargs: dict[str, int], message: str, own: str
) -> None:
    find = find_policy_loss if kind == "loss" else find_estimator
    with pytest.raises(PluginError, match=message):
        find(f"{own}:{name}", kwargs)


def test_what_a_function_does_wrong_is_told_with_its_line(own: str) -> None:
    ones = torch.ones(2, 3)
    line = OWN.splitlines().index('    return {}["loss"] + wrong') + 1
    with pytest.raises(PluginError, match=rf"raises \(.*own.py:{line - 2}\): KeyError: 'loss' \(.*own.py:{line}\)"):
        find_policy_loss(f"{own}:raises")(ones, ones, ones, ones)
    with pytest.raises(PluginError, match=r"of_rows .*: returned \(2,\), wanted token losses \(2, 3\), or one number"):
        find_policy_loss(f"{own}:of_rows")(ones, ones, ones, ones)
    with pytest.raises(PluginError, match="depends on how the mini-batch is cut"):
        find_policy_loss(f"{own}:depends_on_the_cut")(ones, ones, ones, ones)
    register("one_number", "policy_losses")(lambda log_probs, num_tokens: log_probs.sum() / num_tokens)
    find_policy_loss("one_number")(ones, ones, ones, ones, num_tokens=6)
    with pytest.raises(PluginError, match="take rollout_is_weights"):
        find_policy_loss("one_number")(ones, ones, ones, ones, num_tokens=6, rollout_is_weights=ones)
    register("odd_metric", "policy_losses")(lambda log_probs: (log_probs, {"named": "high"}))
    with pytest.raises(PluginError, match=r"metric 'named' is 'high', wanted \(2, 3\) or a number"):
        find_policy_loss("odd_metric")(ones, ones, ones, ones)
    register("wrong_shape", "advantages")(lambda response_mask: torch.zeros(1, 4))
    register("not_finite", "advantages")(lambda response_mask: torch.full((2,), torch.nan))
    with pytest.raises(PluginError, match=r"returned \(1, 4\), wanted a tensor \(2, 3\) or \(2,\)"):
        find_estimator("wrong_shape")(ones, ones)
    with pytest.raises(PluginError, match="not finite at sampled tokens"):
        find_estimator("not_finite")(ones, ones)
