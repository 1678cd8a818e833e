"""EngineFleet: the inference servers of a run, on all its machines: started, watched, moved, stopped with the run."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from agentrl.config.machine import uses_cuda
from agentrl.config.root import RunConfig
from agentrl.errors import AgentRLError, ConfigError, EngineTimeout, EngineUnavailable
from agentrl.inference.client import HEALTH_TIMEOUT_S
from agentrl.inference.engine_host import MOST_FAILED_STARTS, HostReport, Seat
from agentrl.inference.guard import GRACE_S
from agentrl.inference.health import is_well_now, quick_client
from agentrl.inference.hosts import HostLostError, HostPlace, LocalPlace
from agentrl.placement import of_run

logger = logging.getLogger(__name__)

POLL_S = 0.1
_FOREIGN_TIMEOUT_S = 30.0
"""How long servers given by address may take to answer: they should be running already."""
_ANSWER_S = 180.0
"""How long a host may take for an answer: a health check of several questions, the end of a server and a new start."""

MakePlaces = Callable[[RunConfig, Sequence[Path]], list[HostPlace]]


class EngineFleet:
    """The engines of a run; a context manager. Create it with `start`.

    Engines given by address are used as they are: nothing here starts, restarts or stops them.

    Attributes:
        restarts: how often an engine was restarted, on its machine or on another one.
    """

    def __init__(self, config: RunConfig, places: list[HostPlace], given: list[str]) -> None:
        self._config, self._given = config, given
        self._left_out: set[str] = set()
        self._places = {place.index: place for place in places}
        self._reports: dict[int, HostReport] = {}
        self._losses: dict[int, int] = dict.fromkeys(self._places, 0)
        """By engine: hosts lost in a row, without a sign of health in between."""
        self._restarts_of_lost = 0

    @classmethod
    def start(
        cls,
        config: RunConfig,
        log_dir: Path | None = None,
        *,
        make_places: MakePlaces | None = None,
        wait: bool = True,
    ) -> Self:
        """Start the run's engines, or take those of `server.addresses`.

        Args:
            config: the run.
            log_dir: where the servers' output goes; None: `logs/` in the run folder.
            make_places: makes a place for the host of each log file; None: all in this process.
            wait: return when all are healthy; False: the caller does something else first, then calls `wait`.

        Raises:
            ConfigError: the engine is not installed on a machine.
            EngineUnavailable, EngineTimeout: as `wait`; or a requested port is taken.
        """
        server = config.actor_rollout_ref.rollout.server
        if server.addresses is not None:
            self = cls(config, [], [address.rstrip("/") for address in server.addresses])
        else:
            folder = log_dir or _default_log_dir(config)
            logs = [folder / f"engine_{index}.log" for index in range(of_run.engine_count(config))]
            self = cls(config, (make_places or local_places)(config, logs), [])
            self._start_all()
        return self.wait() if wait else self

    @property
    def addresses(self) -> list[str]:
        """Every engine, well or not."""
        return self._given or [self._reports[index].address for index in sorted(self._reports)]

    @property
    def kept(self) -> list[str]:
        """The engines that are not given up, well or not."""
        out = {report.address for report in self._reports.values() if report.state == "out"}
        return [address for address in self.addresses if address not in out]

    @property
    def restarts(self) -> int:
        """How often an engine was restarted."""
        return self._restarts_of_lost + sum(report.restarts for report in self._reports.values())

    def wait(self) -> Self:
        """Wait until all engines are healthy; if one fails, stop those that were started.

        Raises:
            EngineUnavailable: a server died early (with the end of its log), or another process has its port, or its
                machine was lost, or this machine cannot reach it.
            EngineTimeout: a server was not healthy within `server.start_timeout_s`.
        """
        limit_s = self._config.actor_rollout_ref.rollout.server.start_timeout_s
        try:
            self._wait_until_healthy(_FOREIGN_TIMEOUT_S if self._given else limit_s)
        except BaseException:
            self.stop()
            raise
        return self

    def check(self) -> None:
        """Check that every engine that this run started is alive.

        Raises:
            EngineUnavailable: one has ended; the message holds the end of its log.
        """
        for report in self._ask("look"):
            if report.state in ("ended", "out"):
                raise EngineUnavailable(report.trouble)

    def tend(self, *, wait: bool = False) -> list[str]:
        """Find the engines that are well, and restart those that ended or hang, elsewhere if their machine is lost.

        A restarted server has the weights of the model folder, and must get the run's before it is used.

        Args:
            wait: for all that may still come up. False: only while none is well; the others are found in a later call.

        Returns:
            Addresses of the engines that answer their health check, at least one.

        Raises:
            EngineUnavailable, EngineTimeout: none does; says what happened to each.
        """
        if self._given:
            well = self._well_of_given()
            if not well:
                raise EngineUnavailable(f"no engine answers its health check: {'; '.join(self._given)}")
            self._tell_of_given(set(self._given) - set(well))
            return well
        limit_s = self._config.actor_rollout_ref.rollout.server.start_timeout_s
        deadline = time.monotonic() + limit_s
        reports = self._ask("tend", move=True)
        if wait or not any(report.state == "well" for report in reports):
            # Whatever may still come up is waited for: one engine that is well again would get all requests alone.
            while any(report.state == "starting" for report in reports) and time.monotonic() < deadline:
                time.sleep(POLL_S)
                reports = self._ask("tend", move=True)
        if well := [report.address for report in reports if report.state == "well"]:
            return well
        if any(report.state == "starting" for report in reports):
            raise EngineTimeout(f"no engine is healthy within {limit_s:g} s: {', '.join(self.addresses)}")
        told = "; ".join(f"{report.address} ({report.trouble})" for report in reports)
        raise EngineUnavailable(f"no engine answers its health check: {told}")

    def drop(self, address: str) -> None:
        """End the server at an address, one that this run started; a later `tend` starts it again."""
        for index, report in self._reports.items():
            if report.address == address:
                place = self._places[index]
                with suppress(HostLostError):  # as good as ended
                    place.result(place.submit("drop"), _ANSWER_S)

    def stop(self) -> None:
        """Stop every engine that this run started. Leaves no process behind; may be called twice."""
        stopping = [(place, place.submit("stop")) for place in self._places.values()]
        for place, future in stopping:
            try:
                place.result(future, GRACE_S + 10.0)
            except AgentRLError as error:  # a host that has ended took its server along
                logger.debug("engine %d is not stopped: %s", place.index, error)
            place.close()
        self._places.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_all(self) -> None:
        """Start every server; the hosts choose their ports at the same time.

        Raises:
            ConfigError, EngineUnavailable: one cannot be started; the others are stopped.
        """
        try:
            self._ask("start")
        except BaseException:
            self.stop()
            raise

    def _wait_until_healthy(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not self._all_well():
            if time.monotonic() > deadline:
                raise EngineTimeout(self._not_healthy(limit_s))
            time.sleep(POLL_S)
        if any(place.is_remote for place in self._places.values()):
            self._check_reach()

    def _all_well(self) -> bool:
        if self._given:
            return len(self._well_of_given()) == len(self._given)
        self.check()
        return all(report.state == "well" for report in self._reports.values())

    def _not_healthy(self, limit_s: float) -> str:
        """Which engine is not healthy, with the end of its log."""
        if self._given:
            well = self._well_of_given()
            ill = next((address for address in self._given if address not in well), self._given[0])
            return f"no healthy engine at {ill} within {limit_s:g} s: is it running?"
        ill_report = next(report for report in self._reports.values() if report.state != "well")
        place = self._places[ill_report.index]
        log = place.result(place.submit("log_end"), _ANSWER_S)
        key = "actor_rollout_ref.rollout.server.start_timeout_s"
        return f"no healthy engine at {ill_report.address} within {limit_s:g} s ({key}). {log}"

    def _check_reach(self) -> None:
        """Engines on other machines answer this one too.

        Raises:
            EngineUnavailable: one does not, though its own machine says that it is well.
        """
        out = sorted(set(self.addresses) - set(_answering(self.addresses, "/health", HEALTH_TIMEOUT_S)))
        if out:
            raise EngineUnavailable(
                f"{', '.join(out)}: healthy on its own machine, but not reached from this one: open the ports between "
                "the machines (actor_rollout_ref.rollout.server.port sets the first), or set "
                "actor_rollout_ref.rollout.server.host to 0.0.0.0 where the machine has several networks"
            )

    def _ask(self, method: str, *, move: bool = False) -> list[HostReport]:
        """Ask all hosts at the same time, and pass on what they tell.

        Args:
            method: of the hosts.
            move: replace those that are lost; False: that is an error.

        Raises:
            AgentRLError: a host raised it.
            HostLostError: a host is lost.
        """
        asked = [(place, place.submit(method)) for index, place in self._places.items() if not self._is_out(index)]
        for place, future in asked:
            try:
                report: HostReport = place.result(future, _ANSWER_S)
            except HostLostError as error:
                if not move:
                    raise
                report = self._move(place, error)
            for line in report.news:
                logger.warning("%s", line)
            if report.state == "well":
                self._losses[place.index] = 0
            self._reports[place.index] = report
        return [self._reports[index] for index in sorted(self._reports)]

    def _is_out(self, index: int) -> bool:
        return index in self._reports and self._reports[index].state == "out"

    def _move(self, place: HostPlace, error: HostLostError) -> HostReport:
        """Start a lost engine on another machine, or give it up; what became of it."""
        last = self._reports[place.index]
        self._losses[place.index] += 1
        room = None
        with suppress(EngineUnavailable):  # Ray does not give it the GPUs that it has reserved
            room = place.move() if self._losses[place.index] <= MOST_FAILED_STARTS else None
        self._restarts_of_lost += last.restarts + (room is not None)
        if room is None:
            logger.warning("%s\nNo other machine has room for it: the run goes on without it.", error)
            return HostReport(last.index, last.address, "out", trouble=str(error))
        logger.warning("%s\nStarting it again on %s.", error, room)
        try:
            report: HostReport = place.result(place.submit("start"), _ANSWER_S)
        except EngineUnavailable as second:  # lost as well, or not started: the next call tries again
            return HostReport(last.index, last.address, "starting", trouble=str(second))
        except ConfigError as second:
            logger.warning("%s\nThe run goes on without engine %d.", second, last.index)
            return HostReport(last.index, last.address, "out", trouble=str(second))
        return HostReport(report.index, report.address, report.state, report.restarts, str(error), report.news)

    def _tell_of_given(self, ill: set[str]) -> None:
        """Say once which servers of others are left out, and that they are back."""
        for address in sorted(ill - self._left_out):
            logger.warning(
                "the engine at %s gives no answer to its health check, and is left out until it does: this run did "
                "not start it (actor_rollout_ref.rollout.server.addresses), and cannot restart it",
                address,
            )
        for address in sorted(self._left_out - ill):
            logger.warning("the engine at %s answers its health check again", address)
        self._left_out = ill

    def _well_of_given(self) -> list[str]:
        server = self._config.actor_rollout_ref.rollout.server
        return _answering(self._given, "/health", min(HEALTH_TIMEOUT_S, server.request_timeout_s))


def local_places(config: RunConfig, logs: Sequence[Path]) -> list[HostPlace]:
    """Hosts in this process; on GPUs each server has its own of those that this process sees."""
    numbers = _gpus_of_engines(config, len(logs)) if uses_cuda(config) else None
    seats = [Seat(index, None if numbers is None else visible_gpus(numbers[index])) for index in range(len(logs))]
    return [LocalPlace(config, seat, log) for seat, log in zip(seats, logs, strict=True)]


def _gpus_of_engines(config: RunConfig, count: int) -> list[Sequence[int]]:
    """As the plan of the run has them; a job without ranks has none, and its engines have all GPUs in turn."""
    planned = of_run.place(config)
    if planned.works and len(planned.engines) == count:
        return [engine.gpus for engine in planned.engines]
    size = config.actor_rollout_ref.rollout.tensor_model_parallel_size
    return [range(index * size, (index + 1) * size) for index in range(count)]


def visible_gpus(numbers: Sequence[int]) -> tuple[str, ...]:
    """Names of GPUs for CUDA_VISIBLE_DEVICES: 2 and 3 are `("2", "3")`; where this process has `4,5,6,7`, `("6", "7")`.

    Raises:
        EngineUnavailable: this process sees fewer.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not given:
        return tuple(map(str, numbers))
    names = given.split(",")
    if max(numbers) >= len(names):
        raise EngineUnavailable(
            f"an engine needs {len(numbers)} GPUs from number {numbers[0]} on, but CUDA_VISIBLE_DEVICES={given} has "
            f"{len(names)}: lower actor_rollout_ref.rollout.server.launch or tensor_model_parallel_size"
        )
    return tuple(names[number] for number in numbers)


def _answering(addresses: Sequence[str], path: str, timeout_s: float) -> list[str]:
    """The servers that answer now; all are asked at the same time."""

    def answers(address: str) -> bool:
        return is_well_now(client, address, path)

    with quick_client(timeout_s) as client, ThreadPoolExecutor() as threads:
        return [a for a, good in zip(addresses, threads.map(answers, addresses), strict=True) if good]


def _default_log_dir(config: RunConfig) -> Path:
    folder = config.trainer.default_local_dir
    return Path(tempfile.mkdtemp(prefix="agentrl-engines-")) if "${" in folder else Path(folder) / "logs"
