"""A page of metrics for Prometheus: those of the trainer, of the routers and of the engines, at one address.

Engines have pages of their own, at ports that are free when they start, and at others after a restart: a list of
targets would be out of date. So this page has theirs too, with the label `engine`, asked for when it is asked for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol
from wsgiref.simple_server import WSGIServer

import httpx
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agentrl.config.trainer import TrainerConfig
from agentrl.errors import UserInputError
from agentrl.inference.engine_load import EngineLoad
from agentrl.inference.health import quick_client
from agentrl.observability.relabelled import relabelled
from agentrl.observability.tracker import RunInfo, Tracker
from agentrl.observability.trackers import Trackers

logger = logging.getLogger(__name__)

ENGINE_TIMEOUT_S = 2.0
_MOST_ASKED = 16
"""Engines that are asked at the same time."""


class Watched(Protocol):
    """The processes of a run."""

    @property
    def engines(self) -> list[str]:
        """Addresses of all engines."""

    def engine_loads(self, timeout_s: float) -> dict[str, EngineLoad]:
        """What they do for the routers."""


Watching = Callable[[Watched], AbstractContextManager[None]]


class MetricsPage(Tracker, Collector):
    """The page. It is a tracker: it keeps what the run reports last.

    Args:
        url: where it is served.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._processes: Watched | None = None
        self._at_work = threading.Lock()
        self._lock = threading.Lock()
        self._metrics: dict[str, float] = {}
        self._info: RunInfo | None = None
        self._step = 0
        self._stage = "start"
        self._finished_at = 0.0

    @contextmanager
    def watching(self, processes: Watched) -> Iterator[None]:
        """While the block runs, the page shows routers and engines; before and after it, they do not exist."""
        self._processes = processes
        try:
            yield
        finally:
            with self._at_work:
                self._processes = None

    def on_start(self, run: RunInfo) -> None:
        """Keep the names."""
        with self._lock:
            self._info, self._step = run, run.resumed_from or 0

    def on_stage(self, step: int, stage: str) -> None:
        """Keep the stage."""
        with self._lock:
            self._stage = stage

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Keep the metrics: those of a validation stay until the next one."""
        with self._lock:
            self._metrics |= metrics
            self._step, self._finished_at = step, time.time()

    def collect(self) -> Iterator[Metric]:
        """Everything, as of now."""
        yield from self._of_trainer()
        with self._at_work:
            loads = {} if self._processes is None else self._processes.engine_loads(ENGINE_TIMEOUT_S)
            pages = {} if self._processes is None else _pages_of(self._processes.engines)
        yield from _of_routers(loads)
        up = GaugeMetricFamily("agentrl_engine_up", "1: the engine's metrics could be read", labels=["engine"])
        for engine, page in pages.items():
            up.add_metric([engine], float(page is not None))
        yield up
        yield from relabelled({engine: page for engine, page in pages.items() if page is not None}, "engine")

    def _of_trainer(self) -> Iterator[Metric]:
        with self._lock:
            metrics, info, stage = dict(self._metrics), self._info, self._stage
            step, finished_at = self._step, self._finished_at
        newest = GaugeMetricFamily("agentrl_metric", "Newest value of a metric of the trainer", labels=["name"])
        for name, value in metrics.items():
            newest.add_metric([name], float(value))
        yield newest
        yield GaugeMetricFamily("agentrl_step", "Finished steps", value=step)
        yield GaugeMetricFamily("agentrl_step_finished_seconds", "Unix time when the last one was", value=finished_at)
        current = GaugeMetricFamily("agentrl_stage", "1: the stage that the step is in", labels=["stage"])
        current.add_metric([stage], 1.0)
        yield current
        if info is not None:
            yield GaugeMetricFamily("agentrl_total_steps", "Steps of the run", value=info.total_steps)
            about = GaugeMetricFamily("agentrl_run", "1: names of the run", labels=["project", "experiment"])
            about.add_metric([info.project, info.experiment], 1.0)
            yield about


def _of_routers(loads: Mapping[str, EngineLoad]) -> Iterator[Metric]:
    texts = {
        "trajectories": "Trajectories that stick to an engine",
        "waiting": "Requests that wait for an engine",
        "answers": "Requests that an engine has answered since it was last admitted",
        "out": "Agent-loop workers that do not use an engine now",
    }
    for name, text in texts.items():
        family = CounterMetricFamily if name == "answers" else GaugeMetricFamily
        metric = family(f"agentrl_router_{name}", text, labels=["engine"])
        for address, load in loads.items():
            metric.add_metric([_label(address)], float(getattr(load, name)))
        yield metric


def _pages_of(engines: list[str]) -> dict[str, str | None]:
    """The metrics of engines; None: one does not tell them."""

    def ask(address: str) -> str | None:
        try:
            answer = client.get(f"{address}/metrics", follow_redirects=True)
        except httpx.HTTPError:
            return None
        return answer.text if answer.is_success else None

    if not engines:
        return {}
    with quick_client(ENGINE_TIMEOUT_S) as client, ThreadPoolExecutor(_MOST_ASKED) as threads:
        return dict(zip(map(_label, engines), threads.map(ask, engines), strict=True))


def _label(address: str) -> str:
    """`http://10.0.0.1:30000` -> `10.0.0.1:30000`, as Prometheus writes instances."""
    return address.partition("://")[2]


@contextmanager
def serve_metrics(trainer: TrainerConfig, trackers: Trackers) -> Iterator[Watching]:
    """Serve a page while the block runs, if the run asks for one. It becomes one of the trackers.

    Yields:
        What the run's processes go through when they have started: the page shows them while that block runs.

    Raises:
        UserInputError: the address is taken.
    """
    if trainer.prometheus_host_port is None:
        yield lambda _: nullcontext()
        return
    host, port = trainer.prometheus_host_port
    registry = CollectorRegistry()
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        reason = f"cannot listen there: {error.strerror or error}"
        raise UserInputError(f"trainer.prometheus_address: got {host}:{port}: {reason}") from error
    page = MetricsPage(_url(host, server))
    registry.register(page)
    trackers.members.append(page)
    logger.info("metrics for Prometheus: %s", page.url)
    try:
        yield page.watching
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _url(host: str, server: WSGIServer) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{server.server_port}/metrics"
