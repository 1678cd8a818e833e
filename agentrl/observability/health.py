"""Alarms for a run that goes wrong while its reward still looks fine."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from agentrl.errors import HealthError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Alarm:
    """One metric of a step, and how far it may move from its baseline."""

    name: str
    metric: str
    meaning: str
    falls_to: float | None = None
    """Rings below this share of the baseline."""
    rises_to: float | None = None
    """Rings above this multiple of the baseline."""
    rises_by: float | None = None
    """Rings this much above the baseline."""
    from_best: bool = False
    """The baseline is the highest value so far, not the first."""

    def rings(self, value: float, baseline: float) -> bool:
        """Whether a value is too far from the baseline."""
        # entropy falls_to 0.3: rings at 0.2 with baseline 1.0. A metric that began at 0 has no meaningful multiple, so
        # `rises_to` never rings then (`> 0`).
        return (
            (self.falls_to is not None and value < self.falls_to * baseline)
            or (self.rises_to is not None and value > self.rises_to * baseline > 0)
            or (self.rises_by is not None and value > self.rises_by + baseline)
        )


class HealthMonitor:
    """Compares the median of the last `window` steps with that of the first.

    Args:
        alarms: what to watch.
        window: steps of each median.
        stops: an alarm ends the run.
    """

    def __init__(self, alarms: Sequence[Alarm], window: int, stops: bool) -> None:
        self._alarms, self._window, self._stops = alarms, window, stops
        self._recent: dict[str, deque[float]] = {}
        self._baselines: dict[str, float] = {}
        self._ringing: dict[str, str] = {}

    def observe(self, metrics: Mapping[str, float], step: int) -> dict[str, float]:
        """Check one step; an alarm is logged when it begins and when it ends.

        Returns:
            `health/alarms`, the number of alarms that are on, and `health/alarm/NAME` for each of them.
        """
        for alarm in self._alarms:
            value = metrics.get(alarm.metric, math.nan)
            if math.isfinite(value):
                self._look(alarm, float(value), step)
        return {"health/alarms": float(len(self._ringing)), **{f"health/alarm/{name}": 1.0 for name in self._ringing}}

    def check(self) -> None:
        """Stop the run if an alarm is on and the configuration says so.

        Raises:
            HealthError: an alarm is on, and `trainer.health.action` is `stop`.
        """
        if self._stops and self._ringing:
            raise HealthError("stopped by trainer.health.action: stop. " + "; ".join(self._ringing.values()))

    def state_dict(self) -> dict[str, Any]:
        """The state for a resumed run."""
        recent = {name: list(values) for name, values in self._recent.items()}
        return {"recent": recent, "baselines": dict(self._baselines), "ringing": dict(self._ringing)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._recent = {name: deque(values, self._window) for name, values in state["recent"].items()}
        self._baselines, self._ringing = dict(state["baselines"]), dict(state["ringing"])

    def _look(self, alarm: Alarm, value: float, step: int) -> None:
        recent = self._recent.setdefault(alarm.name, deque(maxlen=self._window))
        recent.append(value)
        if len(recent) < self._window:
            return
        now = median(recent)
        baseline = self._baselines.setdefault(alarm.name, now)
        if alarm.from_best and now > baseline:
            baseline = self._baselines[alarm.name] = now
        rings = alarm.rings(now, baseline)
        if rings and alarm.name not in self._ringing:
            text = f"{alarm.meaning} ({alarm.metric} is {now:.4g}, was {baseline:.4g})"
            self._ringing[alarm.name] = text
            logger.warning("step %d: alarm %s: %s", step, alarm.name, text)
        elif not rings and alarm.name in self._ringing:
            del self._ringing[alarm.name]
            logger.warning("step %d: alarm %s is over: %s is %.4g", step, alarm.name, alarm.metric, now)
