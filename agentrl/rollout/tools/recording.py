"""Results of tool calls on disk: `record` keeps each real one, `replay` answers from them and touches no service.

A result is found again by its trajectory (split, step, row, rollout), the tool, its arguments, the row's
`execute_kwargs` and how often the same call came before in the trajectory, so that a tool with state replays in order.

Every worker appends to a file of its own, one whole line per result, so that workers never disturb each other and a
run that is killed loses at most the line it was writing. Files are read in the order in which they were begun; of two
results of the same call the later counts (a trajectory that was rolled out again, a run that was resumed).
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from agentrl.errors import ConfigError, InfrastructureError, PluginError, ToolServiceError
from agentrl.plugins.mcp_entries import Discover, Found, ask_servers
from agentrl.types import JsonDict, ToolResponse

_KEY_CHARS = 32
_SHOWN = 300
Call = Callable[[], Awaitable[ToolResponse]]
AskReward = Callable[[], Awaitable[float]]


class CallCache(Protocol):
    """The cache as one trajectory sees it."""

    @property
    def replays(self) -> bool:
        """True: tools are neither created nor released, since none is called."""

    async def result(self, tool: str, arguments: JsonDict, kwargs: JsonDict, call: Call) -> ToolResponse:
        """What a call gives; `call` makes it.

        Raises:
            ToolServiceError: the call failed, or it was never recorded.
        """

    async def reward(self, tool: str, kwargs: JsonDict, ask: AskReward) -> float:
        """A tool's reward for the trajectory; `ask` asks it."""


def recorded_discovery(mode: str, path: str | Path | None) -> Discover:
    """How a run learns what MCP servers offer: `record` writes it down, `replay` reads that and starts no server.

    Raises:
        PluginError: from what is returned: these servers were not asked in the recorded run.
    """
    if mode == "off" or path is None:
        return ask_servers
    file = Path(path) / "mcp_tools.json"

    def discover(cls: Any, servers: JsonDict, config: JsonDict) -> Found:
        known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        key = _digest({"servers": servers, "config": config})
        if mode == "replay":
            if key not in known:
                raise PluginError(f"tool_cache: {file} does not say what the MCP servers {', '.join(servers)} offer")
            return [(own, schema) for own, schema in known[key]]
        found = ask_servers(cls, servers, config)
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f"{file.name}.{os.getpid()}")
        draft.write_text(json.dumps({**known, key: found}), encoding="utf-8")
        draft.replace(file)
        return found

    return discover


class NoCache:
    """Every call is made."""

    replays = False
    """Tools are created and released."""

    async def result(self, tool: str, arguments: JsonDict, kwargs: JsonDict, call: Call) -> ToolResponse:
        """Make the call."""
        return await call()

    async def reward(self, tool: str, kwargs: JsonDict, ask: AskReward) -> float:
        """Ask the tool."""
        return await ask()


class ToolCache:
    """The folder of a recorded run.

    Args:
        mode: `record` or `replay`.
        path: the folder.

    Raises:
        ConfigError: there is nothing to replay, or a record cannot be read.
    """

    def __init__(self, mode: str, path: str | Path) -> None:
        self.replays = mode == "replay"
        self.path = Path(path)
        self._places: dict[str, tuple[Path, int]] = _index(self.path) if self.replays else {}
        self._out: BinaryIO | None = None

    def trajectory(self, identity: str) -> CallCache:
        """The cache of one trajectory; make a new one for each try."""
        return _TrajectoryCache(self, identity)

    def read(self, key: str) -> JsonDict | None:
        """What was recorded under a key."""
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
class _TrajectoryCache:
    """Records or replays the calls of one trajectory."""

    cache: ToolCache
    identity: str
    _seen: Counter[str] = field(default_factory=Counter)

    @property
    def replays(self) -> bool:
        return self.cache.replays

    async def result(self, tool: str, arguments: JsonDict, kwargs: JsonDict, call: Call) -> ToolResponse:
        what = {"tool": tool, "arguments": arguments, "kwargs": kwargs}
        found = await self._through(what, lambda: _as_json(tool, call))
        return ToolResponse(**found)

    async def reward(self, tool: str, kwargs: JsonDict, ask: AskReward) -> float:
        async def asked() -> JsonDict:
            return {"reward": await ask()}

        found = await self._through({"tool": tool, "calc_reward": True, "kwargs": kwargs}, asked)
        return float(found["reward"])

    async def _through(self, what: JsonDict, call: Callable[[], Awaitable[JsonDict]]) -> JsonDict:
        """Answer from the records, or make the call and record it, its failure included."""
        same = _digest(what)
        occurrence, self._seen[same] = self._seen[same], self._seen[same] + 1
        entry = {"trajectory": self.identity, **what, "occurrence": occurrence}
        key = _digest(entry)
        if self.replays:
            return self._recorded(key, entry)
        try:
            result = await call()
        except InfrastructureError as error:
            self.cache.write(key, {**entry, "failure": str(error)})
            raise
        self.cache.write(key, {**entry, "result": result})
        return result

    def _recorded(self, key: str, entry: JsonDict) -> JsonDict:
        found = self.cache.read(key)
        if found is None:
            what = "calc_reward" if entry.get("calc_reward") else f"a call with arguments {entry['arguments']!r}"
            given = f" and execute_kwargs {entry['kwargs']!r}" if entry["kwargs"] else ""
            raise ToolServiceError(
                f"tool_cache: {self.cache.path} holds no result of tool '{entry['tool']}' for {what[:_SHOWN]}"
                f"{given[:_SHOWN]}, occurrence {entry['occurrence'] + 1}, in trajectory {self.identity}: the run does "
                "not repeat the recorded one"
            )
        if "failure" in found:
            raise ToolServiceError(str(found["failure"]))
        result: JsonDict = found["result"]
        return result


async def _as_json(tool: str, call: Call) -> JsonDict:
    response = await call()
    if response.image or response.video:
        raise ToolServiceError(f"tool_cache: tool '{tool}' answered with images or videos, which cannot be recorded")
    return {
        "text": response.text,
        "reward": response.reward,
        "metrics": response.metrics,
        "is_error": response.is_error,
    }


def _digest(what: JsonDict) -> str:
    text = json.dumps(what, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=_KEY_CHARS // 2).hexdigest()


def _index(folder: Path) -> dict[str, tuple[Path, int]]:
    """Where each recorded result is; a last line that was cut off is left out."""
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
        ConfigError: there are none.
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
