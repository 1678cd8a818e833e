"""A tracker that does something at a chosen moment of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentrl.observability.tracker import Tracker


class At(Tracker):
    """Does something when a stage of a step begins, or when a step is logged."""

    def __init__(self, step: int, stage: str, act: Callable[[], object]) -> None:
        self._when, self._act = (step, stage), act
        self.metrics: list[dict[str, float]] = []

    def on_stage(self, step: int, stage: str) -> None:
        if (step, stage) == self._when:
            self._act()

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.metrics.append(metrics)
        self.on_stage(step, "log")


def silent() -> At:
    return At(0, "", lambda: None)


def raising(error: BaseException) -> Callable[..., Any]:
    def act(*_args: object, **_kwargs: object) -> None:
        raise error

    return act
