"""EngineHost: one inference server on one machine: its port, GPUs and log; started, watched, restarted, stopped.

The same object runs in the driver (`local_hosts`) and in a Ray actor on the machine that has the GPUs (`ray_hosts`).
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError, EngineUnavailable
from agentrl.inference.client import HEALTH_TIMEOUT_S
from agentrl.inference.clients import client_class
from agentrl.inference.exits import how_it_ended
from agentrl.inference.guard import GRACE_S
from agentrl.inference.health import is_well_now, quick_client
from agentrl.inference.picture_requests import KEEPS_IDS
from agentrl.inference.sglang import launch_command, resolve_engine

logger = logging.getLogger(__name__)

PORT_TRIES = 5
"""How often a free port is chosen: another process may take one before the server listens on it."""
MOST_FAILED_STARTS = 3
"""A server that was restarted so often in a row without ever becoming healthy stays out."""
BACKOFF_S = 1.0
"""Pause before a server that failed to start is started again: 1, 2, 4 s."""
_LOG_TAIL_LINES = 20
_LOOPBACK = ("127.0.0.1", "localhost")
_EVERYWHERE = ("0.0.0.0", "::")

State = Literal["well", "starting", "ended", "silent", "out"]
"""Healthy; not yet (or waiting for its next start); its process has ended; it gives no answer; given up for good."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where an engine is.

    Attributes:
        index: its number; its seed and log are named by it.
        gpus: for CUDA_VISIBLE_DEVICES, such as ("2", "3"); None: what this process sees.
        machine: this machine's address where others must reach the server; None: the run is on one machine.
    """

    index: int
    gpus: tuple[str, ...] | None = None
    machine: str | None = None

    def addresses(self, host: str) -> tuple[str, str]:
        """What the server listens on, and what others call it, for this `rollout.server.host`."""
        if self.machine is None:
            return host, "127.0.0.1" if host in _EVERYWHERE else host
        if host in _LOOPBACK:  # the default, which no other machine could reach
            return self.machine, self.machine
        return host, self.machine if host in _EVERYWHERE else host


@dataclass(frozen=True, slots=True)
class HostReport:
    """What a host says of its server.

    Attributes:
        index: number of the engine.
        address: `http://host:port`.
        state: see `State`.
        restarts: how often it was restarted.
        trouble: why it was restarted last, or has ended, with the end of its log; empty: nothing happened.
        news: lines that the run has not been told.
    """

    index: int
    address: str
    state: State
    restarts: int = 0
    trouble: str = ""
    news: tuple[str, ...] = ()


class EngineHost:
    """One server on this machine.

    Args:
        config: the run; its device is settled.
        seat: which server this is.
        log: file for what it writes.
    """

    def __init__(self, config: RunConfig, seat: Seat, log: Path) -> None:
        server = config.actor_rollout_ref.rollout.server
        self._config, self._seat, self._log = config, seat, log
        self._listen, self._advertised = seat.addresses(server.host)
        self._first_port = None if server.port is None else server.port + seat.index
        self._start_timeout_s = server.start_timeout_s
        self._alive_path = client_class(config).alive_path
        timeout_s = min(HEALTH_TIMEOUT_S, server.request_timeout_s)
        self._client = quick_client(timeout_s)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()  # of what starts and stops processes: a stop may come while another call waits
        self._stopped = self._out = self._was_well = False
        self._port = 0
        self._reserved: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._spawned_at = self._next_start = 0.0
        self._port_tries = self._failed_starts = self._restarts = 0
        self._trouble = ""
        self._news: list[str] = []

    @property
    def address(self) -> str:
        """`http://host:port`, as the run calls it."""
        return f"http://{self._advertised}:{self._port}"

    def start(self) -> HostReport:
        """Start the server.

        Raises:
            ConfigError: the engine is not installed on this machine.
            EngineUnavailable: the port that it shall have is taken.
        """
        try:
            resolve_engine(self._config)
        except ConfigError as error:
            where = "" if self._seat.machine is None else f" (on machine {self._seat.machine})"
            raise ConfigError([problem + where for problem in error.problems]) from None
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log.unlink(missing_ok=True)
        self._take_port()
        self._spawn()
        return self._report("starting")

    def look(self) -> HostReport:
        """See how the server is. Only a port that was lost to another process is answered with a new start."""
        if self._out:
            return self._report("out")
        process = self._process
        if process is None:  # it waits for its next start
            return self._report("ended" if self._stopped else "starting")
        if process.poll() is not None:
            return self._report("starting") if self._found_other_port() else self._ended()
        # `/health` alone would not tell that a server takes requests but answers none.
        if self._answers(self._alive_path if self._was_well else "/health"):
            if self._was_well or _listens(process.pid, self._port):
                self._was_well, self._failed_starts = True, 0
                return self._report("well")
            if process.poll() is None and not self._found_other_port(stranger=True):
                self._trouble = f"port {self._port} on {self._listen} was taken by another process"
                return self._report("ended")
        late = self._was_well or time.monotonic() - self._spawned_at >= self._start_timeout_s
        return self._report("silent" if late and self._process is not None else "starting")

    def tend(self) -> HostReport:
        """As `look`, and start the server again if it has ended or hangs; one that never starts is given up."""
        if self._process is None and not self._out and not self._stopped:
            return self._start_again() if time.monotonic() >= self._next_start else self._report("starting")
        report = self.look()
        if report.state not in ("ended", "silent") or self._stopped:
            return report
        if report.state == "silent":
            self._trouble = f"the engine at {self.address} gives no answer to its health check in {self._timeout_s:g} s"
        return self._restart()

    def _start_again(self) -> HostReport:
        """Start the server whose pause is over. Its port may have been taken when it should have begun, or still be."""
        try:
            if not self._port:
                self._take_port()
        except EngineUnavailable as error:
            self._trouble = str(error)
            return self._restart()
        self._spawn()
        return self._report("starting")

    def _restart(self) -> HostReport:
        """End the server; it starts again at once if it was well, after 1, 2, 4 s if not, and then never more."""
        self._failed_starts += not self._was_well
        self._close()
        if self._failed_starts > MOST_FAILED_STARTS:
            self._out = True
            self._news.append(f"{self._trouble}\nIt does not start: the run goes on without it.")
            return self._report("out")
        pause_s = BACKOFF_S * 2 ** (self._failed_starts - 1) if self._failed_starts else 0.0
        self._news.append(f"{self._trouble}\nRestarting it{f' in {pause_s:g} s' if pause_s else ''}.")
        self._restarts += 1
        self._next_start = time.monotonic() + pause_s
        if not self._failed_starts:
            self._spawn()
        return self._report("starting")

    def drop(self) -> None:
        """End the server, which the run cannot use; the next `tend` starts it again."""
        if self._process is not None:
            self._close()
            self._restarts += 1

    def log_end(self) -> str:
        """The name of the server's log and its last lines."""
        return f"The end of {self._log}:\n{self._log_tail()}"

    def stop(self) -> None:
        """Stop the server. Leaves no process behind; may be called twice."""
        self._stopped = True
        self._close()
        with self._lock:
            if self._reserved is not None:
                self._reserved.close()
                self._reserved = None
        self._client.close()

    def _take_port(self) -> None:
        """Choose a port and keep others from being given it.

        The socket stays bound, without listening, as long as this object lives: the system then gives the port to
        nobody else, not even while the server is restarted, but lets a server with SO_REUSEADDR listen on it (Linux).

        Raises:
            EngineUnavailable: the wanted port is taken.
        """
        if self._reserved is not None:
            self._reserved.close()
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._reserved.bind((self._listen, self._first_port or 0))
        except OSError as error:
            self._reserved.close()
            key, wanted = "port", "a free port, or to null for any free one"
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                key, wanted = "host", "an address of the machine, or to 0.0.0.0"
            raise EngineUnavailable(
                f"port {self._first_port or 0} on {self._listen} cannot be used for an engine ({error.strerror}): "
                f"set actor_rollout_ref.rollout.server.{key} to {wanted}"
            ) from error
        self._port = self._reserved.getsockname()[1]
        if sys.platform != "linux":
            self._reserved.close()

    def _found_other_port(self, *, stranger: bool = False) -> bool:
        """Whether the server lost its port to another process and was started again on another one."""
        lost = stranger or "already in use" in self._log_tail()
        if not lost or self._stopped or self._first_port is not None or self._port_tries >= PORT_TRIES - 1:
            return False
        self._port_tries += 1
        self._news.append(f"port {self._port} on {self._listen} was taken by another process; trying other ports")
        self._close()
        self._log.unlink(missing_ok=True)
        self._take_port()
        self._spawn()
        return True

    def _spawn(self) -> None:
        command = launch_command(self._config, self._seat.index, self._listen, self._port)
        guarded = [sys.executable, "-m", "agentrl.inference.guard", *command]
        with self._lock, self._log.open("ab") as log:
            if self._stopped:
                return
            self._process = subprocess.Popen(
                guarded,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=self._environment(),
            )
        self._spawned_at, self._was_well = time.monotonic(), False

    def _environment(self) -> dict[str, str]:
        gpus = {} if self._seat.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(self._seat.gpus)}
        return {**KEEPS_IDS, **os.environ, **gpus}

    def _answers(self, path: str) -> bool:
        return is_well_now(self._client, self._own_address, path)

    @property
    def _own_address(self) -> str:
        """As this machine itself reaches the server."""
        host = "127.0.0.1" if self._listen in _EVERYWHERE else self._listen
        return f"http://{host}:{self._port}"

    def _ended(self) -> HostReport:
        code = None if self._process is None else self._process.poll()
        self._trouble = f"the engine at {self.address} {how_it_ended(code)}. {self.log_end()}"
        return self._report("ended")

    def _report(self, state: State) -> HostReport:
        news, self._news = tuple(self._news), []
        return HostReport(self._seat.index, self.address, state, self._restarts, self._trouble, news)

    def _log_tail(self) -> str:
        if not self._log.exists():
            return "(it wrote nothing)"
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:]) or "(it wrote nothing)"

    def _close(self) -> None:
        """End the server's guard, and the server with it; kill the guard if it does not end (the server dies too)."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        process.send_signal(signal.SIGCONT)  # in case it was stopped together with its server
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(GRACE_S + 5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listens(pid: int, port: int) -> bool:
    """Whether a process or one of its descendants listens on a port."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        connections = [connection for process in family for connection in process.net_connections("tcp")]
    except psutil.NoSuchProcess:
        return False
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)
