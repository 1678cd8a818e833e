"""A Python interpreter in a sandbox that keeps its variables between pieces of code."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import deque
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
from agentrl.services.sandbox.standard_streams import OutputReader

_GRACE_S = 1.0
_MAX_ANSWER = 32 * 1024 * 1024
_PULLS = 64
_MOST_PIPES = 16
_ENDED = "The interpreter has ended."
_FORGED = "it wrote answers of its own"


@dataclass(slots=True)
class CellOutcome:
    """What one piece of code did."""

    result: CommandResult
    shown: str | None = None
    error: dict[str, Any] = field(default_factory=dict)
    ended: bool = False
    """The interpreter ended with it."""


class StatefulInterpreter:
    """One interpreter; get it from `open_interpreter`.

    Each piece of code gets pipes of its own: what an earlier piece has left running writes into that piece's pipes, and
    nobody reads it. Each is sent with a number that nobody can guess, and only an answer with this number is taken:
    what the code writes into the socket itself is never the answer of a later piece.
    """

    def __init__(self, sandbox: Sandbox, output_bytes: int) -> None:
        self.sandbox = sandbox
        self._rooms = [output_bytes, output_bytes]
        self._pipes: deque[OutputReader] = deque()
        """Of this piece of code and earlier ones, whose processes may still write."""

    @property
    def is_usable(self) -> bool:
        """It waits for code. One that has written more than its answers is stopped."""
        if self.sandbox.has_unread:
            self.sandbox.stop(_FORGED)
        return self.sandbox.alive and self.sandbox.stopped is None

    async def run(self, code: str, limit_s: float, notebook: bool = False) -> CellOutcome:
        """Run one piece of code.

        Code that takes too long is interrupted as by Ctrl-C; its variables are lost only if it does not react.

        Args:
            code: source text.
            limit_s: time limit, see `run_clock`; what the code leaves running may use as much processor time again.
            notebook: report the value of a last expression; all pieces share the limit of output.
        """
        self.sandbox.limit_cpu(None)
        clock = self.sandbox.start_clock(waited=True)
        (stdout, out), (stderr, err) = map(self._pipe, self._rooms)
        reply = asyncio.create_task(self._ask(code, notebook, (out, err)))
        timed_out = not await clock.watch(reply, limit_s)
        if timed_out:
            self.sandbox.interrupt()
            if not (await asyncio.wait({reply}, timeout=_GRACE_S))[0]:
                await self.sandbox.kill()
        answer = await reply
        wall_s, cpu_s = clock.wall_s, clock.cpu_s()
        if answer is None:
            await self.sandbox.kill()
        self.sandbox.limit_cpu(limit_s)
        for reader in (stdout, stderr):
            reader.pull(_PULLS)
        if notebook:
            self._rooms = [room - reader.size for room, reader in zip(self._rooms, (stdout, stderr), strict=True)]
        result = self._result(answer, [_finish(reader) for reader in (stdout, stderr)], timed_out)
        result.execution_time, result.cpu_time = round(wall_s, 4), round(cpu_s, 4)
        shown, error = (answer or {}).get("shown"), (answer or {}).get("error")
        return CellOutcome(
            result,
            shown if isinstance(shown, str) else None,
            error if isinstance(error, dict) else {},
            ended=answer is None,
        )

    def close(self) -> None:
        """Read nothing more."""
        while self._pipes:
            self._pipes.popleft().close()

    def _pipe(self, room: int) -> tuple[OutputReader, int]:
        """A reader and the end to write into."""
        try:
            ours, theirs = os.pipe()
        except OSError as error:
            raise SandboxFault(f"cannot make a pipe: {error}") from error
        if self.sandbox.owner is not None:  # the code may open it by name, as `/dev/stdout`
            os.fchown(theirs, self.sandbox.owner, self.sandbox.owner)
        self._pipes.append(OutputReader(ours, room))
        if len(self._pipes) > _MOST_PIPES:
            self._pipes.popleft().close()
        return self._pipes[-1], theirs

    async def _ask(self, code: str, show_last: bool, pipes: tuple[int, int]) -> dict[str, Any] | None:
        """The answer from inside; None if it is missing, or not one that the interpreter itself would give."""
        number = secrets.token_hex(16)
        try:
            await self.sandbox.send({"code": code, "show_last": show_last, "number": number}, pipes)
        finally:
            for fd in pipes:
                os.close(fd)
        try:
            size = int(await self._exactly(8))
            answer: Any = orjson.loads(await self._exactly(size)) if 0 < size <= _MAX_ANSWER else None
        except ValueError:
            return None
        if isinstance(answer, dict) and answer.get("number") == number:
            return answer
        self.sandbox.stop(_FORGED)
        return None

    async def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = await self.sandbox.receive(size)
            if not part:
                return b""
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _result(self, answer: dict[str, Any] | None, texts: list[str], timed_out: bool) -> CommandResult:
        stdout, stderr = texts
        if self.sandbox.stopped is not None:
            stderr += f"\nThe program was stopped: {self.sandbox.stopped}.\n"
        if answer is None:
            stderr += f"\n{_ENDED}\n"
        code = answer.get("code") if answer else 1
        return CommandResult(
            status="TimeLimitExceeded" if timed_out else "Finished",
            return_code=None if timed_out else code if isinstance(code, int) else 1,
            stdout=stdout,
            stderr=stderr,
        )


def _finish(reader: OutputReader) -> str:
    """The output of a piece that has been answered; nobody wants what still comes."""
    text = reader.take().decode(errors="replace")
    reader.drop()
    return text


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
        interpreter = StatefulInterpreter(sandbox, pool.output_bytes)
        try:
            with monitor.watch(sandbox, limits):
                yield interpreter
        finally:
            interpreter.close()
