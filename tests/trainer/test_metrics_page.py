"""What Prometheus finds at `trainer.prometheus_address`: trainer, routers and engines, by the engines' own words."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from agentrl.config.trainer import TrainerConfig
from agentrl.errors import UserInputError
from agentrl.inference.engine_load import EngineLoad, sum_of
from agentrl.observability.tracker import RunInfo
from agentrl.observability.trackers import Trackers
from agentrl.trainer.metrics_page import MetricsPage, serve_metrics

ENGINE = """# HELP sglang:num_running_reqs Requests with a slot
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model="m"} %d.0
# HELP sglang:prompt_tokens_total Prompt tokens
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total 7.0
# TYPE sglang:e2e_seconds histogram
sglang:e2e_seconds_bucket{le="1.0"} 2.0
sglang:e2e_seconds_bucket{le="+Inf"} 3.0
sglang:e2e_seconds_count 3.0
sglang:e2e_seconds_sum 4.0
"""


@contextlib.contextmanager
def engine(page: str | None) -> Iterator[str]:
    """A server with a page of metrics; None: without one, as SGLang without `--enable-metrics`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404 if page is None else 200)
            self.end_headers()
            self.wfile.write((page or "").encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Processes:
    def __init__(self, *engines: str) -> None:
        self.engines = list(engines)

    def engine_loads(self, timeout_s: float) -> dict[str, EngineLoad]:
        own = {self.engines[0]: EngineLoad(3, 2, 10, 0), self.engines[1]: EngineLoad(1, 0, 4, 1)}
        return sum_of([own, {self.engines[0]: EngineLoad(1, 1, 5, 1)}])


def samples(url: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = httpx.get(url, trust_env=False, timeout=30).raise_for_status().text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for metric in text_string_to_metric_families(text)
        for sample in metric.samples
    }


def key(sample: str, /, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return sample, frozenset(labels.items())


def page_of(trackers: Trackers) -> MetricsPage:
    (page,) = [member for member in trackers.members if isinstance(member, MetricsPage)]
    return page


def test_trainer_routers_and_engines_are_on_one_page(tmp_path: Path) -> None:
    trackers = Trackers([])
    with (
        serve_metrics(TrainerConfig(prometheus_address=0), trackers) as watching,
        engine(ENGINE % 2) as first,
        engine(ENGINE % 5) as second,
        engine(None) as third,
        engine("<html>") as fourth,
    ):
        url = page_of(trackers).url
        assert samples(url)[key("agentrl_step")] == 0
        trackers.on_start(RunInfo("project", "run", tmp_path, 40, resumed_from=3))
        trackers.on_stage(4, "gen")
        trackers.log({"critic/score/mean": 0.5, "val-core/a b/reward/mean@1": 1.0}, 4)
        trackers.log({"critic/score/mean": 0.75}, 5)
        with watching(Processes(first, second, third, fourth)):
            found = samples(url)
        assert not [name for name, _ in samples(url) if name.startswith("sglang")]
    one, two, three, four = (address.removeprefix("http://") for address in (first, second, third, fourth))
    wanted: dict[Any, float] = {
        key("agentrl_step"): 5,
        key("agentrl_total_steps"): 40,
        key("agentrl_run", project="project", experiment="run"): 1,
        key("agentrl_stage", stage="gen"): 1,
        key("agentrl_metric", name="critic/score/mean"): 0.75,
        key("agentrl_metric", name="val-core/a b/reward/mean@1"): 1,
        key("agentrl_router_trajectories", engine=one): 4,
        key("agentrl_router_waiting", engine=one): 3,
        key("agentrl_router_answers_total", engine=one): 15,
        key("agentrl_router_out", engine=one): 1,
        key("agentrl_router_out", engine=two): 1,
        key("agentrl_engine_up", engine=one): 1,
        key("agentrl_engine_up", engine=three): 0,
        key("agentrl_engine_up", engine=four): 1,
        key("sglang:num_running_reqs", model="m", engine=one): 2,
        key("sglang:num_running_reqs", model="m", engine=two): 5,
        key("sglang:prompt_tokens_total", engine=two): 7,
        key("sglang:e2e_seconds_bucket", le="+Inf", engine=two): 3,
    }
    assert {name: found.get(name) for name in wanted} == wanted


def test_nobody_asks_for_a_page() -> None:
    trackers = Trackers([])
    with serve_metrics(TrainerConfig(), trackers) as watching, watching(Processes()):
        assert trackers.members == []


def test_an_address_that_is_taken() -> None:
    trackers = Trackers([])
    with serve_metrics(TrainerConfig(prometheus_address="127.0.0.1:0"), trackers):
        port = httpx.URL(page_of(trackers).url).port
        with (
            pytest.raises(UserInputError, match=f"trainer.prometheus_address: got 127.0.0.1:{port}: cannot listen"),
            serve_metrics(TrainerConfig(prometheus_address=port), trackers),
        ):
            pass


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(9400, ("127.0.0.1", 9400)), ("0.0.0.0:9400", ("0.0.0.0", 9400)), ("[::]:9400", ("::", 9400)), (None, None)],
)
def test_addresses(given: int | str | None, wanted: tuple[str, int] | None) -> None:
    assert TrainerConfig(prometheus_address=given).prometheus_host_port == wanted
