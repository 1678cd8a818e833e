"""The requests of a weight update to one engine, and how several engines answer together.

Each is sent once: a second `begin` would be refused, and a second announcement would wait for a second broadcast.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import EngineError, EngineRequestError, EngineTimeout, EngineUnavailable
from agentrl.inference.client import EngineClient
from agentrl.plugins.threads import call_in_thread
from agentrl.types import JsonDict

GRACE_S = 10.0
"""How long engines get to answer after the others gave up."""
OWN_GRACE_S = 65.0
"""How long this process waits for its own part after it gave up: longer than a broadcast may take."""
QUICK_S = 30.0
"""How long an engine may take for what moves no weights."""


class UpdateCalls:
    """Weight updates of one engine.

    Args:
        client: talks to the engine.
        timeout_s: how long the engine may take for one call.

    Every call raises `EngineRequestError` for a refusal, `EngineUnavailable` if the connection fails, `EngineTimeout`
    if there is no answer.
    """

    def __init__(self, client: EngineClient, timeout_s: float) -> None:
        self.client = client
        self._limit_s, self._quick_s = timeout_s, min(timeout_s, QUICK_S)

    async def begin(self) -> None:
        """Open an update; one that was left open is closed first."""
        try:
            await self._post("/begin_weight_update", {}, self._quick_s)
        except EngineRequestError:
            await self._post("/end_weight_update", {}, self._quick_s)
            await self._post("/begin_weight_update", {}, self._quick_s)

    async def end(self) -> None:
        """Close the update."""
        await self._post("/end_weight_update", {}, self._limit_s)

    async def name_version(self, version: str) -> None:
        """Name the weights in use."""
        body = {"new_version": version, "abort_all_requests": False}
        await self._post("/update_weight_version", body, self._quick_s)

    async def init_group(self, fields: JsonDict) -> None:
        """Join a process group; the answer comes when all ranks have."""
        await self._post("/init_weights_update_group", fields, self._limit_s)

    async def receive(self, fields: JsonDict) -> None:
        """Receive a broadcast; the answer comes when it is loaded."""
        await self._post("/update_weights_from_distributed", {**fields, "flush_cache": False}, self._limit_s)

    async def load(self, fields: JsonDict) -> None:
        """Load tensors that the request holds or names."""
        await self._post("/update_weights_from_tensor", {**fields, "flush_cache": False}, self._limit_s)

    async def leave_group(self, name: str) -> None:
        """Forget a process group."""
        await self._post("/destroy_weights_update_group", {"group_name": name}, min(self._quick_s, GRACE_S))

    async def _post(self, path: str, body: JsonDict, timeout_s: float) -> None:
        try:
            await self.client.update_call(path, body, timeout_s)
        except EngineRequestError as error:
            if f"{path} answered 404" not in str(error):
                raise
            raise EngineRequestError(
                f"{error}: SGLang has this request from 0.5.23 on; for an older one set rollout.weight_sync=disk"
            ) from error


@dataclass(slots=True)
class Answers:
    """How engines answered.

    Attributes:
        failed: why, of those that are to blame.
        disturbed: engines that failed because others did: they may try again.
    """

    failed: dict[str, EngineError] = field(default_factory=dict)
    disturbed: dict[str, EngineError] = field(default_factory=dict)

    @property
    def well(self) -> bool:
        """All engines did what they were asked."""
        return not self.failed and not self.disturbed


async def each(calls: Mapping[str, Coroutine[Any, Any, None]]) -> dict[str, EngineError]:
    """Make a call to each engine at the same time; the errors, by address."""
    outcomes = await asyncio.gather(*calls.values(), return_exceptions=True)
    failed: dict[str, EngineError] = {}
    for address, outcome in zip(calls, outcomes, strict=True):
        if isinstance(outcome, EngineError):
            failed[address] = outcome
        elif outcome is not None:
            raise outcome
    return failed


async def together(
    calls: Mapping[str, Coroutine[Any, Any, None]],
    shared: Callable[[], None],
    give_up: Callable[[], None],
    limit_s: float,
    look_s: float = 0.0,
) -> Answers:
    """Make a call to each engine while this process does its part of what all do together.

    If one engine fails, the others wait for it: then `give_up` is called, which ends their wait, and who is to blame
    is told from who is not. Engines that are gone or silent are; if there are none, those that refused before that.

    Args:
        calls: by address.
        shared: this process' part: joining a group, a broadcast. Runs in a thread, which is left behind if it does not
            end after `give_up`. A `RuntimeError` from it is a failure.
        give_up: ends the wait of all.
        look_s: how long to wait for a refusal before `shared` begins.
        limit_s: for everything; after a failure as much again for `shared`, and at most `GRACE_S` for the engines.
    """
    tasks = {address: asyncio.ensure_future(call) for address, call in calls.items()}
    trouble = look_s > 0 and await _first_trouble(set(tasks.values()), look_s, quiet=True)
    own = asyncio.ensure_future(_nothing() if trouble else call_in_thread(shared))
    trouble = trouble or await _first_trouble({own, *tasks.values()}, limit_s)
    refused = {address for address, task in tasks.items() if task.done() and _error(task) is not None}
    if trouble:
        give_up()
        await asyncio.wait({own}, timeout=min(OWN_GRACE_S, limit_s))
        await asyncio.wait(tasks.values(), timeout=min(GRACE_S, limit_s))
    late = {address for address, task in tasks.items() if not task.done()}
    for task in (own, *tasks.values()):
        task.cancel()
    if own.done() and not isinstance(error := _error(own), RuntimeError | None):
        raise error
    return _blame(tasks, late, refused, limit_s, trouble=trouble)


async def _nothing() -> None:
    """What this process does where the others have failed already."""


async def _first_trouble(tasks: set[asyncio.Future[Any]], limit_s: float, *, quiet: bool = False) -> bool:
    """Wait until all are done, or one failed, or the time is over. False: all are well, or `quiet`, which may be."""
    deadline = asyncio.get_running_loop().time() + limit_s
    while tasks:
        left_s = max(0.0, deadline - asyncio.get_running_loop().time())
        done, tasks = await asyncio.wait(tasks, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return not quiet
        if any(_error(task) is not None for task in done):
            return True
    return False


def _blame(
    tasks: Mapping[str, asyncio.Future[None]], late: set[str], refused: set[str], limit_s: float, *, trouble: bool
) -> Answers:
    errors: dict[str, EngineError] = {}
    for address, task in tasks.items():
        error = EngineTimeout(f"{address} gave no answer within {limit_s:g} s") if address in late else _error(task)
        if isinstance(error, EngineError):
            errors[address] = error
        elif error is not None:
            raise error
    gone = {a for a, error in errors.items() if isinstance(error, EngineUnavailable | EngineTimeout)}
    to_blame = gone or refused
    waited = EngineRequestError("another engine failed")
    return Answers(
        {a: e for a, e in errors.items() if a in to_blame},
        {a: errors.get(a, waited) for a in tasks if a not in to_blame} if trouble else {},
    )


def _error(task: asyncio.Future[Any]) -> BaseException | None:
    return None if task.cancelled() else task.exception()
