"""`trainer.health`: when a run is in trouble, and what happens then."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentrl.config.base import Section


class HealthConfig(Section):
    """Alarms; each compares the median of the last steps with that of the first. Null: no such alarm."""

    window: int = Field(default=5, ge=1)
    """Steps whose median counts."""
    action: Literal["warn", "stop"] = "warn"
    """What an alarm does besides its warning: nothing, or it ends the run, which saves first where saving is on."""
    tool_calls_fall_to: float | None = Field(default=0.5, gt=0, lt=1)
    """Alarm when the share of trajectories that call a tool is below this part of its best."""
    repetition_rises_by: float | None = Field(default=0.2, gt=0, lt=1)
    """Alarm when so much more of the 4-grams of a trajectory are repetitions."""
    token_runs_rise_by: float | None = Field(default=0.05, gt=0, lt=1)
    """Alarm when so many more trajectories sample one token 16 times in a row."""
    same_text_rises_by: float | None = Field(default=0.5, gt=0, lt=1)
    """Alarm when so many more trajectories say exactly what a trajectory of another prompt says."""
    entropy_falls_to: float | None = Field(default=0.05, gt=0, lt=1)
    """Alarm when the entropy is below this part of where it began."""
    entropy_rises_to: float | None = Field(default=3.0, gt=1)
    """Alarm when the entropy is above this multiple of where it began."""
    length_falls_to: float | None = Field(default=0.2, gt=0, lt=1)
    """Alarm when responses are shorter than this part of their first mean length."""
    length_rises_to: float | None = Field(default=4.0, gt=1)
    """Alarm when responses are longer than this multiple of their first mean length."""
    cut_off_rises_by: float | None = Field(default=0.3, gt=0, lt=1)
    """Alarm when so many more responses end at the length limit."""
