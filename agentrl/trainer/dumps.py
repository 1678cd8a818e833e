"""The dump of a training step: written once the step has trained, so that it holds what training knew of each token."""

from __future__ import annotations

from pathlib import Path

import torch

from agentrl.chat.renderer import ChatRenderer
from agentrl.data_proto import DataProto
from agentrl.observability.rollout_log import TrainedTokens, write_rollouts


class RolloutDumps:
    """Collects what a step's dump says, and writes it.

    Args:
        folder: of the dumps; None: none are written.
        renderer: decodes tokens.
    """

    def __init__(self, folder: str | None, renderer: ChatRenderer) -> None:
        self._folder = None if folder is None else Path(folder)
        self._renderer = renderer
        self._rollouts: DataProto | None = None
        self._kept: DataProto | None = None
        self._batch: DataProto | None = None
        self._log_probs: torch.Tensor | None = None

    def begin(self, rollouts: DataProto) -> None:
        """The trajectories of a step, before any is left out."""
        if self._folder is not None:
            self._rollouts = rollouts

    def trains_on(self, kept: DataProto, batch: DataProto) -> None:
        """The rows of the update: as they were rolled out, and with the columns that training added."""
        if self._rollouts is None:
            return
        self._kept, self._batch = kept, batch
        old, rollout = batch.batch.get("old_log_probs"), batch.batch["rollout_log_probs"]
        self._log_probs = None if old is None or old is rollout else _known(old, batch.batch["response_mask"])

    def updated(self, result: DataProto) -> None:
        """What an update gave back: where it needed no old log-probs, those that it computed for the trained tokens."""
        own = result.batch.get("old_log_probs")
        if own is not None and self._batch is not None:
            self._log_probs = _known(own, self._batch.batch["loss_mask"])

    def write(self, step: int) -> None:
        """Write what is known by now, however far the step came; a second call writes nothing."""
        rollouts, self._rollouts = self._rollouts, None
        trained = self._trained()
        self._kept = self._batch = self._log_probs = None
        if self._folder is not None and rollouts is not None:
            decode, exact = self._renderer.decode, self._renderer.encoder.decode
            write_rollouts(self._folder, step, [rollouts], decode, exact=exact, trained=trained)

    def _trained(self) -> TrainedTokens | None:
        if self._kept is None or self._batch is None or "advantages" not in self._batch.batch:
            return None
        return TrainedTokens.of(self._kept, self._batch.batch["advantages"], self._log_probs)


def _known(log_probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """NaN, in a dump null, at tokens of which nothing is known."""
    return log_probs.masked_fill(mask == 0, torch.nan)
