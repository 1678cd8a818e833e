"""Traces of steps: the spans of all processes, to a file where `trainer.profile_steps` asks, and to a collector."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from agentrl.config import RunConfig
from agentrl.errors import AgentRLError, text_of
from agentrl.observability.chrome_trace import write_chrome_trace
from agentrl.observability.otlp import OtlpSender, open_sender
from agentrl.observability.said_once import say_once
from agentrl.timeline import Timeline, TraceContext

logger = logging.getLogger(__name__)

RANKS_TIMEOUT_S = 30.0
DRIVER = "driver"


class Traced(Protocol):
    """The other processes of a run."""

    def take_timelines(self, ranks_timeout_s: float | None) -> list[tuple[str, Timeline]]:
        """Their names, and what they did since they were asked last."""


class StepTracing:
    """Traces steps. Every step has a trace of its own; it is complete, and told, when the step ends.

    Nothing is noted in steps that nobody asks for.

    Args:
        config: the run.

    Raises:
        ConfigError: `trainer.otlp_endpoint` is given, and its package is not installed.
    """

    def __init__(self, config: RunConfig) -> None:
        self._trainer = config.trainer
        self._filed = frozenset(config.trainer.profile_steps or ()) if config.trainer.profile_tool == "spans" else ()
        self._sender: OtlpSender | None = open_sender(
            config.trainer.otlp_endpoint, {"agentrl.run": config.trainer.experiment_name}
        )

    @contextmanager
    def __call__(self, step: int, processes: Traced) -> Iterator[None]:
        """Trace what happens inside, if anybody asks for this step."""
        trace = TraceContext.new()
        sender = self._sender if self._sender is not None and self._sender.wants(trace, "step") else None
        if step not in self._filed and sender is None:
            yield
            return
        timeline, ranks_timeout_s = Timeline(trace), None
        try:
            with timeline.span("step", f"step {step}"):
                yield
            ranks_timeout_s = RANKS_TIMEOUT_S  # of a step that failed, nobody waits for ranks: one may be dead
        finally:
            whole = [(DRIVER, timeline), *_others(processes, ranks_timeout_s)]
            if sender is not None:
                sender.send(whole)
            if step in self._filed:
                self._write(step, whole)

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        if self._sender is not None:
            self._sender.close()

    def _write(self, step: int, timelines: Sequence[tuple[str, Timeline]]) -> None:
        file = self._trainer.profile_file(step, "trace").with_suffix(".json")
        try:
            write_chrome_trace(file, timelines)
        except OSError as error:
            logger.warning("step %d: its trace is not written: %s", step, text_of(error))
            return
        logger.info("step %d is traced: %s", step, file)


def _others(processes: Traced, ranks_timeout_s: float | None) -> list[tuple[str, Timeline]]:
    try:
        return processes.take_timelines(ranks_timeout_s)
    except AgentRLError as error:
        say_once(logger, logging.WARNING, f"a step's trace lacks the other processes: {error}")
        return []
