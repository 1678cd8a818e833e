"""Metrics of several servers on one page."""

from __future__ import annotations

from agentrl.observability.relabelled import relabelled

VLLM = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 5.0
"""


def test_a_label_of_the_page_itself_is_kept() -> None:
    (metric,) = relabelled({"a:1": VLLM, "a:2": VLLM.replace('engine="1"', 'exported_engine="x",engine="1"')}, "engine")
    assert [(sample.labels, sample.value) for sample in metric.samples] == [
        ({"engine": "a:1", "exported_engine": "0", "model_name": "m"}, 3),
        ({"engine": "a:1", "exported_engine": "1", "model_name": "m"}, 5),
        ({"engine": "a:2", "exported_engine": "0", "model_name": "m"}, 3),
        ({"engine": "a:2", "exported_engine": "x", "exported_exported_engine": "1", "model_name": "m"}, 5),
    ]


def test_what_is_no_page_of_metrics_is_left_out() -> None:
    assert relabelled({"a:1": "<html>"}, "engine") == []
