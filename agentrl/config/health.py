"""`trainer.health`: when a run counts as unhealthy, and what happens then."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentrl.config.base import Section


class HealthConfig(Section):
    """Alarms. Each compares the median of the last steps with that of the first steps. Null: the alarm is off."""

    window: int = Field(default=5, ge=1)
    """Number of steps of each median."""
    action: Literal["warn", "stop"] = "warn"
    """What an alarm does: warn only, or warn and end the run (which first saves a checkpoint if saving is on)."""
    tool_calls_fall_to: float | None = Field(default=0.5, gt=0, lt=1)
    """Alarm when the share of trajectories that call a tool falls below this part of its best value."""
    repetition_rises_by: float | None = Field(default=0.2, gt=0, lt=1)
    """Alarm when the share of repeated 4-grams in a trajectory has risen by more than this."""
    token_runs_rise_by: float | None = Field(default=0.05, gt=0, lt=1)
    """Alarm when the share of trajectories with one token 16 times in a row has risen by more than this."""
    same_text_rises_by: float | None = Field(default=0.5, gt=0, lt=1)
    """Alarm when the share of trajectories with exactly the text of another prompt's has risen by more than this."""
    entropy_falls_to: float | None = Field(default=0.05, gt=0, lt=1)
    """Alarm when the entropy falls below this part of its first value."""
    entropy_rises_to: float | None = Field(default=3.0, gt=1)
    """Alarm when the entropy rises above this multiple of its first value."""
    length_falls_to: float | None = Field(default=0.2, gt=0, lt=1)
    """Alarm when the mean response length falls below this part of its first value."""
    length_rises_to: float | None = Field(default=4.0, gt=1)
    """Alarm when the mean response length rises above this multiple of its first value."""
    cut_off_rises_by: float | None = Field(default=0.3, gt=0, lt=1)
    """Alarm when the share of responses that end at the length limit has risen by more than this."""
