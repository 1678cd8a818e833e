"""Tensor work between rollout and update. Each function adds columns to the batch and returns its metrics.

Two masks, never mixed. `response_mask` says what was sampled: rewards, KL, groups, advantages and values read it, and
nothing writes it. `loss_mask` says what the losses read; `narrow_loss_mask` is the only function that writes it. Rows
that leave the loss still count in their group::

                      response_mask   loss_mask
    as collated         1 1 0 1 1     0 0 0 1 1    `trainable_turns: last_assistant`
    a token rejected    1 1 0 1 1     0 0 0 0 1    rollout correction, `rs_level` token
    a NaN in the row    1 1 0 1 1     0 0 0 0 0    old, reference or critic
    cut by the limit    1 1 0 1 1     0 0 0 0 0    `algorithm.mask_truncated_completions`
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch

from agentrl.algorithms import (
    ADVANTAGE_ESTIMATORS,
    AdaptiveKLController,
    FixedKLController,
    Rejection,
    aggregate_loss,
    finite_rows,
    group_metrics,
    kl_in_reward,
    mismatch_metrics,
    rollout_correction,
    zero_variance_rows,
)
from agentrl.chat.vision import MULTI_MODAL
from agentrl.config import RunConfig
from agentrl.config.chosen import GROUP_ESTIMATORS
from agentrl.config.rollout import RolloutConfig
from agentrl.config.root import AlgorithmConfig, KLControlConfig
from agentrl.data_proto import DataProto
from agentrl.errors import RewardError, suggest
from agentrl.plugins.own_algorithms import find_estimator
from agentrl.reported import finite_number_of
from agentrl.rollout.greedy import BASELINE
from agentrl.trainer.balance import balance_metrics, partition_by_tokens
from agentrl.trainer.metrics import Metrics
from agentrl.types import StopReason
from agentrl.workers.on_policy import ON_POLICY

ACCURACY = "acc"
"""A score without anything added to it; the score itself where nothing reports it."""
SAME_REWARD = 1e-6
"""Two rewards closer than this are equal: one may be a sum of float32 values, the other of float64 values."""
KLController = FixedKLController | AdaptiveKLController


def make_kl_controller(config: KLControlConfig) -> KLController:
    """The controller of `algorithm.kl_ctrl`."""
    if config.type == "fixed":
        return FixedKLController(config.kl_coef)
    return AdaptiveKLController(config.kl_coef, config.target_kl, config.horizon)


def truncates_sampling(rollout: RolloutConfig) -> list[str]:
    """Settings under which the engine's log-probs are not those of the distribution it sampled from."""
    neutral = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    return [f"{name}={getattr(rollout, name)}" for name, value in neutral.items() if getattr(rollout, name) != value]


def choose_rows(
    batch: DataProto, drop_flat_groups: bool, most_groups: int | None = None, metric: str | None = None
) -> tuple[DataProto, Metrics]:
    """Count groups whose scores are all equal and, if asked, leave their rows out of the update.

    Groups whose greedy rollout failed leave it too: they have no baseline. Where there are baselines, a group with
    equal scores has a gradient unless its baseline is the same.

    Args:
        batch: the rollouts.
        drop_flat_groups: leave them out.
        most_groups: keep at most this many groups, the first ones; None: all.
        metric: the reported number that groups are compared by; None: the score.

    Raises:
        RewardError: a row has no such number.
    """
    outcomes_B1 = _compared(batch, metric)[:, None]
    outcome = outcomes_B1, torch.ones_like(outcomes_B1), list(batch.non_tensor_batch["uid"])
    metrics = group_metrics(*outcome)
    flat, chosen = zero_variance_rows(*outcome), torch.ones(len(batch), dtype=torch.bool)
    if (baselines := greedy_baselines(batch)) is not None:
        gains = row_outcomes(batch.batch["rm_scores"], batch.batch["response_mask"]) - baselines
        flat, chosen = flat & (gains.abs() < SAME_REWARD), baselines.isfinite()
        lost = {uid for uid, has in zip(batch.non_tensor_batch["uid"], chosen.tolist(), strict=True) if not has}
        metrics["rollout/greedy/groups_left_out"] = float(len(lost))
    kept = batch[chosen & ~flat] if drop_flat_groups else batch if bool(chosen.all()) else batch[chosen]
    names = list(dict.fromkeys(kept.non_tensor_batch["uid"]))
    if most_groups is not None and len(names) > most_groups:
        first = set(names[:most_groups])
        kept = kept[torch.tensor([name in first for name in kept.non_tensor_batch["uid"]])]
    return kept, metrics


def greedy_baselines(batch: DataProto) -> torch.Tensor | None:
    """The reward of the greedy rollout of each row's prompt, `(B,)` float64, NaN where it failed.

    Rounded as the rewards of the samples are: else 0.1 of both would leave an advantage of 1.5e-9, and Adam a step.
    None: the run has no greedy rollouts.
    """
    column = batch.non_tensor_batch.get(BASELINE)
    return None if column is None else torch.from_numpy(column.astype(np.float32).astype(np.float64))


def row_outcomes(rewards: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """R of each row, `(B,)` float64: its rewards at sampled tokens; all of them if it has no sampled token.

    An empty trajectory has its score on the first place of its padding (`rollout.batching`): it is not trained on, but
    counts in its group.
    """
    sampled = response_mask.bool()
    counted = sampled | ~sampled.any(-1, keepdim=True)
    return torch.where(counted, rewards, torch.zeros_like(rewards)).double().sum(-1)


def _compared(batch: DataProto, metric: str | None) -> torch.Tensor:
    """The numbers that tell whether a group is flat, `(B,)` float64."""
    if metric is None:
        return row_outcomes(batch.batch["rm_scores"], batch.batch["response_mask"])
    scores = batch.non_tensor_batch["score"]
    reported = [
        {ACCURACY: score, **extra}
        for score, extra in zip(scores, batch.non_tensor_batch["reward_extra_info"], strict=True)
    ]
    numbers = [finite_number_of(values.get(metric)) for values in reported]
    for values, number in zip(reported, numbers, strict=True):
        if number is None:
            got = f"it is {values[metric]!r:.80}, no finite number" if metric in values else suggest(metric, values)
            raise RewardError(f"algorithm.filter_metric: a row's score reports no number '{metric}'. {got.strip()}")
    return torch.tensor(numbers, dtype=torch.float64)


def groups_with_variance(batch: DataProto, metric: str | None = None) -> int:
    """The number of groups with a gradient."""
    return len(set(choose_rows(batch, drop_flat_groups=True, metric=metric)[0].non_tensor_batch["uid"]))


def narrow_loss_mask(batch: DataProto, kept: torch.Tensor) -> None:
    """Leave tokens out of the loss. Nothing else writes `loss_mask` once it is collated.

    Args:
        batch: with a `loss_mask` of shape `(B, R)`.
        kept: `(B, R)` tokens or `(B, 1)` rows that stay as they are.
    """
    mask = batch.batch["loss_mask"]
    batch.batch["loss_mask"] = torch.where(kept.bool(), mask, torch.zeros_like(mask))


def mask_truncated(batch: DataProto, stop_reasons: Sequence[str], wanted: bool) -> Metrics:
    """Leave rows that the length limit cut out of the loss, if asked.

    Args:
        batch: the rows.
        stop_reasons: how each of them ended.
        wanted: `algorithm.mask_truncated_completions`.
    """
    if not wanted:
        return {}
    whole = torch.tensor([[reason != StopReason.LENGTH] for reason in stop_reasons])
    narrow_loss_mask(batch, whole)
    return {"training/truncated_rows": float((~whole).sum())}


def add_old_log_probs(batch: DataProto, computed: DataProto | None, config: RunConfig) -> Metrics:
    """Set `old_log_probs`: the computed ones, or the rollout's. Where both are known, measure and correct the mismatch.

    Args:
        batch: the rollouts.
        computed: `old_log_probs` and `entropys` of `compute_log_prob`; None: use the rollout's.
        config: the run.
    """
    rollout = batch.batch["rollout_log_probs"]
    if computed is None:
        batch.batch["old_log_probs"] = rollout
        return {}
    finite = finite_rows(batch.batch["response_mask"], computed.batch["old_log_probs"], rollout)
    # What is not finite gives way to the rollout's, which always are: the row is out of the loss, not of its group.
    old = batch.batch["old_log_probs"] = torch.where(finite, computed.batch["old_log_probs"], rollout)
    narrow_loss_mask(batch, finite)
    trained = batch.batch["loss_mask"]
    entropy = aggregate_loss(computed.batch["entropys"], trained, config.actor_rollout_ref.actor.loss_agg_mode)
    metrics = {"actor/entropy": float(entropy), "training/non_finite_rows": float((~finite).sum())}
    metrics |= mismatch_metrics(old, rollout, trained)
    correction = config.algorithm.rollout_correction
    if correction.corrects:
        rules = [Rejection(*rule) for rule in correction.rules()] if correction.kinds else []
        weights, kept, more = rollout_correction(old, rollout, trained, **correction.options(), rejections=rules)
        batch.batch["rollout_is_weights"] = weights
        narrow_loss_mask(batch, kept)
        metrics |= more
    return metrics


def skip_old_log_probs(batch: DataProto) -> Metrics:
    """Let the update use its own log-probs as old ones: it takes one step, and nothing else needs them."""
    batch.meta_info[ON_POLICY] = True
    return {"training/old_log_prob_skipped": 1.0}


def after_update(batch: DataProto, updated: DataProto) -> Metrics:
    """What old log-probs show, where only the update itself could compute them.

    Args:
        batch: the rows of the update.
        updated: its result, perhaps with `old_log_probs`: NaN in rows that had to be left out.
    """
    if "old_log_probs" not in updated.batch:
        return {}
    old = updated.batch["old_log_probs"]
    finite = finite_rows(batch.batch["loss_mask"], old)
    mismatch = mismatch_metrics(old, batch.batch["rollout_log_probs"], batch.batch["loss_mask"] * finite)
    return {"training/non_finite_rows": float((~finite).sum()), **mismatch}


def add_finite(batch: DataProto, more: DataProto, name: str, instead: str | None = None) -> Metrics:
    """Add a column; a row in which it is not finite leaves the loss, so that it does not affect other rows.

    Args:
        batch: the rollouts, with their old log-probs.
        more: holds the column.
        name: of the column.
        instead: the column whose values such a row gets; None: zeros.
    """
    values = more.batch[name]
    finite = finite_rows(batch.batch["response_mask"], values)
    neutral = torch.zeros_like(values) if instead is None else batch.batch[instead]
    batch.batch[name] = torch.where(finite, values, neutral)
    narrow_loss_mask(batch, finite)
    dropped = float((~finite).sum())
    return {f"training/non_finite_rows/{name}": dropped} if dropped else {}


def add_rewards(batch: DataProto, config: AlgorithmConfig, controller: KLController) -> Metrics:
    """Set `token_level_scores`, and `token_level_rewards`: the scores minus the KL to the reference, if configured."""
    scores = batch.batch["rm_scores"]
    batch.batch["token_level_scores"] = scores
    batch.batch["token_level_rewards"] = scores
    if not config.use_kl_in_reward:
        return {}
    rewards, current = kl_in_reward(
        scores,
        batch.batch["old_log_probs"],
        batch.batch["ref_log_prob"],
        batch.batch["response_mask"],
        kl_coef=controller.value,
        kind=config.kl_penalty,
    )
    sampled = batch.batch["response_mask"].bool().any(-1, keepdim=True)  # else see `row_outcomes`
    batch.batch["token_level_rewards"] = torch.where(sampled, rewards, scores)
    metrics = {"actor/reward_kl_penalty": current, "actor/reward_kl_penalty_coeff": controller.value}
    controller.update(current, len(batch))
    return metrics


def add_advantages(
    batch: DataProto, group_ids: Sequence[Hashable], config: AlgorithmConfig, baselines: torch.Tensor | None = None
) -> None:
    """Set `advantages` and `returns` of the sampled tokens by the estimator of `algorithm.adv_estimator`.

    Args:
        batch: the rows' tensors.
        group_ids: of the rows.
        config: the estimator and its options.
        baselines: `greedy_baselines` of the rows.
    """
    rewards, mask = batch.batch["token_level_rewards"], batch.batch["response_mask"]
    # An algorithm of the user's own need not take `outcomes`, which say more than rewards and mask for empty rows only.
    compares = config.adv_estimator in GROUP_ESTIMATORS or config.adv_estimator not in ADVANTAGE_ESTIMATORS
    estimate = find_estimator(config.adv_estimator, config.adv_estimator_kwargs)
    advantages, returns = estimate(
        rewards,
        mask,
        values=batch.batch.get("values"),
        group_ids=group_ids,
        baselines=baselines,
        gamma=config.gamma,
        lam=config.lam,
        norm_adv_by_std=config.norm_adv_by_std_in_grpo,
        **({"outcomes": row_outcomes(rewards, mask)} if compares else {}),
    )
    batch.batch |= {"advantages": advantages, "returns": returns}


def row_lengths(batch: DataProto) -> list[int]:
    """Tokens of each row, prompt and response."""
    lengths: list[int] = batch.batch["attention_mask"].sum(-1).tolist()
    return lengths


def for_workers(
    batch: DataProto, num_ranks: Sequence[int], rows_per_mini_batch: int, balance: bool
) -> tuple[DataProto, Metrics]:
    """The tensors of a batch, its pictures, and the rank of each row; conversations and other objects stay here.

    Rows are numbered (`row_id`), so mini-batches are the same for every number of ranks. Balanced, every rank gets
    about the same number of tokens of each mini-batch.

    Args:
        batch: the rows.
        num_ranks: of each group that gets the batch, ranks that get rows of their own, the actor's first: metrics are
            about its ranks.
        rows_per_mini_batch: rows of an optimizer step.
        balance: whether ranks get about the same number of tokens.
    """
    rows, lengths = len(batch), row_lengths(batch)
    pictures = {name: cells for name, cells in batch.non_tensor_batch.items() if name == MULTI_MODAL}
    tensors = DataProto({**batch.batch, "row_id": torch.arange(rows)}, pictures)
    if not balance:
        return tensors, {}
    members = _members_of_mini_batches(rows, rows_per_mini_batch)
    parts = {ranks: _deal(members, lengths, ranks) for ranks in dict.fromkeys(num_ranks)}
    tensors.meta_info["rank_partitions"] = parts
    return tensors, balance_metrics(lengths, parts[num_ranks[0]])


def _members_of_mini_batches(rows: int, rows_per_mini_batch: int) -> list[list[int]]:
    count = -(-rows // rows_per_mini_batch)
    return [[row for row in range(rows) if row * count // rows == number] for number in range(count)]


def _deal(mini_batches: list[list[int]], lengths: Sequence[int], num_ranks: int) -> list[list[int]]:
    """The rows of each rank: of each mini-batch, about the same number of tokens."""
    parts: list[list[int]] = [[] for _ in range(num_ranks)]
    for members in mini_batches:
        for rank, part in enumerate(partition_by_tokens([lengths[row] for row in members], num_ranks)):
            parts[rank] += [members[place] for place in part]
    return parts
