"""Each alarm rings on what it is for, once, and goes out again."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import pytest

from agentrl.config.health import HealthConfig
from agentrl.errors import HealthError
from agentrl.observability.health import HealthMonitor
from agentrl.trainer.alarms import make_monitor

FINE = {
    "rollout/tool_call_rate": 0.6,
    "health/repetition": 0.1,
    "health/token_runs": 0.0,
    "health/same_text": 0.0,
    "actor/entropy": 1.0,
    "response_length/mean": 100.0,
    "response_length/clip_ratio": 0.05,
}


def monitor(**changes: Any) -> HealthMonitor:
    return make_monitor(HealthConfig(window=3, **changes))


def ringing(metrics: dict[str, float]) -> set[str]:
    return {name.removeprefix("health/alarm/") for name in metrics if name.startswith("health/alarm/")}


@pytest.mark.parametrize(
    ("metric", "fine", "bad", "alarm"),
    [
        ("rollout/tool_call_rate", 0.31, 0.29, "tool_calls"),
        ("health/repetition", 0.29, 0.31, "repetition"),
        ("health/token_runs", 0.04, 0.06, "token_runs"),
        ("health/same_text", 0.4, 0.6, "same_text"),
        ("actor/entropy", 0.06, 0.04, "entropy_low"),
        ("actor/entropy", 2.9, 3.1, "entropy_high"),
        ("response_length/mean", 21, 19, "short"),
        ("response_length/mean", 399, 401, "long"),
        ("response_length/clip_ratio", 0.34, 0.36, "cut_off"),
    ],
)
def test_what_rings(metric: str, fine: float, bad: float, alarm: str, caplog: pytest.LogCaptureFixture) -> None:
    health = monitor()
    for step in range(1, 4):
        assert health.observe(FINE, step) == {"health/alarms": 0.0}
    for step in range(4, 8):
        assert not ringing(health.observe({**FINE, metric: fine}, step))
    with caplog.at_level(logging.WARNING):
        seen = [ringing(health.observe({**FINE, metric: bad}, step)) for step in range(8, 13)]
    assert seen == [set(), {alarm}, {alarm}, {alarm}, {alarm}]  # from the second of three on, the median is bad
    (told,) = caplog.messages
    assert told.startswith(f"step 9: alarm {alarm}: ")
    assert f"({metric} is {bad:.4g}, was {FINE[metric]:.4g})" in told
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        seen = [ringing(health.observe(FINE, step)) for step in range(13, 16)]
    assert seen == [{alarm}, set(), set()]
    assert "is over" in caplog.text


def test_tool_calls_are_compared_with_their_best() -> None:
    health = monitor()
    for step, rate in enumerate([0.2] * 3 + [0.9] * 3):
        assert not ringing(health.observe({"rollout/tool_call_rate": rate}, step))
    seen = [ringing(health.observe({"rollout/tool_call_rate": 0.4}, step)) for step in range(6, 9)]
    assert seen[-1] == {"tool_calls"}


def test_one_bad_step_is_no_alarm() -> None:
    health = monitor()
    for step in range(20):
        metrics = FINE if step % 3 else {**FINE, "health/repetition": 0.9, "rollout/tool_call_rate": 0.0}
        assert not ringing(health.observe(metrics, step))


def test_numbers_that_are_absent_zero_or_none_do_not_ring() -> None:
    health = monitor()
    for step, entropy in enumerate([0.0] * 3 + [math.nan] * 3 + [5.0] * 3):
        assert not ringing(health.observe({"actor/entropy": entropy, "rollout/tool_call_rate": 0.0}, step))


def test_alarms_that_are_off() -> None:
    off = {name: None for name in HealthConfig.model_fields if "fall" in name or "rise" in name}
    health = monitor(**off)
    for step in range(9):
        bad = {name: value * (1 if step < 3 else 1000) for name, value in FINE.items()}
        assert health.observe(bad, step) == {"health/alarms": 0.0}


def test_a_run_may_stop() -> None:
    warns, stops = monitor(), monitor(action="stop")
    for health in (warns, stops):
        for step in range(5):
            health.check()
            health.observe(FINE if step < 3 else {**FINE, "health/token_runs": 1.0}, step)
    warns.check()
    with pytest.raises(
        HealthError, match=r"stopped by trainer.health.action: stop. .*one token.* is 1, was 0\)"
    ) as caught:
        stops.check()
    assert caught.value.exit_code == 3


def test_a_resumed_run_remembers() -> None:
    whole, first = monitor(), monitor()
    metrics = [FINE] * 3 + [{**FINE, "response_length/mean": 500.0}] * 2 + [FINE] * 3
    wanted = [whole.observe(item, step) for step, item in enumerate(metrics)]
    for cut in range(1, len(metrics)):
        first = monitor()
        for step in range(cut):
            first.observe(metrics[step], step)
        second = monitor()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert [second.observe(metrics[step], step) for step in range(cut, len(metrics))] == wanted[cut:]
