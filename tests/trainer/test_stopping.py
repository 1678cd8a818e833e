"""Signals become a clean stop, never in the middle of an update."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext

import pytest

from agentrl.trainer.stopping import StopGuard


def stop_inside(times: int, *, deferred: bool) -> list[str]:
    """Send `times` signals to this process and say how far it got."""
    done: list[str] = []
    with StopGuard() as guard:
        try:
            with guard.deferred() if deferred else nullcontext():
                for _ in range(times):
                    os.kill(os.getpid(), signal.SIGINT)
                    done.append("update")
            done.append("after")
        except KeyboardInterrupt:
            done.append("stopped")
    return done


def test_a_signal_interrupts_at_once():
    assert stop_inside(1, deferred=False) == ["stopped"]


def test_a_signal_waits_for_the_end_of_an_update():
    assert stop_inside(1, deferred=True) == ["update", "stopped"]


def test_a_second_signal_does_not_wait():
    assert stop_inside(3, deferred=True) == ["update", "stopped"]


def test_sigterm_is_a_stop_too():
    with StopGuard(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)


def test_old_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopGuard():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
