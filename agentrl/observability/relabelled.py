"""Pages of metrics of several servers as one: each sample gets a label that says whose it is.

What a page says under that label itself is kept, as Prometheus keeps it. Of the engine at a:1, with two of its own:

    running{engine="0"} 3        ->    running{engine="a:1", exported_engine="0"} 3
    running{engine="1"} 5              running{engine="a:1", exported_engine="1"} 5
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families


def relabelled(pages: Mapping[str, str], label: str) -> list[Metric]:
    """The metrics of pages in Prometheus' text format; those of one name are one metric.

    Args:
        pages: by the value of the label. What cannot be read of a page is left out.
        label: its name.
    """
    found: dict[str, Metric] = {}
    for value, text in pages.items():
        try:
            metrics = list(text_string_to_metric_families(text))
        except ValueError:  # a page of something else
            continue
        for metric in metrics:
            known = found.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            if known.type == metric.type:
                samples = metric.samples
                known.samples += [sample._replace(labels=_labels(sample.labels, label, value)) for sample in samples]
    return list(found.values())


def _labels(own: Mapping[str, str], label: str, value: str) -> dict[str, str]:
    labels, kept = dict(own), label
    while kept in own:
        kept = f"exported_{kept}"
    if kept != label:
        labels[kept] = labels[label]
    return {**labels, label: value}
