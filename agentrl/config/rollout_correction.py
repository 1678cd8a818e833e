"""`algorithm.rollout_correction`: the source of old log-probs, and what corrects them. Keys are named as verl's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from agentrl.config.base import Section

HAS_TWO_BOUNDS = ("token", "sequence", "geometric", "token_k1", "seq_sum_k1", "seq_mean_k1")
"""Kinds of rejection that compare a ratio, which may be too small as well as too large."""


class Rule(NamedTuple):
    """One kind of rejection with its bounds, as `agentrl.algorithms.rejection.Rejection` has them."""

    kind: str
    low: float
    high: float


def _listed(value: Any) -> Any:
    """`[token_k1, seq_max_k2]` and `[0.5_2, 3]` as the text `token_k1,seq_max_k2` and `0.5_2,3`; numbers as text."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Listed = Annotated[str, BeforeValidator(_listed)]


class RolloutCorrectionConfig(Section):
    """The source of old log-probs, and corrections for the mismatch between rollout and trainer."""

    bypass_old_log_prob: bool = False
    """Use the rollout's log-probs as old log-probs instead of recomputing them."""
    loss_type: Literal["ppo_clip", "reinforce"] = "ppo_clip"
    """With `bypass_old_log_prob`: ppo_clip: `actor.policy_loss`, whose ratio is policy / rollout; reinforce:
    `-A log pi` with importance weights (`is_level`) of the policy that is being trained."""
    is_level: Literal["token", "sequence", "geometric"] | None = None
    """Level of truncated importance sampling: a token's ratio, a row's, or the geometric mean of a row's; null: off."""
    is_threshold: float | str = 2.0
    """Largest importance weight; or "LOW_HIGH", such as 0.5_5, outside which a token's weight is 0."""
    is_batch_normalize: bool = False
    """Divide importance weights by their mean over the batch (by rows, at token level by tokens); where the rollout's
    log-probs are the old ones, over the mini-batch, which takes one more forward pass."""
    rs: tuple[float, float] | None = None
    """Lower and upper bound of a row's mean ratio for rejection: short for `rollout_rs: geometric`; null: off."""
    rollout_rs: Listed | None = None
    """Kinds of rejection, with commas in between; what is trained on passes all of them. By the ratio: token, sequence,
    geometric. By divergence: token_k1, token_k2, token_k3, seq_sum_k1, seq_sum_k2, seq_sum_k3, seq_mean_k1,
    seq_mean_k2, seq_mean_k3, seq_max_k2, seq_max_k3; null: off."""
    rollout_rs_threshold: Listed | None = None
    """Bounds of each kind, or one for all: "LOW_HIGH" or the upper one for token, sequence, geometric and k1 kinds, the
    largest divergence for the others; such as "0.5_2,0.1"."""
    rollout_rs_threshold_lower: float | None = Field(default=None, gt=0)
    """Lower bound of kinds by ratio or k1 whose threshold has none; null: 1 / the upper one."""
    rollout_token_veto_threshold: float | None = Field(default=None, gt=0)
    """A row with a token whose ratio is below it is not trained on; null: off. In use: 1e-4."""

    @property
    def corrects(self) -> bool:
        """Whether there are weights to compute or rows to reject."""
        return self.is_level is not None or self.rejects

    @property
    def rejects(self) -> bool:
        """Whether there is a rule that may reject something."""
        return any(rule is not None for rule in (self.rs, self.rollout_rs, self.rollout_token_veto_threshold))

    @property
    def kinds(self) -> list[str]:
        """The names in `rollout_rs`, each once."""
        return list(dict.fromkeys(filter(None, (kind.strip() for kind in (self.rollout_rs or "").split(",")))))

    def rules(self) -> list[Rule]:
        """The kinds of rejection with their bounds.

        Raises:
            ValueError: `rollout_rs_threshold` has no number where one is wanted, or not one for each kind.
        """
        kinds, given = self.kinds, [text.strip() for text in (self.rollout_rs_threshold or "").split(",")]
        if len(given) not in (1, len(kinds)):
            raise ValueError(
                f"got {len(given)} thresholds for {len(kinds)} kinds of rejection, wanted one, or one each"
            )
        texts = given if len(given) == len(kinds) else given * len(kinds)
        return [self._rule(kind, text) for kind, text in zip(kinds, texts, strict=True)]

    def weight_bounds(self) -> float | tuple[float, float]:
        """`is_threshold` as `rollout_correction` takes it.

        Raises:
            ValueError: it is neither a positive number nor two.
        """
        if not isinstance(self.is_threshold, str):
            low, high = None, float(self.is_threshold)
        else:
            low, high = _bounds(self.is_threshold)
        if high <= 0 or (low is not None and not 0 <= low < high):
            raise ValueError(f"got {self.is_threshold}, wanted a number above 0, or LOW_HIGH with 0 <= LOW < HIGH")
        return high if low is None else (low, high)

    def options(self) -> dict[str, Any]:
        """The keywords of `agentrl.algorithms.rollout_correction`, except the rules."""
        return {
            "is_level": self.is_level,
            "is_threshold": self.weight_bounds(),
            "is_batch_normalize": self.is_batch_normalize,
            "rs": self.rs,
            "veto_threshold": self.rollout_token_veto_threshold,
        }

    def problems(self) -> Iterator[tuple[str, str]]:
        """Keys whose values mean nothing, with the reason; kinds are looked up elsewhere."""
        if self.rs is not None and not 0 <= self.rs[0] < self.rs[1]:
            yield "rs", f"got {list(self.rs)}, wanted 0 <= lower < upper"
        if self.rs is not None and self.rollout_rs is not None:
            yield "rs", f"got {list(self.rs)}, but rollout_rs is {self.rollout_rs}: give one of them"
        if self.kinds and self.rollout_rs_threshold is None:
            yield "rollout_rs_threshold", f"not given, wanted a threshold for rollout_rs ({self.rollout_rs})"
        elif self.kinds:
            try:
                self.rules()
            except ValueError as error:
                yield "rollout_rs_threshold", str(error)
        try:
            self.weight_bounds()
        except ValueError as error:
            yield "is_threshold", str(error)

    def _rule(self, kind: str, text: str) -> Rule:
        low, high = _bounds(text)
        if kind not in HAS_TWO_BOUNDS:
            if low is not None or high <= 0:
                raise ValueError(f"got '{text}' for {kind}, wanted one number above 0: a divergence has no lower bound")
            return Rule(kind, 0.0, high)
        if low is None:
            low = self.rollout_rs_threshold_lower or (1 / high if high > 0 else 0.0)
        if not 0 < low <= high:
            raise ValueError(f"got '{text}' for {kind}, which is {low:g} to {high:g}, wanted 0 < lower <= upper")
        return Rule(kind, low, high)


def _bounds(text: str) -> tuple[float | None, float]:
    """`0.5_2` is (0.5, 2), `2` is (None, 2)."""
    low, separator, high = text.rpartition("_")
    try:
        return (_number(low) if separator else None), _number(high)
    except ValueError:
        raise ValueError(f"got '{text}', wanted a number, or LOW_HIGH such as 0.5_2") from None


def _number(text: str) -> float:
    number = float(text)
    if "_" in text or math.isnan(number):
        raise ValueError(text)
    return number
