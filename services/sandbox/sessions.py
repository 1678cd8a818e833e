"""Sessions: interpreters that live as long as a trajectory and are guaranteed to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from fastapi import HTTPException

from agentrl.services.common.logs import log
from agentrl.services.sandbox.admission import Busy
from agentrl.services.sandbox.options import SandboxOptions
from agentrl.services.sandbox.resource_monitor import ResourceMonitor
from agentrl.services.sandbox.run_files import FileContent, get_files
from agentrl.services.sandbox.run_limits import RunLimits
from agentrl.services.sandbox.sandbox_lifecycle import SandboxFault
from agentrl.services.sandbox.sandbox_pool import SandboxPool
from agentrl.services.sandbox.stateful_interpreter import CellOutcome, StatefulInterpreter, open_interpreter

_LOOK_S = 0.5
_ENDED = "the session was ended before its code had run"
_NEXT = "The next code starts in a new one, without the variables and files so far.\n"
_NEW = "This interpreter is new: the last one has ended{reason}, and its variables and files are lost.\n"


class SandboxSession:
    """One session; its interpreter starts anew when the code ended the last one."""

    def __init__(
        self,
        client: str,
        limits: RunLimits,
        files: Mapping[str, FileContent],
        pool: SandboxPool,
        monitor: ResourceMonitor,
    ) -> None:
        self._files = files
        self.client, self._limits, self._pool, self._monitor = client, limits, pool, monitor
        self.started_at = self.used_at = time.monotonic()
        self.busy = 0
        """Runs that are in progress or wait."""
        self.turn = asyncio.Lock()
        """Held by each run: runs of one session take turns."""
        self._ended = False
        self._stack = AsyncExitStack()
        self._interpreter: StatefulInterpreter | None = None

    async def open(self) -> None:
        """Start an interpreter.

        Raises:
            HTTPException: 422, the files do not fit together.
            SandboxFault: it does not start.
        """
        opening = open_interpreter(self._pool, self._monitor, self._limits, self._files)
        self._interpreter = await self._stack.enter_async_context(opening)
        if self._ended:
            await self._stack.aclose()
            raise SandboxFault(_ENDED)

    async def run(
        self, code: str, timeout_s: float, fetch: Sequence[str], limit: int
    ) -> tuple[CellOutcome, dict[str, FileContent], list[str]]:
        """Run code, for the holder of `turn`.

        Raises:
            HTTPException: 404, the session was ended before.
            SandboxFault: it was ended meanwhile; or the interpreter ended, and no new one comes up.
        """
        if self._ended:
            raise HTTPException(404, _ENDED)
        assert self._interpreter is not None
        sandbox, note = self._interpreter.sandbox, ""
        if not self._interpreter.is_usable:
            note = _NEW.format(reason=f" ({sandbox.stopped})" if sandbox.stopped else "")
            await self._stack.aclose()
            await self.open()
            sandbox = self._interpreter.sandbox
        outcome = await self._interpreter.run(code, timeout_s)
        if self._ended:
            raise SandboxFault(_ENDED)
        outcome.result.stderr = f"{note}{outcome.result.stderr}{_NEXT if outcome.ended else ''}"
        found, problems = get_files(sandbox.work, fetch, limit) if fetch else ({}, [])
        return outcome, found, problems

    async def close(self) -> None:
        """End it, a run in progress included."""
        self._ended = True
        await self._stack.aclose()


class Sessions:
    """All sessions of a service. A session ends when it is deleted, idle or old, and when the service stops."""

    def __init__(self, pool: SandboxPool, monitor: ResourceMonitor, options: SandboxOptions) -> None:
        self._pool, self._monitor, self._options = pool, monitor, options
        self._open: dict[str, SandboxSession] = {}
        self._opening: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    async def open(self, client: str, limits: RunLimits, files: Mapping[str, FileContent]) -> str:
        """Start a session and return its id.

        Raises:
            Busy: the limit of open sessions is reached.
            HTTPException: 422, the files do not fit together.
            SandboxFault: it does not start.
        """
        self._check_quota(client)
        self._opening[client] += 1
        session = SandboxSession(client, limits, files, self._pool, self._monitor)
        try:
            await session.open()
        finally:
            self._opening[client] -= 1
        name = secrets.token_urlsafe(16)
        self._open[name] = session
        if self._task is None:
            self._task = asyncio.create_task(self._end_old())
        return name

    def get(self, name: str) -> SandboxSession:
        """A session.

        Raises:
            HTTPException: 404, no such session.
        """
        session = self._open.get(name)
        if session is None:
            raise HTTPException(404, f"no session {name[:40]!r}: it was ended, or was idle for too long")
        return session

    async def end(self, name: str) -> None:
        """End a session.

        Raises:
            HTTPException: 404, no such session.
        """
        session = self.get(name)
        del self._open[name]
        await session.close()

    async def close(self) -> None:
        """End all."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for name in list(self._open):
            await self.end(name)

    def _check_quota(self, client: str) -> None:
        held = self._opening + Counter(session.client for session in self._open.values())  # those that hold any
        own, clients = held[client], len({client, *held})
        options, total = self._options, held.total()
        idle = [session.used_at for session in self._open.values() if not session.busy]
        oldest = min(idle, default=time.monotonic())
        soonest = max(1, min(30, math.ceil(oldest + options.session_ttl_s - time.monotonic())))
        if total >= options.sessions:
            raise Busy(f"{total} sessions are open, the most that this service allows", soonest)
        if total >= options.sessions // 2 and own >= options.sessions // clients:
            raise Busy(f"{own} sessions of this client are open: its whole share among {clients} clients", soonest)

    async def _end_old(self) -> None:
        while True:
            await asyncio.sleep(min(_LOOK_S, self._options.session_ttl_s / 4))
            now = time.monotonic()
            for name, session in list(self._open.items()):
                idle = not session.busy and now - session.used_at > self._options.session_ttl_s
                if idle or now - session.started_at > self._options.session_max_s:
                    log(logging.INFO, "session ended", session=name, reason="idle" if idle else "old")
                    self._open.pop(name, None)
                    await session.close()
