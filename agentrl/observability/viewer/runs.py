"""The runs that a viewer shows: each with its metrics, its configuration and the indexes of its dumps."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Literal

from agentrl.errors import UserInputError
from agentrl.observability.run_folder import (
    CONFIG_FILE,
    DUMP_KEYS,
    METRICS_FILE,
    Kind,
    MetricsLog,
    Row,
    RunFolder,
    differences,
    dump_files,
    find_runs,
    open_run,
)
from agentrl.observability.run_state import RunState, State
from agentrl.observability.tracker import without_secrets
from agentrl.observability.viewer import curves
from agentrl.observability.viewer.index import DumpIndex

DumpSet = Literal["train", "validation"]
_KINDS: dict[DumpSet, Kind] = {"train": "rollouts", "validation": "validation"}
_LOOK_S = 1.0
"""Between two looks at the folders of dumps."""
_FIRST_LOOK_S = 0.5
"""The first question waits so long for an index, which is enough for a small one."""
_ASKED_S = 60.0
"""A folder that no page has asked for so long is not looked at."""
_NEW_RUNS_S = 2.0
_RECENT = 1_000_000
"""Bytes of metrics that a line in the list of runs is made from."""
_ODD = re.compile(r"[^A-Za-z0-9_-]+")


class ViewedRun:
    """One run.

    Args:
        folder: of the run, or of dumps that are no run's.
        address: its name in addresses.
        name: its name for a reader.
        watcher: keeps its indexes up to date.
    """

    def __init__(self, folder: RunFolder, address: str, name: str, watcher: Watcher) -> None:
        self._folder, self._written = folder, _modified(folder.path / CONFIG_FILE)
        self.address = address
        self.name = name
        self._watcher = watcher
        self._lock = Lock()
        self._metrics, self._recent = (MetricsLog(folder.path / METRICS_FILE) for _ in range(2))
        self._indexes: dict[DumpSet, DumpIndex] = {}

    @property
    def folder(self) -> RunFolder:
        """The run's folder; read again when another configuration is written to it."""
        written = _modified(self._folder.path / CONFIG_FILE)
        if written != self._written:
            self._folder, self._written = RunFolder(self._folder.path), written
        return self._folder

    def rows(self) -> tuple[list[Row], str | None]:
        """The metrics so far, and why there are no more of them."""
        return self._polled(self._metrics, None)

    def _polled(self, log: MetricsLog, most_bytes: int | None) -> tuple[list[Row], str | None]:
        with self._lock:
            problem = None
            if log.file.is_file():
                try:
                    log.poll(most_bytes)
                except UserInputError as error:
                    problem = str(error)
            else:
                problem = f"{self._folder.path} has no metrics: trainer.logger names no jsonl, or no step is finished"
            return list(log.rows), problem

    def config(self) -> dict[str, Any]:
        """The resolved configuration, its HTTP headers blanked.

        Raises:
            UserInputError: the file is damaged.
        """
        shown = without_secrets(dict(self.folder.config))
        return dict(shown)

    def overview(self) -> dict[str, Any]:
        """The run in the list of runs."""
        rows, problem = self._polled(self._recent, _RECENT)
        try:
            state = self.folder.state(rows)
        except UserInputError as error:
            state, problem = RunState(State.UNKNOWN, 0, None, None, None), str(error)
        return {
            "id": self.address,
            "path": str(self.folder.path),
            "name": self.name,
            "state": state.state.value,
            "error": state.error,
            "resumed": state.resumed,
            "step": state.step,
            "total_steps": state.total_steps,
            "began": state.began,
            "updated": state.updated,
            "reward": curves.last_value(rows, curves.REWARD),
            **{f"has_{kind}": self._dumps(kind) is not None for kind in _KINDS.values()},
            "problem": problem,
        }

    def events(self) -> list[dict[str, Any]]:
        """What happened in the run, in the order of its steps."""
        rows, _ = self.rows()
        run = self.overview()
        events = curves.events_of(rows, run["resumed"])
        if run["state"] in (State.FAILED, State.KILLED, State.STOPPED):
            last = sum(row.get(curves.STEP_TIME, 0.0) for row in rows)
            text = f"{run['state']}{': ' + run['error'] if run['error'] else ''}"
            events.append({"step": run["step"], "time": last, "kind": "end", "text": text})
        return events

    def index(self, kind: DumpSet) -> DumpIndex | None:
        """The index of a set of dumps; None: the run writes none (see `why_none`)."""
        with self._lock:
            is_new = kind not in self._indexes
            if is_new:
                folder = self._dumps(_KINDS[kind])
                if folder is None:
                    return None
                self._indexes[kind] = DumpIndex(folder)
            index = self._indexes[kind]
        self._watcher.watch(index)
        if is_new:
            index.wait(_FIRST_LOOK_S)
        return index

    def why_none(self, kind: DumpSet) -> str:
        """What to do for dumps of a kind."""
        key = f"trainer.{DUMP_KEYS[_KINDS[kind]]}"
        if isinstance(self._setting(key), str):
            return f"no dumps are written yet ({key} is set)"
        return f"this run writes no dumps of {'training' if kind == 'train' else 'validation'}: set {key} to a folder"

    def close(self) -> None:
        """Close the indexes."""
        for index in self._indexes.values():
            index.close()

    def _dumps(self, kind: Kind) -> Path | None:
        try:
            folder = self.folder.dump_folder(kind)
        except UserInputError:
            place = self.folder.path / kind
            folder = place if place.is_dir() else None
        return self.folder.path if folder is None and kind == "rollouts" and _is_dumps(self.folder.path) else folder

    def _setting(self, key: str) -> Any:
        try:
            return self.folder.setting(key)
        except UserInputError:
            return None


class Watcher:
    """Keeps indexes up to date, in a thread of its own, as long as somebody asks for them."""

    def __init__(self) -> None:
        self._asked: dict[DumpIndex, float] = {}
        self._stop, self._wake = Event(), Event()
        self._thread = Thread(target=self._run, name="viewer-index", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def watch(self, index: DumpIndex) -> None:
        """Somebody asks for an index: it is made, or looked at again."""
        is_new = time.monotonic() - self._asked.get(index, 0.0) > _ASKED_S or not index.complete
        self._asked[index] = time.monotonic()
        if is_new:
            self._wake.set()

    def stop(self) -> None:
        """End, after the piece that is being written."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            began, changed = time.monotonic(), False
            for index, asked in list(self._asked.items()):
                if began - asked < _ASKED_S:
                    before = index.generation
                    index.refresh(self._stop.is_set)
                    changed |= index.generation != before
            # Thousands of files on a slow disk take long to look at: that must not keep a core busy.
            took = time.monotonic() - began
            self._wake.wait(_LOOK_S if changed else min(max(_LOOK_S, 10 * took), _ASKED_S / 2))


class RunSet:
    """All runs of a viewer.

    Args:
        paths: run folders, checkpoints in them, folders of dumps, or folders of runs, in which new runs are found
            while the viewer runs; none: `outputs`.

    Raises:
        UserInputError: a path is none of these.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.watcher = Watcher()
        self._lock = Lock()
        self._runs: dict[Path, ViewedRun] = {}
        self._addresses: dict[str, ViewedRun] = {}
        self._places: list[Path] = []
        self._looked = 0.0
        for path in paths or [Path("outputs")]:
            self._add_path(path)
        if not self._runs:
            where = ", ".join(str(place) for place in self._places)
            raise UserInputError(f"{where}: got no run in it, wanted run folders (trainer.default_local_dir)")

    def all(self) -> list[ViewedRun]:
        """The runs, in the order in which they were found."""
        with self._lock:
            if time.monotonic() - self._looked > _NEW_RUNS_S:
                self._looked = time.monotonic()
                for place in self._places:
                    if place.is_dir():
                        self._add_all(place)
            return list(self._runs.values())

    def named(self, address: str) -> ViewedRun | None:
        """The run of an address."""
        found = self._addresses.get(address)
        if found is None:
            self.all()
            found = self._addresses.get(address)
        return found

    def close(self) -> None:
        """Stop the thread and close the indexes."""
        self.watcher.stop()
        for run in self._runs.values():
            run.close()

    def _add_path(self, path: Path) -> None:
        try:
            run = open_run(path)
            self._add(run, _shown(run.path))
        except UserInputError:
            if not path.is_dir():
                raise
            if _is_dumps(path):
                self._add(RunFolder(path), _shown(path))
                return
            self._places.append(path)
            before = len(self._runs)
            self._add_all(path)
            if len(self._runs) == before and path != Path("outputs"):
                raise

    def _add_all(self, place: Path) -> None:
        for run in find_runs(place):
            self._add(run, run.path.relative_to(place) if run.path != place else Path(place.name))

    def _add(self, run: RunFolder, shown: Path) -> None:
        key = run.path.resolve()
        if key in self._runs:
            return
        name = str(shown).strip("./") or run.name
        address, count = (base := _ODD.sub("-", name).strip("-") or "run"), 1
        while address in self._addresses:
            count += 1
            address = f"{base}-{count}"
        self._runs[key] = self._addresses[address] = ViewedRun(run, address, name, self.watcher)


def config_differences(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The keys in which configurations differ, each with its value in all of them; a missing key is null."""
    found: dict[str, list[Any]] = {}
    for place, other in enumerate(configs):
        for key, first, value in differences(configs[0], other):
            found.setdefault(key, [first] * len(configs))[place] = value
    return [{"key": key, "values": found[key]} for key in sorted(found)]


def _modified(file: Path) -> int | None:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return None


def _shown(path: Path) -> Path:
    """A path as a reader knows it: of a long one its end."""
    return path if not path.is_absolute() else Path(*path.parts[-2:])


def _is_dumps(folder: Path) -> bool:
    return folder.is_dir() and bool(dump_files(folder))
