"""Client of the sandbox protocol: run code once (`POST /run_code`), or in a session that keeps its state."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agentrl.clients.http import ServiceClient
from agentrl.errors import ToolServiceError
from agentrl.own_time import queueing

_SHOWN = 200
_OVERHEAD_S = 20.0
"""Added to a run's own time limits for the deadline of its request: the service may queue it and must start it."""
_WALL_FACTOR = 4.0
"""A time limit is one of processor time: by the clock a run on a busy machine takes longer."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one piece of code did. If the sandbox could not run it, that is a `ToolServiceError` and not a result."""

    ok: bool
    """The code ended by itself with return code 0."""
    stdout: str = ""
    stderr: str = ""
    return_code: int | None = None
    timed_out: bool = False
    compile_failed: bool = False
    seconds: float = 0.0


class SandboxClient:
    """Runs code in a sandbox service.

    Args:
        service: the connection; its address may end in `/run_code`.
        language: of the code.
        run_timeout_s: the code's own time limit.
        compile_timeout_s: the compiler's time limit.
        memory_limit_mb: -1: the service's default.
        slots: taken by each request for `run` and `judge`; None: no limit.
    """

    def __init__(
        self,
        service: ServiceClient,
        *,
        language: str = "python",
        run_timeout_s: float = 10.0,
        compile_timeout_s: float = 10.0,
        memory_limit_mb: int = -1,
        slots: asyncio.Semaphore | None = None,
    ) -> None:
        service.url = service.url.removesuffix("/run_code")
        self.service = service
        self.language = language
        self.run_timeout_s = run_timeout_s
        self._compile_timeout_s = compile_timeout_s
        self._memory_limit_mb = memory_limit_mb
        self._deadline_s = _WALL_FACTOR * (compile_timeout_s + run_timeout_s) + _OVERHEAD_S
        self._slots = slots

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> SandboxClient:
        """The client that a plug-in's `config` describes: `sandbox_url`, and the arguments of both classes by name.

        Raises:
            ValueError: the address is missing or not valid.
        """
        try:
            service = ServiceClient(
                config.get("sandbox_url"),
                retries=int(config.get("retries", 3)),
                backoff_s=float(config.get("backoff_s", 0.5)),
                headers=config.get("headers"),
            )
        except ValueError as error:
            raise ValueError(f"`config.sandbox_url` {error}") from error
        return cls(
            service,
            language=str(config.get("language", "python")),
            run_timeout_s=float(config.get("run_timeout_s", 10.0)),
            compile_timeout_s=float(config.get("compile_timeout_s", 10.0)),
            memory_limit_mb=int(config.get("memory_limit_mb", -1)),
        )

    async def run(self, code: str, stdin: str = "", files: Mapping[str, str] | None = None) -> RunResult:
        """Run code once.

        Args:
            code: source text.
            stdin: its standard input.
            files: base64 contents by path, written into its folder.

        Raises:
            ToolServiceError: the sandbox could not run it, after retries.
        """
        body = {
            "code": code,
            "language": self.language,
            "stdin": stdin,
            "compile_timeout": self._compile_timeout_s,
            "run_timeout": self.run_timeout_s,
            "memory_limit_MB": self._memory_limit_mb,
            "files": dict(files or {}),
            "fetch_files": [],
        }
        async with self._slot():
            answer = await self.service.post(
                *("/run_code", body), timeout_s=self._deadline_s, refuse=_sandbox_error, own_seconds=_own_seconds
            )
        return _read(answer, self.service.url)

    async def judge(
        self, code: str, tests: Sequence[Mapping[str, Any]], *, stop_early: bool = False
    ) -> list[RunResult] | None:
        """Run a program against tests in one request.

        Args:
            code: source text.
            tests: `{input, output}`, `{input, assert}` or `{input, follow}` each.
            stop_early: after the first failed test the others are not run; their `ok` is false.

        Returns:
            One result per test, in order. `ok` says only how the program ended, since outputs are not compared here;
            of an assert, that it holds. None: the service has no `/judge` (SandboxFusion has none).

        Raises:
            ToolServiceError: the sandbox could not run one of them, after retries.
        """
        body = {
            "code": code,
            "language": self.language,
            "tests": list(tests),
            "timeout": self.run_timeout_s,
            "compile_timeout": self._compile_timeout_s,
            "memory_limit_MB": self._memory_limit_mb,
            "stop_early": stop_early,
        }
        # When the service is busy, it runs one test after the other.
        deadline_s = self._deadline_s + _WALL_FACTOR / 2 * self.run_timeout_s * len(tests)
        async with self._slot():
            answer = await self.service.post(
                *("/judge", body),
                timeout_s=deadline_s,
                refuse=_sandbox_error,
                may_lack=True,
                own_seconds=_own_seconds,
            )
        return None if answer is None else _read_verdicts(answer, tests, self.service.url)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        if self._slots is None:
            yield
            return
        with queueing():
            await self._slots.acquire()
        try:
            yield
        finally:
            self._slots.release()

    async def open_session(self) -> str:
        """Start a session and return its id.

        Raises:
            ToolServiceError: the service started no session.
        """
        body = {"language": self.language, "memory_limit_MB": self._memory_limit_mb}
        answer = await self.service.post("/sessions", body, line="sessions")
        session = answer.get("session_id", answer.get("id")) if isinstance(answer, dict) else None
        if not isinstance(session, str | int) or not str(session):
            raise ToolServiceError(f"{self.service.url}/sessions answered without a session id: {answer!r:.{_SHOWN}}")
        return str(session)

    async def run_in_session(self, session: str, code: str) -> RunResult:
        """Run code that sees the variables of the session's earlier runs. It is never sent twice.

        Raises:
            ToolServiceError: the sandbox could not run it, or the session is gone.
        """
        body = {"code": code, "run_timeout": self.run_timeout_s}
        path = f"/sessions/{session}/run"
        answer = await self.service.post(
            path, body, timeout_s=self._deadline_s, repeatable=False, own_seconds=_own_seconds
        )
        problem = _sandbox_error(answer)
        if problem is not None:
            raise ToolServiceError(f"{self.service.url}{path}: {problem}")
        return _read(answer, self.service.url)

    async def close_session(self, session: str) -> None:
        """End a session; one that is already gone is fine.

        Raises:
            ToolServiceError: the service does not answer.
        """
        await self.service.delete(f"/sessions/{session}")


def _own_seconds(answer: Any) -> float:
    """How long the code of a request ran; tests of one request run side by side, so the longest counts."""
    if not isinstance(answer, dict):
        return math.inf
    tests = answer.get("tests")
    ran = [test.get("run_result") for test in tests if isinstance(test, dict)] if isinstance(tests, list) else []
    compiled, *runs = [
        float(one.get("execution_time") or 0.0) if isinstance(one, dict) else 0.0
        for one in (answer.get("compile_result"), answer.get("run_result"), *ran)
    ]
    return compiled + max(runs)


def _sandbox_error(answer: Any) -> str | None:
    """Why this answer says nothing about the code: the sandbox failed, or the answer is not a sandbox's; else None."""
    status = answer.get("status") if isinstance(answer, dict) else None
    if status in ("Success", "Failed"):
        return None
    if status == "SandboxError":
        return f"SandboxError: {answer.get('message') or 'no message'}"
    return f"wanted a `status` of Success, Failed or SandboxError, got {answer!r:.{_SHOWN}}"


def _read(answer: dict[str, Any], url: str) -> RunResult:
    compiled, ran = answer.get("compile_result") or {}, answer.get("run_result") or {}
    if not isinstance(compiled, dict) or not isinstance(ran, dict):
        raise ToolServiceError(f"{url} answered with results that are not objects: {answer!r:.{_SHOWN}}")
    failed = answer["status"] != "Success"
    compile_failed = failed and bool(compiled) and not ran
    last = compiled if compile_failed else ran
    message = str(answer.get("message") or "") if failed and not last else ""
    return _result(last, ok=not failed, compile_failed=compile_failed, message=message)


def _read_verdicts(answer: dict[str, Any], asked: Sequence[Mapping[str, Any]], url: str) -> list[RunResult]:
    tests, compiled = answer.get("tests"), answer.get("compile_result")
    if isinstance(compiled, dict) and not tests:
        return [_result(compiled, ok=False, compile_failed=True)] * len(asked)
    if not isinstance(tests, list) or len(tests) != len(asked) or not all(isinstance(test, dict) for test in tests):
        raise ToolServiceError(f"{url}/judge answered without one result per test: {answer!r:.{_SHOWN}}")
    results = []
    for question, test in zip(asked, tests, strict=True):
        ran = test.get("run_result") or {}
        ended = ran.get("status") == "Finished" and ran.get("return_code") == 0
        results.append(_result(ran, ok=ended and ("assert" not in question or test.get("passed") is True)))
    return results


def _result(told: dict[str, Any], *, ok: bool, compile_failed: bool = False, message: str = "") -> RunResult:
    return RunResult(
        ok=ok,
        stdout=str(told.get("stdout") or ""),
        stderr=str(told.get("stderr") or message),
        return_code=told.get("return_code"),
        timed_out=told.get("status") == "TimeLimitExceeded",
        compile_failed=compile_failed,
        seconds=float(told.get("execution_time") or 0.0),
    )
