"""An update of one optimizer step needs no old log-probs of its own: they are those of its forward pass.

The policy has not moved yet when the pass runs, so `log_prob - old_log_prob` is 0 by definition, and its gradient is
that of `log_prob`. The pass that would have computed old log-probs is saved; what it would have shown (log-probs that
are not finite, the mismatch with the rollout) is read from the update's own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from agentrl.algorithms import finite_rows
from agentrl.data_proto import DataProto
from agentrl.workers.collectives import sum_over_ranks
from agentrl.workers.mini_batches import ROW_ID

ON_POLICY = "on_policy"
"""`meta_info` key: the batch has no old log-probs, and the update gives them back as `old_log_probs`."""

Update = Callable[[DataProto, torch.Tensor], dict[str, float]]
"""A batch, and zeros (B, R) that receive its log-probs -> metrics."""


def update_on_policy(batch: DataProto, update: Update) -> tuple[dict[str, float], torch.Tensor]:
    """Update; if a row's log-probs are not finite, once more without it. A collective call.

    Args:
        batch: this rank's rows.
        update: skips its step if the gradient is not finite, and changes nothing then.

    Returns:
        The metrics, and the log-probs (B, R) of the trained tokens: 0 elsewhere, NaN in rows that were left out.
    """
    trained = batch.batch["loss_mask"]
    own = torch.zeros(trained.shape)
    metrics = update(batch, own)
    if not metrics["skipped_steps"]:
        return metrics, own
    finite = finite_rows(trained, own)[:, 0]
    if not sum_over_ranks([float((~finite).sum())])[0]:
        return metrics, own
    again = torch.zeros(int(finite.sum()), trained.shape[1])
    rest = batch[finite]
    rest.batch.pop(ROW_ID, None)  # numbers in the whole batch: of rows 0 1 2, the last of 0 and 2 would be in no step
    metrics = update(rest, again)
    own.fill_(torch.nan)[finite] = again
    return metrics, own
