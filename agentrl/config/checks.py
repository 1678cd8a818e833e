"""Combinations of values that cannot work, one function each. `CHECKS` is the list of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agentrl.config.root import RunConfig

Problems = Iterator[str]
GROUP_ESTIMATORS = frozenset({"grpo", "rloo", "reinforce_plus_plus_baseline", "opo", "grpo_passk", "gpg"})


def check_required(config: RunConfig) -> Problems:
    """There is a model, and there are rows."""
    if not config.actor_rollout_ref.model.path:
        yield "actor_rollout_ref.model.path: not given, wanted a model folder"
    if not config.data.train_files and not config.trainer.val_only:
        yield "data.train_files: not given, wanted a parquet file, a list of files or a glob"


CHECKS: tuple[Callable[[RunConfig], Problems], ...] = (check_required,)
