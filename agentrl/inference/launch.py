"""Inference servers as child processes: started until healthy, watched, restarted, and stopped with the run."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil

from agentrl.config.root import RunConfig
from agentrl.errors import EngineTimeout, EngineUnavailable
from agentrl.inference.client import HEALTH_TIMEOUT_S
from agentrl.inference.clients import client_class
from agentrl.inference.guard import GRACE_S
from agentrl.inference.picture_requests import KEEPS_IDS
from agentrl.inference.sglang import launch_command, resolve_engine
from agentrl.placement.of_run import engine_count

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_FOREIGN_TIMEOUT_S = 30.0
"""How long servers given by address may take to answer: they should be running already."""
_LOG_TAIL_LINES = 20


_PORT_TRIES = 5
"""How often free ports are chosen: another process may take one before the server listens on it."""
_MOST_FAILED_STARTS = 3
"""A server that was restarted so often in a row without ever becoming healthy stays out."""


class _PortLostError(EngineUnavailable):
    """Another process answers on the port of a server that was started."""


@dataclass(slots=True)
class _Server:
    index: int
    host: str
    port: int
    log: Path
    process: subprocess.Popen[bytes] | None = None
    spawned_at: float = 0.0
    was_well: bool = False
    """It has been healthy since it was started."""
    failed_starts: int = 0
    """Starts in a row after which it was not."""
    trouble: str = ""
    """Why it was restarted last."""

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.port}"

    def exit_code(self) -> int | None:
        """The exit code; None while the server runs, or if it was never started."""
        return None if self.process is None else self.process.poll()

    def end(self) -> str:
        """A sentence that says how the server ended, with the end of its log."""
        code, tail = self.exit_code(), self.log_tail()
        return f"the engine at {self.address} ended with exit code {code}. The end of {self.log}:\n{tail}"

    def log_tail(self) -> str:
        """The last lines of the server's log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if self.log.exists() else []
        return "\n".join(lines[-_LOG_TAIL_LINES:]) or "(it wrote nothing)"


class EngineServers:
    """The inference servers of a run; a context manager. Create it with `start`.

    Servers given by address are used as they are: this class neither starts, restarts nor stops them.

    Attributes:
        addresses: every server, well or not.
        restarts: how often a server was restarted.
    """

    def __init__(self, config: RunConfig, servers: list[_Server], addresses: list[str]) -> None:
        self._config = config
        self._servers = servers
        self._health_timeout_s = min(HEALTH_TIMEOUT_S, config.actor_rollout_ref.rollout.server.request_timeout_s)
        self._alive_path = client_class(config).alive_path
        self.addresses = addresses
        self.restarts = 0

    @classmethod
    def start(cls, config: RunConfig, log_dir: Path | None = None, *, wait: bool = True) -> Self:
        """Start the run's servers, or take those of `server.addresses`.

        Args:
            config: the run.
            log_dir: where the servers' output goes; None: `logs/` in the run folder.
            wait: return when all are healthy; False: the caller does something else first, then calls `wait`.

        Raises:
            ConfigError: the engine is not installed.
            EngineUnavailable, EngineTimeout: as `wait`; or a requested port is taken.
        """
        server = config.actor_rollout_ref.rollout.server
        if server.addresses is not None:
            self = cls(config, [], [address.rstrip("/") for address in server.addresses])
        else:
            resolve_engine(config)
            folder = log_dir or _default_log_dir(config)
            folder.mkdir(parents=True, exist_ok=True)
            logs = [folder / f"engine_{index}.log" for index in range(engine_count(config))]
            self = cls(config, [_Server(index, server.host, 0, log) for index, log in enumerate(logs)], [])
            self._spawn_all()
        return self.wait() if wait else self

    def wait(self) -> Self:
        """Wait until all servers are healthy; if one fails, stop those that were started.

        Raises:
            EngineUnavailable: a server died early (with the end of its log), or another process has its port.
            EngineTimeout: a server was not healthy within `server.start_timeout_s`.
        """
        server = self._config.actor_rollout_ref.rollout.server
        limit_s = server.start_timeout_s if self._servers else _FOREIGN_TIMEOUT_S
        try:
            for _ in range(_PORT_TRIES - 1 if server.port is None else 0):
                try:
                    return self._wait_until_healthy(self.addresses, limit_s)
                except _PortLostError as error:
                    logger.warning("%s; trying other ports", error)
                    self.stop()
                    self._spawn_all()
            return self._wait_until_healthy(self.addresses, limit_s)
        except BaseException:
            self.stop()
            raise

    def _spawn_all(self) -> None:
        """Start every server on its port, or on a free one."""
        server = self._config.actor_rollout_ref.rollout.server
        for each, port in zip(self._servers, _ports(server.host, server.port, len(self._servers)), strict=True):
            each.port = port
            each.log.unlink(missing_ok=True)
            self._spawn(each)
        self.addresses = [each.address for each in self._servers]

    def check(self) -> None:
        """Check that every server that this run started is alive.

        Raises:
            EngineUnavailable: a server has ended; the message holds the end of its log.
        """
        for server in self._servers:
            if server.exit_code() is not None:
                raise (_PortLostError if "already in use" in server.log_tail() else EngineUnavailable)(server.end())

    def tend(self) -> list[str]:
        """Find the servers that are well, and restart those that ended or hang.

        While others are well it does not wait for restarted ones: they are found in a later call. A restarted server
        has the weights of the model folder, and must get the run's before it is used.

        Returns:
            Addresses of the servers that answer their health check, at least one.

        Raises:
            EngineUnavailable, EngineTimeout: none does; says what happened to each.
        """
        well = self._well()
        for server in self._servers:
            if server.address not in well:
                self._restart(server)
        if not well and any(server.process is not None for server in self._servers):
            well = self._wait_for_restarted()
        if not well:
            told = [f"{s.address} ({s.trouble})" for s in self._servers] or self.addresses
            raise EngineUnavailable(f"no engine answers its health check: {'; '.join(told)}")
        return well

    def drop(self, address: str) -> None:
        """End the server at an address; a later `tend` starts it again."""
        for server in self._servers:
            if server.address == address and server.process is not None:
                server.process.terminate()
                _close(server.process)

    def stop(self) -> None:
        """Stop every server that this run started. Leaves no process behind; may be called twice."""
        processes = [server.process for server in self._servers if server.process is not None]
        for process in processes:
            process.terminate()
        for process in processes:
            _close(process)
        for server in self._servers:
            server.process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _spawn(self, server: _Server) -> None:
        command = launch_command(self._config, server.index, server.host, server.port)
        guarded = [sys.executable, "-m", "agentrl.inference.guard", *command]
        with server.log.open("ab") as log:
            server.process = subprocess.Popen(
                guarded,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**KEEPS_IDS, **os.environ},
            )
        server.spawned_at, server.was_well = time.monotonic(), False

    def _well(self) -> list[str]:
        """The servers that answer their health check now; all are asked at the same time."""
        own = {server.address: server for server in self._servers}

        def is_well(address: str) -> bool:
            server = own.get(address)
            if server is None:
                return _healthy(client, address)
            if server.process is None or server.exit_code() is not None:
                return False
            # `/health` alone would not tell that a server takes requests but answers none.
            if not _healthy(client, address, self._alive_path if server.was_well else "/health"):
                return False
            return server.was_well or _listens(server.process.pid, server.port)

        timeout_s = self._health_timeout_s
        with httpx.Client(timeout=timeout_s, trust_env=False) as client, ThreadPoolExecutor() as threads:
            well = [a for a, good in zip(self.addresses, threads.map(is_well, self.addresses), strict=True) if good]
        for address in well:
            if address in own:
                own[address].was_well, own[address].failed_starts = True, 0
        return well

    def _restart(self, server: _Server) -> None:
        """Start a server again, unless it is still starting, or never starts."""
        limit_s = self._config.actor_rollout_ref.rollout.server.start_timeout_s
        ended = server.exit_code() is not None
        starting = not server.was_well and time.monotonic() - server.spawned_at < limit_s
        if server.process is None or (starting and not ended):
            return
        silent = f"the engine at {server.address} gives no answer to its health check in {self._health_timeout_s:g} s"
        server.trouble = server.end() if ended else silent
        server.failed_starts += not server.was_well
        _close(server.process)
        if server.failed_starts > _MOST_FAILED_STARTS:
            server.process = None
            logger.warning("%s\nIt does not start: the run goes on without it.", server.trouble)
            return
        logger.warning("%s\nRestarting it.", server.trouble)
        self.restarts += 1
        self._spawn(server)

    def _wait_for_restarted(self) -> list[str]:
        """Wait until each server is healthy or has ended; the healthy ones.

        Raises:
            EngineUnavailable, EngineTimeout: there is none.
        """
        limit_s = self._config.actor_rollout_ref.rollout.server.start_timeout_s
        deadline = time.monotonic() + limit_s
        well: list[str] = []
        while time.monotonic() < deadline:
            well = self._well()
            running = [server.address for server in self._servers if server.process and server.exit_code() is None]
            if len(well) == len(running):
                break
            time.sleep(_POLL_S)
        if not well:
            self.check()
            raise EngineTimeout(f"no engine is healthy within {limit_s:g} s: {', '.join(self.addresses)}")
        return well

    def _wait_until_healthy(self, addresses: list[str], limit_s: float) -> Self:
        deadline = time.monotonic() + limit_s
        with httpx.Client(timeout=HEALTH_TIMEOUT_S, trust_env=False) as client:
            for address in addresses:
                while not (_healthy(client, address) and self._is_ours(address)):
                    self.check()
                    if time.monotonic() > deadline:
                        raise EngineTimeout(
                            f"no healthy engine at {address} within {limit_s:g} s{self._log_of(address)}"
                        )
                    time.sleep(_POLL_S)
        for server in self._servers:
            server.was_well = True
        return self

    def _is_ours(self, address: str) -> bool:
        """Whether the process that answers is the server that was started: another may have taken its port.

        Raises:
            EngineUnavailable: another process answers.
        """
        for server in self._servers:
            if (
                server.address == address
                and server.process is not None
                and not _listens(server.process.pid, server.port)
            ):
                raise _PortLostError(f"port {server.port} on {server.host} was taken by another process")
        return True

    def _log_of(self, address: str) -> str:
        for server in self._servers:
            if server.address == address:
                return f". The end of {server.log}:\n{server.log_tail()}"
        return ": is it running?"


def _healthy(client: httpx.Client, address: str, path: str = "/health") -> bool:
    try:
        return client.get(address + path).status_code == 200
    except httpx.HTTPError:
        return False


def _listens(pid: int, port: int) -> bool:
    """Whether a process or one of its descendants listens on a port."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        connections = [connection for process in family for connection in process.net_connections("tcp")]
    except psutil.NoSuchProcess:
        return False
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)


def _close(process: subprocess.Popen[bytes] | None) -> None:
    """Wait for a guard that was told to stop; kill it if it does not end (its command then dies with it)."""
    if process is None:
        return
    process.send_signal(signal.SIGCONT)  # in case it was stopped together with its server
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(GRACE_S + 5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _default_log_dir(config: RunConfig) -> Path:
    folder = config.trainer.default_local_dir
    return Path(tempfile.mkdtemp(prefix="agentrl-engines-")) if "${" in folder else Path(folder) / "logs"


def _ports(host: str, first: int | None, count: int) -> list[int]:
    """Ports of the servers: `first` and those after it, which must be free, or any free ones.

    Raises:
        EngineUnavailable: a port is taken.
    """
    # All sockets stay open until every port is known: otherwise the system could hand out the same free port twice.
    sockets = [socket.socket() for _ in range(count)]
    try:
        for offset, listener in enumerate(sockets):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, 0 if first is None else first + offset))
        return [listener.getsockname()[1] for listener in sockets]
    except OSError as error:
        raise EngineUnavailable(
            f"port {(first or 0) + offset} on {host} cannot be used for an engine ({error.strerror}): "
            "set actor_rollout_ref.rollout.server.port to a free port, or to null for any free one"
        ) from error
    finally:
        for listener in sockets:
            listener.close()
