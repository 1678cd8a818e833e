"""Pages of metrics of several servers as one: each sample gets a label that says whose it is."""

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
                known.samples += [sample._replace(labels={**sample.labels, label: value}) for sample in metric.samples]
    return list(found.values())
