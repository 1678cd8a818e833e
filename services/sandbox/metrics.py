"""What `/metrics` says about runs, under `agentrl_sandbox_`."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from agentrl.services.sandbox.protocol import CommandResult, Status

_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class SandboxMetrics:
    """Counters and gauges of one service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        prefix = "agentrl_sandbox"
        self._runs = Counter(f"{prefix}_runs", "Runs by language and status", ("language", "status"), registry=registry)
        self._seconds = Histogram(
            f"{prefix}_run_seconds", "Time that code ran", ("language",), buckets=_BUCKETS, registry=registry
        )
        self._refused = Counter(f"{prefix}_refused", "Requests answered 429", registry=registry)
        self._registry, self._prefix = registry, prefix

    def count(self, language: str, status: Status, result: CommandResult | None) -> None:
        """Count one run.

        Args:
            language: its name.
            status: of the run.
            result: how its program, or the compiler, ended; None: not told, or it could not be run.
        """
        timed_out = result is not None and result.status == "TimeLimitExceeded"
        self._runs.labels(language, "TimeLimitExceeded" if timed_out else status).inc()
        if result is not None and result.execution_time is not None:
            self._seconds.labels(language).observe(result.execution_time)

    def refused(self) -> None:
        """Count one request that got no place."""
        self._refused.inc()

    def gauge(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """Show a number that is asked for at each scrape."""
        Gauge(f"{self._prefix}_{name}", help_text, registry=self._registry).set_function(value)
