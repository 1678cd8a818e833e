"""Validation: roll out held-out rows and turn their scores into `val-core/*` and `val-aux/*`."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.data_proto import DataProto
from agentrl.observability.rollout_log import Decode, rows, write_rollouts
from agentrl.observability.said_once import say_once
from agentrl.observability.tracker import ValidationConversation
from agentrl.reported import finite_number_of, number_of
from agentrl.rollout.report import mean_max_min
from agentrl.trainer.metrics import Metrics
from agentrl.types import Sample

logger = logging.getLogger(__name__)

Generate = Callable[[DataProto], DataProto]
CORE_VARIABLES = ("acc", "reward")
"""The first of these that a data source reports is its core variable; the others are auxiliary."""
PREDICTION = "pred"
"""Key of the reward's extra information that majority voting groups by."""


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The result of one validation."""

    metrics: Metrics
    conversations: list[ValidationConversation]


class Validator:
    """Rolls out the validation rows.

    Args:
        samples: the rows.
        n: rollouts per row.
        batch_size: rows per batch; None: all.
        decode: ids to text.
        exact: ids to text without any loss, as `write_rollouts` takes it.
        dump_folder: folder for each validation's rollouts; None: they are not written.
        show: number of conversations to return for the trackers.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        *,
        n: int,
        batch_size: int | None,
        decode: Decode,
        exact: Decode | None = None,
        dump_folder: Path | None = None,
        show: int = 0,
    ) -> None:
        self._samples = list(samples)
        self._n = n
        self._batch_size = batch_size or max(len(self._samples), 1)
        self._decode, self._exact = decode, exact
        self._dump_folder = dump_folder
        self._show = show

    def run(self, generate: Generate, step: int, weight_version: int) -> ValidationResult:
        """Validate with the weights that the engines serve now."""
        parts = [generate(batch) for batch in self._batches(step, weight_version)]
        if self._dump_folder is not None:
            write_rollouts(self._dump_folder, step, parts, self._decode, exact=self._exact)
        fields = {
            name: np.concatenate([part.non_tensor_batch[name] for part in parts])
            for name in ("uid", "data_source", "score", "num_turns", "num_tool_calls", "reward_extra_info")
        }
        lost = len(self._samples) * self._n - len(fields["uid"])
        calling = float(np.mean(fields["num_tool_calls"].astype(np.int64) > 0)) if len(fields["uid"]) else 0.0
        metrics = {
            **score_metrics(fields, self._n),
            "val-aux/tool_call_rate": calling,
            "val-aux/left_out": float(lost),
        }
        return ValidationResult(metrics, conversations(parts[0], step, self._decode, self._show))

    def _batches(self, step: int, weight_version: int) -> Iterator[DataProto]:
        for start in range(0, len(self._samples), self._batch_size):
            samples = self._samples[start : start + self._batch_size]
            yield sample_batch(
                samples, self._n, step=step, weight_version=weight_version, validate=True, first_group=start
            )


def conversations(done: DataProto, step: int, decode: Decode, most: int) -> list[ValidationConversation]:
    """The first conversations of a batch, as text."""
    shown = done[: min(most, len(done))]
    return [
        ValidationConversation(record["data_source"], record["input"], record["output"], record["score"])
        for record in rows(shown, step, decode)
    ]


def sample_batch(
    samples: Sequence[Sample],
    n: int,
    *,
    step: int,
    weight_version: int | None,
    validate: bool = False,
    first_group: int = 0,
) -> DataProto:
    """A batch for `AgentLoopManager.generate_sequences`: each sample `n` times, a group sharing one `uid`.

    Args:
        samples: the rows.
        n: rollouts per row.
        step: the training step; part of the uid and of deterministic seeds.
        weight_version: the version that the engines serve; None: any.
        validate: sample as `rollout.val_kwargs` says.
        first_group: number of the first group within the step.
    """
    repeated = [sample for sample in samples for _ in range(n)]
    column = np.empty(len(repeated), dtype=object)
    column[:] = repeated
    uids = np.array([f"{step}-{first_group + i}" for i in range(len(samples)) for _ in range(n)], dtype=object)
    return DataProto(
        batch={},
        non_tensor_batch={"sample": column, "uid": uids},
        meta_info={"validate": validate, "global_step": step, "weight_version": weight_version},
    )


def score_metrics(fields: dict[str, np.ndarray], n: int) -> Metrics:
    """Aggregate scores by data source and variable.

    Args:
        fields: non-tensor columns of the rollouts: `uid`, `data_source`, `score`, `num_turns`, `reward_extra_info`.
        n: rollouts per prompt, the N of the names.
    """
    groups: dict[str, dict[Any, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, (source, uid) in enumerate(zip(fields["data_source"], fields["uid"], strict=True)):
        groups[source][uid].append(row)
    metrics: Metrics = {}
    for source, prompts in groups.items():
        metrics |= _source_metrics(source, list(prompts.values()), fields, n)
    turns = fields["num_turns"].astype(np.float64)
    return metrics | mean_max_min("val-aux/num_turns", turns)


def _source_metrics(source: str, prompts: list[list[int]], fields: dict[str, np.ndarray], n: int) -> Metrics:
    extras = fields["reward_extra_info"]
    variables = _variables([row for prompt in prompts for row in prompt], fields)
    core = next(name for name in CORE_VARIABLES if name in variables)
    metrics: Metrics = {}
    for name, values in variables.items():
        section = "val-core" if name == core else "val-aux"
        groups = [[row for row in prompt if row in values] for prompt in prompts]
        groups = [group for group in groups if group]
        votes = [[extras[row].get(PREDICTION) for row in group] for group in groups]
        scores = [[values[row] for row in group] for group in groups]
        metrics |= {f"{section}/{source}/{name}/{stat}": value for stat, value in _statistics(scores, votes, n).items()}
        if len(values) < sum(map(len, prompts)):
            metrics[f"{section}/{source}/{name}/rows"] = float(len(values))
    return metrics


def _variables(members: list[int], fields: dict[str, np.ndarray]) -> dict[str, dict[int, float]]:
    """`reward` and every number that the score function reported, by row; some rows may lack one."""
    variables = {"reward": {row: float(fields["score"][row]) for row in members}}
    extras = fields["reward_extra_info"]
    for name in dict.fromkeys(name for row in members for name in extras[row]):
        given = {row: extras[row][name] for row in members if extras[row].get(name) is not None}
        numbers = {row: number for row, value in given.items() if (number := finite_number_of(value)) is not None}
        if numbers:
            variables[name] = numbers
        others = [value for row, value in given.items() if row not in numbers]
        if others and name != PREDICTION:
            _tell_no_metric(name, others[0])
    return variables


def _tell_no_metric(name: str, value: Any) -> None:
    """Text beside a score is normal; a number that no mean can hold is not."""
    level = logging.INFO if number_of(value) is None else logging.WARNING
    kept = "it is in no metric, only in the rollout log"
    say_once(logger, level, f"the score function reports `{name}` that is not a finite number: {kept}")


def _statistics(scores: list[list[float]], votes: list[list[Any]], n: int) -> Metrics:
    """Means over prompts of the mean, deviation, best and majority-vote score of each prompt's rollouts."""
    statistics = {f"mean@{n}": float(np.mean([np.mean(group) for group in scores]))}
    if n == 1:
        return statistics
    statistics[f"std@{n}"] = float(np.mean([np.std(group) for group in scores]))
    statistics[f"best@{n}"] = float(np.mean([max(group) for group in scores]))
    if all(vote is not None for group in votes for vote in group):
        statistics[f"maj@{n}"] = float(np.mean([_majority(*pair) for pair in zip(scores, votes, strict=True)]))
    return statistics


def _majority(scores: list[float], votes: list[Any]) -> float:
    """Score of the most frequent prediction; of several equally frequent ones, the first."""
    winner, _count = Counter(map(str, votes)).most_common(1)[0]
    return next(score for score, vote in zip(scores, votes, strict=True) if str(vote) == winner)
