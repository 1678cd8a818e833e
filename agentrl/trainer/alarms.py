"""The metrics that a run watches, from `trainer.health`."""

from __future__ import annotations

from agentrl.config.health import HealthConfig
from agentrl.observability.health import Alarm, HealthMonitor


def make_monitor(config: HealthConfig) -> HealthMonitor:
    """The monitor with the alarms of a run's configuration."""
    every = [
        Alarm(
            "tool_calls",
            "rollout/tool_call_rate",
            "fewer trajectories call a tool than before: the policy may be unlearning its tools",
            falls_to=config.tool_calls_fall_to,
            from_best=True,
        ),
        Alarm(
            "repetition",
            "health/repetition",
            "trajectories repeat themselves",
            rises_by=config.repetition_rises_by,
        ),
        Alarm(
            "token_runs",
            "health/token_runs",
            "trajectories sample one token over and over",
            rises_by=config.token_runs_rise_by,
        ),
        Alarm(
            "same_text",
            "health/same_text",
            "different prompts get the same answer: the policy may have collapsed to a template",
            rises_by=config.same_text_rises_by,
        ),
        Alarm("entropy_low", "actor/entropy", "the policy hardly explores any more", falls_to=config.entropy_falls_to),
        Alarm("entropy_high", "actor/entropy", "the policy becomes random", rises_to=config.entropy_rises_to),
        Alarm("short", "response_length/mean", "responses become short", falls_to=config.length_falls_to),
        Alarm("long", "response_length/mean", "responses become long", rises_to=config.length_rises_to),
        Alarm(
            "cut_off",
            "response_length/clip_ratio",
            "more responses are cut off at the length limit, and are trained on as they are",
            rises_by=config.cut_off_rises_by,
        ),
    ]
    alarms = [alarm for alarm in every if (alarm.falls_to, alarm.rises_to, alarm.rises_by) != (None, None, None)]
    return HealthMonitor(alarms, config.window, config.action == "stop")
