"""Steps that change no weight: why, and when a series of them stops the run (`trainer.max_skipped_steps`)."""

from __future__ import annotations

import logging

from agentrl.data_proto import DataProto
from agentrl.errors import HealthError
from agentrl.trainer.metrics import Metrics

logger = logging.getLogger(__name__)
_ROUNDING = 1e-4
"""A share of 1 is the sum of shares of micro-batches."""


class SkippedSteps:
    """Counts the steps in a row that changed no weight.

    Args:
        most: the run stops after this number of them; None: never.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._count = 0
        self._reason = ""

    def note(self, step: int, reason: str | None) -> Metrics:
        """Count a step that changed no weight for a `reason`; None: the step changed weights.

        Returns:
            `training/skipped_steps`: how many in a row, this one included.
        """
        self._count = 0 if reason is None else self._count + 1
        if reason is not None:
            self._reason = reason
            logger.warning("step %d changes no weight: %s", step, reason)
        return {"training/skipped_steps": float(self._count)}

    def check(self) -> None:
        """Stop the run if too many steps in a row changed no weight.

        Raises:
            HealthError: says why the last one did not.
        """
        if self._most is not None and self._count >= self._most:
            raise HealthError(
                f"the last {self._count} steps changed no weight, as many as trainer.max_skipped_steps allows. In the "
                f"last one: {self._reason}"
            )


def nothing_to_train(rollouts: DataProto, batch: DataProto) -> str | None:
    """Why a step has no token to train on; None: it has some.

    Args:
        rollouts: every trajectory of the step that did not fail.
        batch: those that are kept, with the loss mask as it is by now.
    """
    if not len(rollouts):
        return (
            "`multi_turn.trainable_turns` or `mask_tool_call_args` excludes every token of every trajectory (the model "
            "gave no final answer, or only calls)"
        )
    if not len(batch) and rollouts.meta_info["metrics"].get("rollout/greedy/failed"):
        return "every group is left out: its greedy rollout failed, so it has no baseline, or all its rewards are equal"
    if not len(batch):
        return "in every group all rewards are equal (algorithm.filter_zero_variance_groups)"
    if not batch.batch["response_mask"].any():
        return "the model sampled no token: every first generation is empty"
    if not batch.batch["loss_mask"].any():
        return (
            "no token is left: trajectories were cut (algorithm.mask_truncated_completions), log-probs or values are "
            "not finite, or the rollout correction rejects them"
        )
    return None


def without_optimizer_step(metrics: Metrics, model: str) -> str | None:
    """Why an update took no optimizer step; None: it took one.

    Args:
        metrics: of the step.
        model: `actor` or `critic`.
    """
    if metrics[f"{model}/optimizer_steps"]:
        return None
    if not metrics[f"{model}/skipped_steps"]:
        return "log-probs are not finite in any row (training/non_finite_rows)"
    if metrics.get(f"{model}/rollout_rs_masked_fraction", 0.0) > 1 - _ROUNDING:
        return f"the rollout correction rejects every token ({model}/rollout_rs_masked_fraction)"
    return f"the gradient of the {model} is not finite in any optimizer step ({model}/skipped_steps)"
