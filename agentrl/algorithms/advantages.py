"""Advantage estimators. Each is one function; `ADVANTAGE_ESTIMATORS` lists them.

Every estimator takes token rewards and the response mask, both `(B, T)`, and returns `(advantages, returns)`, both
`(B, T)` and 0 where the mask is 0. Below, R is the sum of a row's token rewards over the mask; mean_g and std_g are
taken over the rows with the same group id. An estimator that knows no reward-to-go returns its advantages twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from agentrl.algorithms.groups import Groups, outcome
from agentrl.algorithms.masked import masked_whiten, zero_outside

EPS = 1e-6
"""Added to std_g."""


class AdvantageEstimator(Protocol):
    """Signature of every entry of `ADVANTAGE_ESTIMATORS`; an estimator ignores what it does not use."""

    def __call__(
        self,
        token_level_rewards: Tensor,
        response_mask: Tensor,
        *,
        values: Tensor | None = None,
        group_ids: Sequence[Hashable] | None = None,
        baselines: Tensor | None = None,
        outcomes: Tensor | None = None,
        gamma: float = 1.0,
        lam: float = 1.0,
        norm_adv_by_std: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Compute (advantages, returns), both `(B, T)`.

        Args:
            token_level_rewards: `(B, T)`.
            response_mask: `(B, T)`, 1 where the policy sampled the token.
            values: `(B, T)`, the critic's output (gae).
            group_ids: B hashables; rollouts of one prompt share one (all estimators with mean_g).
            baselines: `(B,)`, reward of the greedy rollout of each row's prompt (remax).
            outcomes: `(B,)`, R of each row for estimators with mean_g; None: the sum over the mask, which is 0 for a
                row without a sampled token, whatever its score.
            gamma: discount per sampled token (gae, reinforce_plus_plus).
            lam: trace decay per sampled token (gae).
            norm_adv_by_std: divide by std_g (grpo, grpo_passk).

        Raises:
            ValueError: an argument that the estimator needs is missing or has the wrong shape.
        """


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The arguments of an estimator, and values that several estimators derive from them. Arithmetic is float64."""

    rewards: Tensor
    mask: Tensor
    values: Tensor | None
    group_ids: Sequence[Hashable] | None
    baselines: Tensor | None
    given_outcomes: Tensor | None
    gamma: float
    lam: float
    norm_adv_by_std: bool

    def outcomes(self) -> Tensor:
        """R, `(B,)`."""
        if self.given_outcomes is None:
            return outcome(self.rewards, self.mask)
        if self.given_outcomes.shape != self.rewards.shape[:1]:
            raise ValueError(f"outcomes: got shape {tuple(self.given_outcomes.shape)} for {len(self.rewards)} rows")
        return self.given_outcomes.double()

    def lengths(self) -> Tensor:
        """Sampled tokens of each row, `(B,)`."""
        return self.mask.bool().sum(-1).double()

    def groups(self) -> Groups:
        """The groups of the rows."""
        if self.group_ids is None:
            raise ValueError("this advantage estimator needs group_ids: one hashable per row")
        if len(self.group_ids) != len(self.rewards):
            raise ValueError(f"group_ids: got {len(self.group_ids)} entries for {len(self.rewards)} rows")
        return Groups(self.group_ids, self.rewards.device)

    def over_tokens(self, per_row: Tensor) -> Tensor:
        """A row value at each of the row's sampled tokens, `(B, T)`."""
        return zero_outside(per_row.unsqueeze(-1).expand(self.mask.shape), self.mask)


def _estimator(core: Callable[[Rollouts], tuple[Tensor, Tensor]]) -> AdvantageEstimator:
    """Give `core` the public signature and the caller's floating type."""

    @wraps(core)
    def estimate(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        *,
        values: Tensor | None = None,
        group_ids: Sequence[Hashable] | None = None,
        baselines: Tensor | None = None,
        outcomes: Tensor | None = None,
        gamma: float = 1.0,
        lam: float = 1.0,
        norm_adv_by_std: bool = True,
    ) -> tuple[Tensor, Tensor]:
        if token_level_rewards.ndim != 2 or token_level_rewards.shape != response_mask.shape:
            shapes = f"{tuple(token_level_rewards.shape)} and {tuple(response_mask.shape)}"
            raise ValueError(f"token_level_rewards and response_mask must both be (B, T), got {shapes}")
        rewards = zero_outside(token_level_rewards, response_mask).double()
        dtype = token_level_rewards.dtype if token_level_rewards.is_floating_point() else torch.float32
        with torch.no_grad():
            rollouts = Rollouts(
                rewards, response_mask, values, group_ids, baselines, outcomes, gamma, lam, norm_adv_by_std
            )
            advantages, returns = core(rollouts)
        return advantages.to(dtype), returns.to(dtype)

    return estimate


@_estimator
def gae(rollouts: Rollouts) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation over sampled tokens only (arXiv 1506.02438, eq. 11-16).

    `delta_t = r_t + gamma * V_next - V_t`, `A_t = delta_t + gamma * lam * A_next`, where "next" is the next token with
    mask 1: an observation neither discounts nor carries a value. Returns are `A + V`; then A is whitened over the mask.
    """
    if rollouts.values is None or rollouts.values.shape != rollouts.rewards.shape:
        raise ValueError(f"gae needs values, the critic's output, of shape {tuple(rollouts.rewards.shape)}")
    values = zero_outside(rollouts.values, rollouts.mask).double()
    order, inverse = _sampled_first(rollouts.mask)
    rewards, compact = rollouts.rewards.gather(-1, order), values.gather(-1, order)
    deltas = rewards + rollouts.gamma * pad(compact[:, 1:], (0, 1)) - compact
    advantages = _discounted_suffix_sum(deltas, rollouts.gamma * rollouts.lam).gather(-1, inverse)
    returns = zero_outside(advantages + values, rollouts.mask)
    return masked_whiten(advantages, rollouts.mask), returns


@_estimator
def grpo(rollouts: Rollouts) -> tuple[Tensor, Tensor]:
    """`(R - mean_g) / (std_g + 1e-6)` with the unbiased std (arXiv 2402.03300, sec. 4.1); 0 in a group of one.

    Without `norm_adv_by_std`: `R - mean_g`, Dr.GRPO (arXiv 2503.20783).
    """
    groups, rewards = rollouts.groups(), rollouts.outcomes()
    advantages = groups.centred(rewards)
    if rollouts.norm_adv_by_std:
        advantages = advantages / (groups.std(rewards) + EPS)
    return _twice(rollouts.over_tokens(advantages))


@_estimator
def rloo(rollouts: Rollouts) -> tuple[Tensor, Tensor]:
    """REINFORCE leave-one-out: `R` minus the mean of the others, `n / (n - 1) * (R - mean_g)` (arXiv 2402.14740)."""
    groups = rollouts.groups()
    factor = groups.sizes / (groups.sizes - 1).clamp(min=1)
    return _twice(rollouts.over_tokens(factor * groups.centred(rollouts.outcomes())))


@_estimator
def reinforce_plus_plus(rollouts: Rollouts) -> tuple[Tensor, Tensor]:
    """Discounted reward-to-go over sampled tokens, whitened over the batch (arXiv 2501.03262).

    Observations are skipped: they neither discount nor reset the sum. Returns are the reward-to-go before whitening.
    """
    returns = _reward_to_go(rollouts, rollouts.gamma)
    return masked_whiten(returns, rollouts.mask), returns


@_estimator
def reinforce_plus_plus_baseline(rollouts: Rollouts) -> tuple[Tensor, Tensor]:
    """`R - mean_g`, whitened over the tokens of the batch (arXiv 2501.03262)."""
    centred = rollouts.groups().centred(rollouts.outcomes())
    return _twice(masked_whiten(rollouts.over_tokens(centred), rollouts.mask))


@_estimator
def remax(rollouts: Rollouts) -> tuple[Tensor, Tensor]:
    """Reward-to-go minus the reward of the greedy rollout of the same prompt (arXiv 2310.10505, alg. 2)."""
    rows = len(rollouts.rewards)
    if rollouts.baselines is None or rollouts.baselines.shape != (rows,):
        raise ValueError(f"remax needs baselines, the reward of the greedy rollout of each row: shape ({rows},)")
    returns = _reward_to_go(rollouts, 1.0)
    return returns - rollouts.over_tokens(rollouts.baselines.double()), returns


@_estimator
def opo(rollouts: Rollouts) -> tuple[Tensor, Tensor]:
    """`R - sum(len * R) / sum(len)` within the group: the variance-optimal baseline (arXiv 2505.23585)."""
    groups, rewards, lengths = rollouts.groups(), rollouts.outcomes(), rollouts.lengths()
    baseline = groups.sum(lengths * rewards) / groups.sum(lengths).clamp(min=1)
    advantages = torch.where(groups.constant(rewards), torch.zeros_like(rewards), rewards - baseline)
    return _twice(rollouts.over_tokens(advantages))


@_estimator
def gpg(rollouts: Rollouts) -> tuple[Tensor, Tensor]:
    """`B / #nonzero * (R - mean_g)`, #nonzero being the rows of the batch with R != 0 (arXiv 2504.02546)."""
    rewards = rollouts.outcomes()
    factor = len(rewards) / rewards.count_nonzero().clamp(min=1)
    return _twice(rollouts.over_tokens(factor * rollouts.groups().centred(rewards)))


@_estimator
def grpo_passk(rollouts: Rollouts) -> tuple[Tensor, Tensor]:
    """Only the best row of a group: `(r_max - r_second) / (std_g + 1e-6)`, for Pass@k (arXiv 2503.19595).

    Equal best rows give 0, and so does a group of one. Without `norm_adv_by_std` there is no divisor.
    """
    groups, rewards = rollouts.groups(), rollouts.outcomes()
    # Sorted by (group, reward): the last row of each run of equal groups is its best, the one before it the second.
    by_reward = rewards.argsort(stable=True)
    order = by_reward[groups.index[by_reward].argsort(stable=True)]
    index, ordered = groups.index[order], rewards[order]
    is_best = torch.cat([index[1:] != index[:-1], index.new_ones(1, dtype=torch.bool)])[: len(index)]
    has_second = torch.cat([index.new_zeros(1, dtype=torch.bool), index[1:] == index[:-1]])[: len(index)]
    gap = torch.where(is_best & has_second, ordered - ordered.roll(1), torch.zeros_like(ordered))
    advantages = torch.zeros_like(rewards).index_copy(0, order, gap)
    if rollouts.norm_adv_by_std:
        advantages = advantages / (groups.std(rewards) + EPS)
    return _twice(rollouts.over_tokens(advantages))


ADVANTAGE_ESTIMATORS: dict[str, AdvantageEstimator] = {
    "gae": gae,
    "grpo": grpo,
    "rloo": rloo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "remax": remax,
    "opo": opo,
    "gpg": gpg,
    "grpo_passk": grpo_passk,
}


def _twice(advantages: Tensor) -> tuple[Tensor, Tensor]:
    return advantages, advantages.clone()


def _reward_to_go(rollouts: Rollouts, gamma: float) -> Tensor:
    """`sum_k gamma^k * r` over the sampled tokens from each one on, 0 at the others; `(B, T)`."""
    order, inverse = _sampled_first(rollouts.mask)
    return zero_outside(
        _discounted_suffix_sum(rollouts.rewards.gather(-1, order), gamma).gather(-1, inverse), rollouts.mask
    )


def _sampled_first(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Column orders `(B, T)` that move each row's sampled tokens to the front, in order, and back again."""
    # Mask [1, 0, 1] sorts as [0, 1, 0]; the stable sort keeps the sampled tokens in order: [0, 2, 1].
    order = mask.bool().logical_not().to(torch.uint8).argsort(dim=-1, stable=True)
    return order, order.argsort(dim=-1)


def _discounted_suffix_sum(values: Tensor, factor: float) -> Tensor:
    """`out_t = values_t + factor * out_{t+1}` along the last dimension, by doubling: log2(T) steps, no loop over T."""
    # For [a, b, c, d] and factor g: step 1 gives [a + gb, b + gc, c + gd, d]. Step 2 adds g^2 times what stands two
    # places later: [a + gb + g^2 (c + gd), ...], which completes the sum.
    step = 1
    while step < values.shape[-1] and factor != 0.0:
        values = values + factor * pad(values[..., step:], (0, step))
        step, factor = 2 * step, factor * factor
    return values
