"""`init_ray`: starts a private Ray cluster, fast, quiet and leaving nothing behind; or connects to an existing one."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from agentrl.errors import ConfigError, InfrastructureError
from agentrl.leftovers import owned_prefix, remove_leftovers

logger = logging.getLogger(__name__)

_LONGEST_SOCKET = 107
"""Bytes of the path of a socket, at most; Ray's lie in its folder."""
_SOCKET = "12345678/session_2026-11-29_15-48-28_916545_{}/sockets/plasma_store"
"""The longest of them, from the random part of the folder's name on; with the process id."""
_KIND = "agentrl-ray"
_CONNECT_TIMEOUT_S = 10.0

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "1",
    # Failed calls whose results nobody fetched belong to an error that is already reported.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    # Torch's profiler says on stderr that it starts and stops.
    "KINETO_LOG_LEVEL": "99",
}
_TRIES = 4
"""Starts of a private cluster: its processes give each other half a minute, which is in their code."""
_PAUSE_S = 0.2
_TIMELINE_WAIT_S = 10.0
"""How long the calls of a run may take to reach the timeline when it ends."""
_TIMELINE_INTERVAL_MS = "200"
"""How often processes report their calls for the timeline; Ray's own 1,000 would lose the last ones of a run."""


@dataclass(slots=True)
class RaySession:
    """What `init_ray` started; `shutdown` ends nothing else."""

    private: bool
    """True when this session started its own cluster."""
    owns_connection: bool
    folder: str | None = None
    timeline: str | None = None
    """File for the trace of all calls, written before the end."""

    def shutdown(self) -> None:
        """Disconnect; a private cluster ends with all its processes, and its folder is deleted."""
        import ray

        if self.timeline is not None and ray.is_initialized():
            file, self.timeline = self.timeline, None
            write_timeline(file)
        if self.owns_connection:
            self.owns_connection = False
            ray.shutdown()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


def init_ray(
    num_cpus: int | None = None,
    address: str | None = None,
    *,
    num_gpus: int | None = None,
    log_to_driver: bool = True,
    timeline: str | None = None,
) -> RaySession:
    """Connect to Ray; without an address, start a private cluster on this machine.

    Use it as a context manager, so that Ctrl-C and errors end the cluster too. If this process is already connected,
    that connection is used and not closed.

    Args:
        num_cpus: CPUs of a private cluster; None: all.
        address: `host:port` of a running cluster, or `auto`.
        num_gpus: GPUs of a private cluster; None: all.
        log_to_driver: show what workers write to stdout and stderr.
        timeline: file for a Chrome trace of all calls, written when the session ends.

    Raises:
        ConfigError: Ray is not installed, or `num_cpus` is given for a running cluster.
        InfrastructureError: no cluster at `address`, or the private one does not start.
    """
    for key, value in _QUIET.items():
        os.environ.setdefault(key, value)
    if timeline is not None:
        os.environ.setdefault("RAY_task_events_report_interval_ms", _TIMELINE_INTERVAL_MS)
    ray = _import_ray()
    if ray.is_initialized():
        return RaySession(private=False, owns_connection=False, timeline=timeline)
    if address is not None:
        if num_cpus is not None:
            raise ConfigError("ray_init.num_cpus is only for a private cluster: do not set it with ray_init.address")
        require_listener(address)
        _start(ray, address=address, log_to_driver=log_to_driver)
        return RaySession(private=False, owns_connection=True, timeline=timeline)
    if named := os.environ.get("RAY_ADDRESS"):  # `ray job submit` and KubeRay set it
        logger.warning(
            "RAY_ADDRESS is %s, but without ray_init.address the run starts a private Ray on this machine: set "
            "ray_init.address=auto to run on that cluster",
            named,
        )
    folder = _start_private(ray, num_cpus=num_cpus, num_gpus=num_gpus, log_to_driver=log_to_driver)
    return RaySession(private=True, owns_connection=True, folder=folder, timeline=timeline)


def write_timeline(file: str) -> None:
    """Write the trace of all calls of the cluster. That it cannot be written is only told: the run is over."""
    import ray

    try:
        deadline = time.monotonic() + _TIMELINE_WAIT_S
        while not (calls := ray.timeline()) and time.monotonic() < deadline:
            pass  # it waits a second itself
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(json.dumps(calls), encoding="utf-8")
    except (OSError, RuntimeError, ray.exceptions.RayError) as error:
        logger.warning("ray_init.timeline_json_file: Ray's timeline is not written to %s: %s", file, error)


def require_ray() -> None:
    """Raise a readable error unless this process is connected to Ray."""
    if not _import_ray().is_initialized():
        raise ConfigError("not connected to Ray: call agentrl.single_controller.ray_runtime.init_ray first")


def _import_ray() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray
    except ImportError as error:
        raise ConfigError("Ray is not installed: pip install 'ray[default]', or set trainer.backend=local") from error
    return ray


def require_listener(address: str) -> None:
    """Fail within seconds where nobody listens at `host:port` or `ray://host:port`: Ray itself would retry for minutes.

    Raises:
        InfrastructureError: nobody does.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise InfrastructureError(f"no Ray cluster at ray_init.address={address}: {error}") from error


def _start_private(ray: Any, **options: Any) -> str:
    """A cluster on this machine; returns its folder. Tried again where Ray gave itself too little time."""
    for _ in range(_TRIES - 1):
        try:
            return _try_private(ray, **options)
        except InfrastructureError as error:
            if isinstance(error.__cause__, ValueError):  # an option is wrong
                raise
            logger.warning("%s; it is tried once more", error)
    return _try_private(ray, **options)


def _try_private(ray: Any, **options: Any) -> str:
    folder = _temp_dir()
    try:
        with _calm():
            _start(ray, address="local", include_dashboard=False, _temp_dir=folder, **options)
    except BaseException:
        ray.shutdown()
        _kill_those_of(folder)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


@contextmanager
def _calm() -> Iterator[None]:
    """Ray asks without a pause whether its node has reported, and so keeps a core from the node that is to report."""
    try:
        from ray._private import services

        ask = services.get_node
    except (ImportError, AttributeError):  # another Ray, which waits in another way
        yield
        return

    def ask_calmly(*args: Any) -> Any:
        try:
            return ask(*args)
        except RuntimeError:
            time.sleep(_PAUSE_S)
            raise

    services.get_node = ask_calmly
    try:
        yield
    finally:
        services.get_node = ask


def _kill_those_of(folder: str) -> None:
    """End what a start that failed has left: it would go on starting, beside the next."""
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if any(folder in part for part in child.cmdline()):
                for each in (*child.children(recursive=True), child):
                    with suppress(psutil.Error):
                        each.kill()


def _start(ray: Any, **options: Any) -> None:
    try:
        with warnings.catch_warnings(), _python_path():
            warnings.simplefilter("ignore")
            ray.init(logging_level=logging.ERROR, configure_logging=True, **options)
    except Exception as error:  # Ray raises just that where one of its processes does not report within 30 s
        raise InfrastructureError(f"Ray did not start ({options.get('address')}): {error}") from error


@contextmanager
def _python_path() -> Iterator[None]:
    """Let the processes of a private cluster import what this process can import: plug-ins beside a script, tests."""
    before = os.environ.get("PYTHONPATH")
    own = [os.path.abspath(entry) for entry in sys.path if not entry.startswith((sys.prefix, sys.base_prefix))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(own))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _temp_dir() -> str:
    """A new folder with this process's id in its name; folders of processes that have ended are removed.

    It is in /tmp where $TMPDIR is too long for sockets, such as `/scratch/local/4711.0` of a batch system.
    """
    base, prefix = Path(tempfile.gettempdir()), owned_prefix(_KIND)
    if len(os.fsencode(base / f"{prefix}{_SOCKET.format(os.getpid())}")) > _LONGEST_SOCKET:
        base = Path("/tmp")
    remove_leftovers(base, _KIND)
    return tempfile.mkdtemp(prefix=prefix, dir=base)
