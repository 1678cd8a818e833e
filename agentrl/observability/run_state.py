"""How a run stands, for those who look at its folder from outside: `run_state.json`.

A run writes it when it begins, after each step and when it ends, however it ends; one that was killed cannot, which a
reader sees by its process::

    {"state": "running", "step": 12, "total_steps": 100, "pid": 4711, ...}   and process 4711 is gone -> killed
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import NoneType, TracebackType
from typing import Self

import psutil

from agentrl.errors import AgentRLError, UserInputError, text_of
from agentrl.observability.said_once import say_once
from agentrl.observability.tracker import RunInfo, Tracker

logger = logging.getLogger(__name__)
STATE_FILE = "run_state.json"
NO_NEWS_S = 3600.0
"""A run on another machine, whose process cannot be looked up, counts as running for this long after its last news."""


class State(StrEnum):
    """How a run stands."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    """By Ctrl-C or SIGTERM."""
    FAILED = "failed"
    """It ended with an error."""
    KILLED = "killed"
    """Its process is gone, and it had no time to say why."""
    UNKNOWN = "unknown"
    """Nothing in its folder says so."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The content of the file. Times are seconds since 1970."""

    state: State
    step: int
    """The last finished step, counted over resumed runs."""
    total_steps: int | None
    began: float | None
    updated: float | None
    error: str | None = None
    """Why it failed."""
    pid: int | None = None
    process_began: float | None = None
    """Tells the process from a later one of the same number."""
    machine: str | None = None
    resumed: tuple[int, ...] = ()
    """The steps after which the run was resumed, those of steps that it went back behind left out."""


class RunStateFile(Tracker):
    """Writes the file while the run goes on. Enter it before the run starts anything.

    Args:
        folder: the run folder.
        total_steps: of the run.
    """

    def __init__(self, folder: Path, total_steps: int) -> None:
        self._folder = folder
        began, pid = time.time(), os.getpid()
        born = psutil.Process(pid).create_time()
        self._state = RunState(
            State.RUNNING, 0, total_steps, began, began, None, pid, born, _machine(), _resumed(folder)
        )

    def __enter__(self) -> Self:
        self._write(began=time.time())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopped = isinstance(error, KeyboardInterrupt)
        ended = State.FINISHED if error is None else State.STOPPED if stopped else State.FAILED
        own = "" if isinstance(error, AgentRLError) else f"{type(error).__name__}: "
        self._write(state=ended, error=None if error is None or stopped else own + text_of(error))

    def on_start(self, run: RunInfo) -> None:
        """The step that it resumes from is known."""
        after = run.resumed_from
        resumed = () if after is None else (*(step for step in self._state.resumed if step <= after), after)
        self._write(step=after or 0, resumed=resumed)

    def log(self, metrics: dict[str, float], step: int) -> None:
        """One more step is finished."""
        self._write(step=step)

    def _write(self, **news: object) -> None:
        self._state = replace(self._state, updated=time.time(), **news)  # type: ignore[arg-type]
        part = self._folder / f".{STATE_FILE}.part"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(asdict(self._state)), encoding="utf-8")
            os.replace(part, self._folder / STATE_FILE)
        except OSError as error:  # no run ends for it
            say_once(logger, logging.WARNING, f"cannot write {self._folder / STATE_FILE}: {error.strerror or error}")


def read_state(folder: Path) -> RunState | None:
    """The state of a run; None: it wrote none, as runs of earlier versions.

    Raises:
        UserInputError: the file is damaged.
    """
    file = folder / STATE_FILE
    try:
        found = {"resumed": (), **json.loads(file.read_text(encoding="utf-8"))}
        found |= {"state": State(found["state"]), "resumed": tuple(found["resumed"])}
        state = _checked(RunState(**found))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserInputError(f"{file} is not the state of a run ({type(error).__name__}: {error})") from error
    return replace(state, state=_seen(state)) if state.state is State.RUNNING else state


def _resumed(folder: Path) -> tuple[int, ...]:
    """After which steps a run of this folder was resumed so far; a file that cannot be read tells of none."""
    try:
        before = read_state(folder)
    except UserInputError:
        return ()
    return () if before is None else before.resumed


def _checked(state: RunState) -> RunState:
    """The state, if its fields are of their types.

    Raises:
        ValueError: one is not.
    """
    wanted: dict[str, tuple[type, ...]] = {
        "step": (int,),
        **dict.fromkeys(("total_steps", "pid"), (int, NoneType)),
        **dict.fromkeys(("began", "updated", "process_began"), (int, float, NoneType)),
        **dict.fromkeys(("error", "machine"), (str, NoneType)),
    }
    for name, types in wanted.items():
        value = getattr(state, name)
        if not isinstance(value, types):
            raise ValueError(f"got the {name} {value!r:.80}")
    if not all(type(step) is int for step in state.resumed):
        raise ValueError(f"got the steps {state.resumed!r:.80} in resumed")
    if state.pid is not None and state.pid < 0:
        raise ValueError(f"got the pid {state.pid}")
    return state


def _seen(state: RunState) -> State:
    """What a run that says `running` really is."""
    if state.machine != _machine():
        return State.RUNNING if time.time() - (state.updated or 0.0) < NO_NEWS_S else State.UNKNOWN
    try:
        born = psutil.Process(state.pid).create_time()
    except psutil.NoSuchProcess:
        return State.KILLED
    return State.RUNNING if abs(born - (state.process_began or 0.0)) < 2.0 else State.KILLED


def _machine() -> str:
    """The name of this machine, and of the space in which its process numbers count (a container has its own)."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{socket.gethostname()} {space}".strip()
