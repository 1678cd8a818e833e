"""Finds runs, and reads what their folders hold: state, configuration, metrics and where their dumps are.

::

    for run in find_runs(Path("outputs")):
        print(run.name, run.state().state, run.metrics().rows[-1:])
    run = open_run(Path("outputs/my_run"))          # or a checkpoint in it
    run.dumps("rollouts")                           # {1: .../rollouts/1.jsonl, 2: ...}
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from agentrl.errors import ConfigError, UserInputError
from agentrl.observability.run_state import STATE_FILE, RunState, State, read_state
from agentrl.yaml_reader import read_yaml

CONFIG_FILE = "config.yaml"
"""The resolved configuration in a run's folder."""
METRICS_FILE = "metrics.jsonl"
DEPTH = 4
"""Runs are looked for in this many levels of folders: `outputs/PROJECT/EXPERIMENT` has two."""
Kind = Literal["rollouts", "validation"]
DUMP_KEYS: dict[Kind, str] = {"rollouts": "rollout_data_dir", "validation": "validation_data_dir"}
"""Kind of dump -> the key under `trainer` that names its folder; the kind is also the folder's usual name."""
DUMP_SUFFIX = ".jsonl"
FAILED_SUFFIX = ".failed.jsonl"
"""`STEP.failed.jsonl`, beside the dump of a step, tells of its trajectories that failed."""
_RECENT = 1_000_000
_CHECKPOINT = "global_step_"
_WANTED = "a run folder (trainer.default_local_dir)"

Row = dict[str, float]


@dataclass(slots=True)
class MetricsLog:
    """The rows of a metrics file that may still grow."""

    file: Path
    rows: list[Row] = field(default_factory=list)
    """One per finished step, in the order of the file; `step` is the step."""
    _end: int = 0
    """The bytes that are read."""
    _last: bytes = b""
    """The last line of them: a run that resumes cuts the file and writes on, perhaps past the old end."""
    _lines: int = 0

    def poll(self, most_bytes: int | None = None) -> bool:
        """Read what is new. A last line that is not complete does not count yet.

        Args:
            most_bytes: skip the older part of what is more than this; line numbers in errors then begin there.

        Returns:
            Whether `rows` has changed.

        Raises:
            UserInputError: a line is not a row, or the file cannot be read.
        """
        try:
            with self.file.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if most_bytes is not None and size - self._end > most_bytes:
                    file.seek(size - most_bytes)
                    self._end, self._last = size - most_bytes + len(file.readline()), b""
                new = self._read(file.read, file.seek)
        except OSError as error:
            raise UserInputError(f"cannot read {self.file}: {error.strerror or error}") from error
        return new

    def _read(self, read: Callable[..., bytes], seek: Callable[[int], int]) -> bool:
        seek(self._end - len(self._last))
        changed = read(len(self._last)) != self._last
        if changed:
            self.rows, self._end, self._last, self._lines = [], 0, b"", 0
            seek(0)
        for line in read().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            self.rows.append(self._parse(line))
            self._lines += 1
            self._end, self._last, changed = self._end + len(line), line, True
        return changed

    def _parse(self, line: bytes) -> Row:
        try:
            row = {name: float(value) for name, value in json.loads(line).items()}
            int(row["step"])  # neither missing nor NaN
            return row
        except (ValueError, AttributeError, TypeError, KeyError, OverflowError) as error:
            got = line[:80].decode(errors="replace").strip()
            raise UserInputError(
                f"{self.file}, line {self._lines + 1}: got {got!r}, wanted a JSON object of numbers with a step"
            ) from error


@dataclass(frozen=True)
class RunFolder:
    """One run. Nothing is read before it is asked for."""

    path: Path

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.resolve().name

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration; empty where the folder holds none.

        Raises:
            ConfigError: the file is damaged.
        """
        file = self.path / CONFIG_FILE
        tree = read_yaml(file) if file.is_file() else {}
        if not isinstance(tree, dict):
            raise ConfigError(f"{file}: got {type(tree).__name__}, wanted the configuration of a run")
        return tree

    def setting(self, key: str) -> Any:
        """The value of a dotted key; None where the configuration has no such key."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def metrics(self) -> MetricsLog:
        """The metrics so far; no rows where the run writes none (`trainer.logger` without jsonl).

        Raises:
            UserInputError: the file is damaged.
        """
        log = MetricsLog(self.path / METRICS_FILE)
        if log.file.is_file():
            log.poll()
        return log

    def recent_metrics(self) -> list[Row]:
        """The newest rows alone, up to a megabyte of them: enough for a line about the run.

        Raises:
            UserInputError: the file is damaged.
        """
        log = MetricsLog(self.path / METRICS_FILE)
        if log.file.is_file():
            log.poll(most_bytes=_RECENT)
        return log.rows

    def state(self, rows: Sequence[Row] | None = None) -> RunState:
        """How the run stands; one of an earlier version, which wrote no state, is judged by its metrics.

        Args:
            rows: its newest metrics, if they are read already.

        Raises:
            UserInputError: a file is damaged.
        """
        told = read_state(self.path)
        if told is not None:
            return told
        rows = self.recent_metrics() if rows is None else rows
        step, total = int(rows[-1].get("step", 0)) if rows else 0, self.setting("trainer.total_training_steps")
        total = total if isinstance(total, int) and total > 0 else None
        ended = State.FINISHED if total is not None and step >= total else State.UNKNOWN
        return RunState(ended, step, total, *self._times())

    def dump_folder(self, kind: Kind) -> Path | None:
        """Where the run dumps conversations; None: nowhere.

        A folder that has moved with its run, from another machine perhaps, is found beside it.
        """
        configured, own = self.setting(f"trainer.{DUMP_KEYS[kind]}"), self.setting("trainer.default_local_dir")
        places = [self.path / kind]
        if isinstance(configured, str):
            # A copy of a run has its dumps beside it, though its configuration names those of the original.
            given = Path(configured)
            within = isinstance(own, str) and given.is_relative_to(own)
            places = [self.path / given.relative_to(own) if within else given, *places]
        return next((place for place in places if place.is_dir()), None)

    def dumps(self, kind: Kind) -> dict[int, Path]:
        """The dump of each step, oldest first."""
        folder = self.dump_folder(kind)
        return {} if folder is None else dump_files(folder)

    def _times(self) -> tuple[float | None, float | None]:
        """When the run began and was last heard of, by its files."""
        files = [self.path / CONFIG_FILE, self.path / METRICS_FILE]
        known = [file.stat().st_mtime for file in files if file.is_file()]
        return (min(known), max(known)) if known else (None, None)


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """The dotted keys in which two configurations differ, with both values; None where one has no such key."""
    flat_a, flat_b = dict(_leaves(a)), dict(_leaves(b))
    keys = dict.fromkeys([*flat_a, *flat_b])
    return [(key, flat_a.get(key), flat_b.get(key)) for key in keys if flat_a.get(key) != flat_b.get(key)]


def _leaves(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def dump_files(folder: Path, suffix: str = DUMP_SUFFIX) -> dict[int, Path]:
    """The files `STEP.jsonl` of a folder by step, oldest first; with `FAILED_SUFFIX` those of what failed."""
    named = ((file.name.removesuffix(suffix), file) for file in folder.glob(f"*{suffix}"))
    return dict(sorted((int(step), file) for step, file in named if step.isdecimal()))


def is_run(folder: Path) -> bool:
    """Whether a run has written here."""
    if (folder / METRICS_FILE).is_file() or (folder / STATE_FILE).is_file():
        return True
    # A run that keeps no metrics has its configuration; a `config.yaml` alone may be anybody's.
    return (folder / CONFIG_FILE).is_file() and any((folder / name).is_dir() for name in ("logs", *DUMP_KEYS))


def find_runs(place: Path) -> list[RunFolder]:
    """The runs in a folder and its folders, itself included, in the order of their paths.

    Raises:
        UserInputError: the folder does not exist, or cannot be read.
    """
    try:
        os.listdir(place)
    except OSError as error:
        raise UserInputError(f"{place}: {error.strerror or error}, wanted a folder of runs") from error
    return [RunFolder(folder) for folder in _runs_in(place, DEPTH)]


def _runs_in(folder: Path, depth: int) -> Iterator[Path]:
    if is_run(folder):
        yield folder
        return
    if depth == 0:
        return
    try:
        inside = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError:  # one that this user may not read holds no run of theirs
        return
    for name in inside:
        yield from _runs_in(Path(name), depth - 1)


def open_run(path: Path) -> RunFolder:
    """The run of a folder, or of a checkpoint in it.

    Raises:
        UserInputError: says what was found instead.
    """
    for folder in (path, path.parent) if path.name.startswith(_CHECKPOINT) else (path,):
        if is_run(folder) or (folder / CONFIG_FILE).is_file():
            return RunFolder(folder)
    if not path.exists():
        raise UserInputError(f"{path} does not exist: wanted {_WANTED}")
    if not path.is_dir():
        raise UserInputError(f"{path} is a file: wanted {_WANTED}")
    inside = [str(run.path) for run in find_runs(path)]
    hint = f" Did you mean {', '.join(inside[:3])}?" if inside else ""
    raise UserInputError(f"{path} is not a run folder: it holds no {METRICS_FILE}.{hint}")
