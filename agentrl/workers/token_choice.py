"""The tokens that a covariance loss takes of a whole mini-batch, whatever its cut into micro-batches and over ranks.

A first pass without a gradient gives the log-probs of all tokens; sums over ranks give the means; then each rank offers
its best tokens, and all ranks take the same best of all. `wanted = 2`, scores by rank, a token's number in brackets::

    rank 0 offers   2.25 (row 0, token 0)    -0.75 (row 0, token 1)
    rank 1 offers   2.25 (row 1, token 3)    -0.75 (row 1, token 2)
    taken           2.25 (row 0, token 0)     2.25 (row 1, token 3)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from agentrl.algorithms import SCORES_OF_LOSS, MiniBatchMeans, TokenScores
from agentrl.data_proto import DataProto
from agentrl.workers.collectives import gather_objects, sum_over_ranks
from agentrl.workers.fsdp_model import FSDPModel
from agentrl.workers.micro_batches import MicroBatches
from agentrl.workers.token_stats import EntropyMode

ROW_BITS = 32
"""A token's number is `row << ROW_BITS | place`: the same on every rank, whatever the width of its batch."""


def taken_tokens(
    loss: str,
    model: FSDPModel,
    batch: DataProto,
    micros: MicroBatches,
    row_numbers: np.ndarray,
    seed: list[int],
    **options: float,
) -> torch.Tensor | None:
    """Choose the tokens of one mini-batch. A collective call for the losses that choose any.

    Args:
        loss: name of the policy loss.
        model: a sharded `PolicyNet`.
        batch: this rank's rows, with `old_log_probs` and `advantages`.
        micros: this rank's part of the mini-batch.
        row_numbers: (B,) of this rank's rows in the batch of all ranks.
        seed: of the random numbers of this mini-batch.
        **options: clip ratios and the options of the loss.

    Returns:
        (B, R) bool; None if the loss treats every token alike.
    """
    if loss not in SCORES_OF_LOSS:
        return None
    old, advantages = batch.batch["old_log_probs"], batch.batch["advantages"]
    log_probs, mask = torch.zeros_like(old), torch.zeros(old.shape, dtype=torch.bool, device=old.device)
    for micro, (values, _) in model.infer(micros, EntropyMode.NONE):
        log_probs[micro.rows, : micro.mask.shape[1]] = micro.spread(values)
        mask[micro.rows, : micro.mask.shape[1]] = micro.mask
    numbers = row_numbers[:, None].astype(np.uint64) << np.uint64(ROW_BITS) | np.arange(mask.shape[1], dtype=np.uint64)
    draws = torch.from_numpy(_random(numbers, seed)).to(old.device)
    scores = SCORES_OF_LOSS[loss](
        log_probs, old, advantages, mask, _means(log_probs, advantages, mask, model.copies), draws, **options
    )
    return _best_of_all_ranks(scores, numbers, model.copies)


def _means(log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, copies: int) -> MiniBatchMeans:
    sums: Any = [values[mask].double().sum().item() for values in (advantages, log_probs)]
    advantage, log_prob, count = sum_over_ranks([*sums, float(mask.sum())], copies)
    return MiniBatchMeans(advantage / max(count, 1.0), log_prob / max(count, 1.0), int(count))


def _best_of_all_ranks(scores: TokenScores, numbers: np.ndarray, copies: int) -> torch.Tensor:
    """Equal scores are taken in the order of rows and places."""
    values = scores.values.double().cpu().numpy()
    eligible = np.isfinite(values)
    own = _best(values[eligible], numbers[eligible], scores.wanted)
    ranks = gather_objects(own, copies)
    _, best = _best(
        np.concatenate([rank[0] for rank in ranks]), np.concatenate([rank[1] for rank in ranks]), scores.wanted
    )
    return torch.from_numpy(eligible & np.isin(numbers, best)).to(scores.values.device)


def _best(values: np.ndarray, numbers: np.ndarray, wanted: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((numbers, -values))[:wanted]
    return values[order], numbers[order]


def _random(numbers: np.ndarray, seed: list[int]) -> np.ndarray:
    """One number in [0, 1) per token, which depends on its number and the seed alone (SplitMix64)."""
    mixed = numbers + np.random.default_rng(seed).integers(2**63, dtype=np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
