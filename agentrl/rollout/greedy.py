"""Greedy rollouts: one per prompt beside its samples, whose reward is their baseline (ReMax, arXiv 2310.10505).

A greedy rollout runs as the samples do, with the same agent loop, tools, interaction and score; only its temperature is
0. The batch has no row for it: nothing trains on it, and no statistic of the samples counts it. If it fails, its group
has no baseline, and the samples of the group are left out of the update: a baseline of 0 or a mean of the samples would
be another algorithm for some of the groups::

    uid   score    greedy    baseline   trained on
    a     1, 0     0.5       0.5        yes: rewards minus baseline are 0.5 and -0.5
    b     1, 1     failed    NaN        no: `rollout/greedy/failed` 1
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from agentrl.rollout.records import RolloutRow
from agentrl.rollout.report import Metrics, mean_max_min

BASELINE = "baseline"
"""Column with the reward of the greedy rollout of each row's prompt; NaN: it failed."""
GREEDY = "greedy"
"""`meta_info` key of the greedy rollouts themselves, until a reward model has scored them."""


def first_of_groups(uids: Sequence[Hashable]) -> list[int]:
    """The first row of each group, in order."""
    firsts: dict[Hashable, int] = {}
    for row, uid in enumerate(uids):
        firsts.setdefault(uid, row)
    return list(firsts.values())


def baselines_of(rows: Sequence[RolloutRow], uids: Sequence[Hashable]) -> dict[Hashable, float]:
    """Rewards of the greedy rollouts that did not fail, by group."""
    return {uid: row.score for row, uid in zip(rows, uids, strict=True) if row.error is None}


def greedy_metrics(rows: Sequence[RolloutRow]) -> Metrics:
    """What the samples' metrics leave out: `rollout/greedy/{score,response_length}/*` and `rollout/greedy/failed`."""
    alive = [row for row in rows if row.error is None]
    return {
        "rollout/greedy/failed": float(len(rows) - len(alive)),
        **mean_max_min("rollout/greedy/score", [row.score for row in alive]),
        **mean_max_min("rollout/greedy/response_length", [len(row.tokens.response) for row in alive]),
    }
