"""Results of tool calls on disk: `record` keeps each real result, `replay` answers with them and calls no service.

The key of a result is its trajectory (split, step, row, rollout), the tool, its arguments, the row's `execute_kwargs`
and how often the same call was made before in the trajectory, so that a tool with state replays in order.

Every worker appends to its own file, one whole line per result, so that workers never disturb each other and a killed
run loses at most the line that it was writing. Files are read in the order in which they were begun; of two results of
the same call the later one counts (the trajectory was repeated, or the run resumed).
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from agentrl.errors import ConfigError, InfrastructureError, PluginError, ToolServiceError
from agentrl.plugins.mcp_entries import Discover, Found, ask_servers
from agentrl.types import JsonDict, ToolResponse

_KEY_CHARS = 32
_SHOWN = 300


class CallRecord(Protocol):
    """The record of one call. Use it in a `with`: make the call if `found` is None, and `keep` its result.

    An `InfrastructureError` that leaves the `with` is also recorded: a replay repeats failures.
    """

    found: JsonDict | None
    """The result of the recorded run; None: make the call."""

    def keep(self, result: JsonDict) -> None:
        """Record the result of the call.

        Raises:
            ToolServiceError: the folder cannot be written.
        """

    def __enter__(self) -> CallRecord: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...


class CallRecords(Protocol):
    """The records of one trajectory."""

    @property
    def replays(self) -> bool:
        """True: every call is answered from the records, so tools are neither created nor released."""

    def of(self, tool: str, kwargs: JsonDict, **call: Any) -> CallRecord:
        """The record of a call that is about to be made.

        Args:
            tool: its name.
            kwargs: the row's keyword arguments for the call.
            **call: what distinguishes it from other calls: `arguments`, or `calc_reward=True`.

        Raises:
            ToolServiceError: in a replay, if the recorded call failed or was never made.
        """


def recorded_discovery(mode: str, path: str | Path | None) -> Discover:
    """A function that lists the tools of MCP servers: `record` keeps the list, `replay` reads it and starts no server.

    Raises:
        PluginError: raised by the returned function if the recorded run did not ask these servers.
    """
    if mode == "off" or path is None:
        return ask_servers
    file = Path(path) / "mcp_tools.json"

    def discover(cls: Any, servers: JsonDict, config: JsonDict) -> Found:
        known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        key = _digest({"servers": servers, "config": config})
        if mode == "replay":
            if key not in known:
                raise PluginError(f"tool_cache: {file} has no record of the MCP servers {', '.join(servers)}")
            return [(own, schema) for own, schema in known[key]]
        found = ask_servers(cls, servers, config)
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f"{file.name}.{os.getpid()}")
        draft.write_text(json.dumps({**known, key: found}), encoding="utf-8")
        draft.replace(file)
        return found

    return discover


class _NoRecords:
    """Every call is made, and none is recorded."""

    replays = False
    found: JsonDict | None = None

    def of(self, tool: str, kwargs: JsonDict, **call: Any) -> CallRecord:
        return self

    def keep(self, result: JsonDict) -> None:
        pass

    def __enter__(self) -> CallRecord:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        pass


NO_RECORDS: CallRecords = _NoRecords()


class ToolCache:
    """The folder of a recorded run.

    Args:
        mode: `record` or `replay`.
        path: the folder.

    Raises:
        ConfigError: nothing was recorded to replay, or a record cannot be read.
    """

    def __init__(self, mode: str, path: str | Path) -> None:
        self.replays = mode == "replay"
        self.path = Path(path)
        self._places: dict[str, tuple[Path, int]] = _index(self.path) if self.replays else {}
        self._out: BinaryIO | None = None

    def trajectory(self, identity: str) -> CallRecords:
        """The records of one trajectory; create new ones for each try."""
        return _TrajectoryRecords(self, identity)

    def read(self, key: str) -> JsonDict | None:
        """The entry that was recorded under a key; None if not found."""
        place = self._places.get(key)
        if place is None:
            return None
        with place[0].open("rb") as file:
            file.seek(place[1])
            entry: JsonDict = json.loads(file.readline())
        return entry

    def write(self, key: str, entry: JsonDict) -> None:
        """Append one entry.

        Raises:
            ToolServiceError: the folder cannot be written.
        """
        line = f'{{"key": "{key}", {json.dumps(entry, default=str)[1:]}\n'.encode()
        try:
            if self._out is None:
                self.path.mkdir(parents=True, exist_ok=True)
                name = f"{time.time_ns():020d}-{os.getpid()}.jsonl"
                self._out = (self.path / name).open("xb", buffering=0)
            self._out.write(line)
        except OSError as error:
            raise ToolServiceError(f"tool_cache: {self.path} cannot be written: {error}") from error

    def close(self) -> None:
        """Close this worker's file."""
        if self._out is not None:
            self._out.close()
            self._out = None


@dataclass(slots=True)
class _TrajectoryRecords:
    """Records or replays the calls of one trajectory."""

    cache: ToolCache
    identity: str
    _seen: Counter[str] = field(default_factory=Counter)

    @property
    def replays(self) -> bool:
        return self.cache.replays

    def of(self, tool: str, kwargs: JsonDict, **call: Any) -> CallRecord:
        # The same call may be made again, and a tool with state answers it differently. So the second
        # {"tool": "python", "arguments": {"code": "print(n)"}} of a trajectory has another key than the first: their
        # `occurrence` differs.
        what = {"tool": tool, **call, "kwargs": kwargs}
        same = _digest(what)
        entry = {"trajectory": self.identity, **what, "occurrence": self._seen[same]}
        self._seen[same] += 1
        key = _digest(entry)
        return _Record(self.cache, key, entry, self._recorded(key, entry) if self.replays else None)

    def _recorded(self, key: str, entry: JsonDict) -> JsonDict:
        found = self.cache.read(key)
        if found is None:
            what = "calc_reward" if entry.get("calc_reward") else f"a call with arguments {entry['arguments']!r}"
            given = f" and execute_kwargs {entry['kwargs']!r}" if entry["kwargs"] else ""
            raise ToolServiceError(
                f"tool_cache: {self.cache.path} holds no result of tool '{entry['tool']}' for {what[:_SHOWN]}"
                f"{given[:_SHOWN]}, occurrence {entry['occurrence'] + 1}, in trajectory {self.identity}: the run "
                "differs from the recorded one"
            )
        if "failure" in found:
            raise ToolServiceError(str(found["failure"]))
        result: JsonDict = found["result"]
        return result


@dataclass(slots=True)
class _Record:
    """One call of a trajectory."""

    cache: ToolCache
    key: str
    entry: JsonDict
    found: JsonDict | None

    def keep(self, result: JsonDict) -> None:
        self.cache.write(self.key, {**self.entry, "result": result})

    def __enter__(self) -> CallRecord:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InfrastructureError) and self.found is None:
            self.cache.write(self.key, {**self.entry, "failure": str(error)})


def as_json(response: ToolResponse) -> JsonDict:
    """A checked response in the form of the records."""
    return {
        "text": response.text,
        "reward": response.reward,
        "metrics": response.metrics,
        "is_error": response.is_error,
        **({"image": [picture.data_uri() for picture in response.image]} if response.image else {}),
    }


def _digest(what: JsonDict) -> str:
    text = json.dumps(what, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=_KEY_CHARS // 2).hexdigest()


def _index(folder: Path) -> dict[str, tuple[Path, int]]:
    """File and byte offset of each recorded result; an incomplete last line is skipped."""
    places: dict[str, tuple[Path, int]] = {}
    for path in check_recorded(folder):
        offset = 0
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    places[_key_of(line, path, offset)] = path, offset
                offset += len(line)
    return places


def check_recorded(folder: str | Path) -> list[Path]:
    """The files of a recorded run, in the order in which they were begun.

    Raises:
        ConfigError: no file is found.
    """
    files = sorted(Path(folder).glob("*.jsonl"))
    if not files:
        raise ConfigError(
            f"actor_rollout_ref.rollout.multi_turn.tool_cache.path: got '{folder}', which holds no recorded results: "
            "run with `mode: record` first"
        )
    return files


def _key_of(line: bytes, path: Path, offset: int) -> str:
    start = b'{"key": "'
    key = line[len(start) : len(start) + _KEY_CHARS]
    if not line.startswith(start) or len(key) != _KEY_CHARS:
        raise ConfigError(f"tool_cache: {path} holds no record at byte {offset}: {line[:80]!r}")
    return key.decode()
