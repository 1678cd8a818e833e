"""The records that the manager and its workers exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.chat.vision import PictureInputs
from agentrl.errors import TokenStreamError
from agentrl.timeline import Timeline, TraceContext
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
    """Number of the batch among all batches of this run."""
    seeded: bool = False
    """Every request has a seed of its own, also where the engine's numbers depend on batching."""
    trace: TraceContext | None = None
    """The span that its trajectories belong to; None: nobody traces them."""


@dataclass(frozen=True, slots=True)
class Job:
    """One trajectory to run."""

    row: int
    """Its row in the batch."""
    sample: Sample
    rollout: int
    """Its number within its group."""
    greedy: bool = False
    """It samples nothing: its reward is a baseline, and it is never trained on (`rollout.greedy`)."""


@dataclass(frozen=True, slots=True, repr=False)
class TokenArrays:
    """The tokens of one trajectory: compact arrays, all response ones of equal length (docs/token_rules.md).

    Attributes:
        prompt: ids of the prompt.
        response: ids after the prompt.
        mask: 1 for each response token that the policy sampled.
        loss_mask: 1 for those of them that are trained on; only `trained_tokens.Training` removes ones.
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
        """Pack a loop's output and check lengths, mask, log-probs and the last token.

        Raises:
            TokenStreamError: says in words which rule the loop broke.
        """
        count = len(output.response_ids)
        versions = output.weight_versions or [NO_VERSION] * count
        lengths = {len(output.response_mask), len(output.response_logprobs), len(versions)}
        if lengths != {count}:
            raise TokenStreamError(
                f"response_mask, response_logprobs and weight_versions have lengths {sorted(lengths)}, wanted {count}, "
                "the number of response_ids"
            )
        mask = np.asarray(output.response_mask, np.int8)
        loss_mask = mask if output.loss_mask is None else np.asarray(output.loss_mask, np.int8)
        if loss_mask.shape != mask.shape or (loss_mask & ~mask).any():
            raise TokenStreamError("loss_mask is 1 for a token that was not sampled, or has another length")
        packed = cls(
            np.asarray(output.prompt_ids, np.int32),
            np.asarray(output.response_ids, np.int32),
            mask,
            loss_mask,
            np.asarray(output.response_logprobs, np.float32),
            np.asarray(versions, np.int32),
        )
        sampled = packed.mask == 1
        if not (sampled | (packed.mask == 0)).all():
            raise TokenStreamError("the response mask holds values other than 0 and 1")
        if packed.log_probs[~sampled].any():
            raise TokenStreamError("a token with mask 0 has a log-prob other than 0.0")
        if not np.isfinite(packed.log_probs).all():
            raise TokenStreamError("a log-prob is not finite")
        if count and not sampled[-1]:
            raise TokenStreamError("tokens follow the last sampled token, which must end the response")
        return packed


@dataclass(slots=True)
class RolloutRow:
    """One trajectory that ended, successfully or not."""

    row: int
    tokens: TokenArrays
    stop_reason: StopReason
    num_turns: int = 0
    score: float = 0.0
    """Its whole reward."""
    placed: list[tuple[int, float]] = field(default_factory=list)
    """The part of it on response tokens other than the last sampled one (`reward_model.combine.level: turn`)."""
    error: str | None = None
    """Why it failed and is left out of training; None: it did not fail."""
    is_untrainable: bool = False
    """Nothing of it is trained on (`multi_turn.trainable_turns`, `mask_tool_call_args`). Not a failure."""
    is_final: bool = False
    """It failed in a way that a retry cannot change: a bug, or a row that cannot be used."""
    earlier_errors: list[str] = field(default_factory=list)
    """Why it was repeated (`rollout.refill`), one entry per earlier try."""
    reward_extra: dict[str, Any] = field(default_factory=dict)
    reward_metrics: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    pictures: PictureInputs | None = None
    """What the vision tower reads of the trajectory; None: it shows no picture."""
    facts: TrajectoryFacts = field(default_factory=TrajectoryFacts)
    """What the loop reported."""
    timeline: Timeline = field(default_factory=Timeline)
    """What it spent its time on."""
    earlier_timelines: list[Timeline] = field(default_factory=list)
    """Those of its earlier tries."""

    @property
    def num_tool_calls(self) -> int:
        """The number in the loop's metrics, else the one in its facts."""
        return int(self.metrics.get("num_tool_calls", self.facts.num_tool_calls))

    @property
    def is_left_out(self) -> bool:
        """True if the row must not reach the trainer: infrastructure failed, or no token is trained on."""
        return self.error is not None or self.is_untrainable


@dataclass(slots=True)
class LoopLag:
    """How late an event loop woke up, in seconds: shows whether something blocks it."""

    count: int = 0
    total: float = 0.0
    worst: float = 0.0

    def add(self, late: float) -> None:
        """Count one wake-up."""
        self.count += 1
        self.total += late
        self.worst = max(self.worst, late)

    def merge(self, other: LoopLag) -> None:
        """Add another loop's counts."""
        self.count += other.count
        self.total += other.total
        self.worst = max(self.worst, other.worst)


@dataclass(slots=True)
class ChunkResult:
    """A worker's result for one chunk of jobs."""

    rows: list[RolloutRow]
    lag: LoopLag = field(default_factory=LoopLag)
    worker: int = 0
    """Number of the worker that ran it."""
