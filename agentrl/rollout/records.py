"""What travels between the manager and its workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.errors import TokenStreamError
from agentrl.trajectory import NO_VERSION
from agentrl.types import AgentLoopOutput, Sample, StopReason, TrajectoryFacts

IntArray = npt.NDArray[np.int32]
MaskArray = npt.NDArray[np.int8]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What all trajectories of a step share."""

    global_step: int = 0
    validate: bool = False
    weight_version: int | None = None
    """The version that every sampled token must have; None: any."""
    batch: int = 0
    """Number of the batch among all that this run rolled out."""


@dataclass(frozen=True, slots=True)
class Job:
    """One trajectory to run."""

    row: int
    """Its row in the batch."""
    sample: Sample
    rollout: int
    """Its number within its group."""


@dataclass(frozen=True, slots=True, repr=False)
class TokenArrays:
    """The tokens of one trajectory: compact, and equal in length (R2).

    Attributes:
        prompt: ids of the prompt.
        response: ids of what follows it.
        mask: 1 for each response token that the policy sampled (R1).
        loss_mask: 1 for those of them that are trained on; only `trained_tokens.Training` takes ones away.
        log_probs: of the sampled tokens, 0.0 elsewhere.
        versions: the weight version that sampled each token, `NO_VERSION` elsewhere.
    """

    prompt: IntArray
    response: IntArray
    mask: MaskArray
    loss_mask: MaskArray
    log_probs: FloatArray
    versions: IntArray

    @classmethod
    def empty(cls) -> TokenArrays:
        """No tokens."""
        none, unmasked = np.zeros(0, np.int32), np.zeros(0, np.int8)
        return cls(none, none, unmasked, unmasked, np.zeros(0, np.float32), none)

    @classmethod
    def of(cls, output: AgentLoopOutput) -> TokenArrays:
        """Pack and check a loop's output; rules R1, R2 and R5 hold for whatever passes.

        Raises:
            TokenStreamError: names the rule that the loop broke.
        """
        count = len(output.response_ids)
        versions = output.weight_versions or [NO_VERSION] * count
        lengths = {len(output.response_mask), len(output.response_logprobs), len(versions)}
        if lengths != {count}:
            raise TokenStreamError(f"{count} response ids, but mask, log-probs and versions have {lengths} (R2)")
        mask = np.asarray(output.response_mask, np.int8)
        packed = cls(
            np.asarray(output.prompt_ids, np.int32),
            np.asarray(output.response_ids, np.int32),
            mask,
            mask,
            np.asarray(output.response_logprobs, np.float32),
            np.asarray(versions, np.int32),
        )
        sampled = packed.mask == 1
        if not (sampled | (packed.mask == 0)).all():
            raise TokenStreamError("the response mask holds other values than 0 and 1 (R1)")
        if packed.log_probs[~sampled].any():
            raise TokenStreamError("a token with mask 0 has a log-prob other than 0.0 (R1)")
        if not np.isfinite(packed.log_probs).all():
            raise TokenStreamError("a log-prob is not finite")
        if count and not sampled[-1]:
            raise TokenStreamError("the response ends after its last sampled token (R5)")
        return packed


@dataclass(slots=True)
class RolloutRow:
    """One trajectory that ended, well or not."""

    row: int
    tokens: TokenArrays
    stop_reason: StopReason
    num_turns: int = 0
    score: float = 0.0
    """Its whole reward."""
    placed: list[tuple[int, float]] = field(default_factory=list)
    """What of it sits on other response tokens than the last sampled one (`reward_model.combine.level: turn`)."""
    error: str | None = None
    """Why it is left out (R9)."""
    is_untrainable: bool = False
    """Nothing of it is trained on (`multi_turn.trainable_turns`, `mask_tool_call_args`); no failure."""
    is_final: bool = False
    """It failed in a way that another try cannot mend: a bug, or a row that cannot be used."""
    earlier_errors: list[str] = field(default_factory=list)
    """Why it was rolled out again (`rollout.refill`), one entry per try before this one."""
    reward_extra: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    facts: TrajectoryFacts = field(default_factory=TrajectoryFacts)
    """What the loop reported."""

    @property
    def num_tool_calls(self) -> int:
        """As the loop's metrics have it, else as it reported it."""
        return int(self.metrics.get("num_tool_calls", self.facts.num_tool_calls))

    @property
    def is_left_out(self) -> bool:
        """True when the row must not reach the trainer: infrastructure failed (R9), or no token is trained on."""
        return self.error is not None or self.is_untrainable


@dataclass(slots=True)
class LoopLag:
    """How late an event loop woke up, in seconds: shows what blocks it."""

    count: int = 0
    total: float = 0.0
    worst: float = 0.0

    def add(self, late: float) -> None:
        """Note one wake-up."""
        self.count += 1
        self.total += late
        self.worst = max(self.worst, late)

    def merge(self, other: LoopLag) -> None:
        """Take in another loop's."""
        self.count += other.count
        self.total += other.total
        self.worst = max(self.worst, other.worst)


@dataclass(slots=True)
class ChunkResult:
    """What a worker gives back for one chunk of jobs."""

    rows: list[RolloutRow]
    lag: LoopLag = field(default_factory=LoopLag)
