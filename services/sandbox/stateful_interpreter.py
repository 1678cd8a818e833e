"""A Python interpreter in a sandbox that keeps its variables between pieces of code."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi import HTTPException

from agentrl.services.sandbox.protocol import CommandResult
from agentrl.services.sandbox.resource_monitor import ResourceMonitor
from agentrl.services.sandbox.run_files import FileContent, put_files
from agentrl.services.sandbox.run_limits import RunLimits
from agentrl.services.sandbox.sandbox_lifecycle import Sandbox, SandboxFault
from agentrl.services.sandbox.sandbox_pool import SandboxPool

_GRACE_S = 1.0
_MAX_ANSWER = 32 * 1024 * 1024
_PULLS = 64
_ENDED = "The interpreter has ended."


@dataclass(slots=True)
class CellOutcome:
    """What one piece of code did."""

    result: CommandResult
    shown: str | None = None
    error: dict[str, Any] = field(default_factory=dict)
    ended: bool = False
    """The interpreter ended with it."""


class StatefulInterpreter:
    """One interpreter; get it from `open_interpreter`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def run(self, code: str, timeout_s: float, notebook: bool = False) -> CellOutcome:
        """Run one piece of code.

        Code that takes too long is interrupted as by Ctrl-C; its variables are lost only if it does not react.

        Args:
            code: source text.
            timeout_s: time limit.
            notebook: report the value of a last expression; all pieces share the limit of output.
        """
        began = time.monotonic()
        reply = asyncio.create_task(self._ask(code, notebook))
        timed_out = not (await asyncio.wait({reply}, timeout=timeout_s))[0]
        if timed_out:
            self.sandbox.interrupt()
            if not (await asyncio.wait({reply}, timeout=_GRACE_S))[0]:
                await self.sandbox.kill()
        answer = await reply
        seconds = time.monotonic() - began
        if answer is None:
            await self.sandbox.kill()
        self.sandbox.stdout.pull(_PULLS)
        self.sandbox.stderr.pull(_PULLS)
        return self._outcome(answer, seconds, timed_out, notebook)

    async def _ask(self, code: str, show_last: bool) -> dict[str, Any] | None:
        """The answer from inside; None if it is missing, or not one that the interpreter itself would give."""
        await self.sandbox.send({"code": code, "show_last": show_last})
        try:
            size = int(await self._exactly(8))
            answer = orjson.loads(await self._exactly(size)) if 0 < size <= _MAX_ANSWER else None
        except ValueError:
            return None
        return answer if isinstance(answer, dict) else None

    async def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = await self.sandbox.receive(size)
            if not part:
                return b""
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _outcome(self, answer: dict[str, Any] | None, seconds: float, timed_out: bool, spend: bool) -> CellOutcome:
        stdout = self.sandbox.stdout.take(spend).decode(errors="replace")
        stderr = self.sandbox.stderr.take(spend).decode(errors="replace")
        if self.sandbox.stopped is not None:
            stderr += f"\nThe program was stopped: {self.sandbox.stopped}.\n"
        if answer is None:
            stderr += f"\n{_ENDED}\n"
        code = answer.get("code") if answer else 1
        result = CommandResult(
            status="TimeLimitExceeded" if timed_out else "Finished",
            execution_time=round(seconds, 4),
            return_code=None if timed_out else code if isinstance(code, int) else 1,
            stdout=stdout,
            stderr=stderr,
        )
        shown, error = (answer or {}).get("shown"), (answer or {}).get("error")
        return CellOutcome(
            result,
            shown if isinstance(shown, str) else None,
            error if isinstance(error, dict) else {},
            ended=answer is None,
        )


@asynccontextmanager
async def open_interpreter(
    pool: SandboxPool, monitor: ResourceMonitor, limits: RunLimits, files: Mapping[str, FileContent]
) -> AsyncIterator[StatefulInterpreter]:
    """An interpreter that waits for code.

    Raises:
        HTTPException: 422, the files do not fit together.
        SandboxFault: it does not start.
    """
    async with pool.sandbox() as sandbox:
        try:
            put_files(sandbox.work, files, sandbox.owner)
        except ValueError as error:
            raise HTTPException(422, f"files: {error}") from error
        except OSError as error:
            raise SandboxFault(f"cannot write the files: {error}") from error
        job = {"kind": "session", "path": pool.isolation.layout.python_path, "limits": limits.rlimits(False)}
        await sandbox.begin(job, b"")
        with monitor.watch(sandbox, limits):
            yield StatefulInterpreter(sandbox)
