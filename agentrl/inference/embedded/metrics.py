"""The `/metrics` page, built from the scheduler's counters on request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from starlette.responses import Response

from agentrl.inference.embedded.engine import Engine

if TYPE_CHECKING:
    from prometheus_client.core import Metric

TOTALS = {
    "prompt_tokens": "Prompt tokens of placed requests",
    "cached_tokens": "Prompt tokens that were taken from a slot and not computed",
    "generated_tokens": "Sampled tokens",
    "finished": "Requests that ended by themselves",
    "aborted": "Requests that were aborted",
    "computed_tokens": "Tokens that went through the model",
    "steps": "Forward passes",
}


def metrics_page(engine: Engine) -> Response:
    """Counters and gauges in Prometheus' text format."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    class Collector:
        def collect(self) -> Iterator[Metric]:
            scheduler = engine.scheduler
            for name, text in TOTALS.items():
                yield CounterMetricFamily(f"sglang:{name}", text, value=getattr(scheduler.counters, name))
            gauges = {
                "num_running_reqs": (len(scheduler.running), "Requests with a slot"),
                "num_queue_reqs": (len(scheduler.waiting), "Requests without a slot"),
                "kv_slots": (scheduler.kv_slots[0], "Allocated slots"),
                "kv_slot_length": (scheduler.kv_slots[1], "Allocated tokens per slot"),
                "paused": (int(engine.paused), "1 while paused"),
            }
            for name, (value, text) in gauges.items():
                yield GaugeMetricFamily(f"sglang:{name}", text, value=value)

    registry = CollectorRegistry()
    registry.register(Collector())
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
