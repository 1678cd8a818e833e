"""The sandbox service as one object: what the routes call, and what starts and stops with the server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

from fastapi import HTTPException

from agentrl.services.common.server_folder import server_folder
from agentrl.services.sandbox.admission import Admission, Busy
from agentrl.services.sandbox.bash_checks import guard
from agentrl.services.sandbox.checked_run import LANGUAGES, CheckedRun
from agentrl.services.sandbox.filesystem_layout import make_layout
from agentrl.services.sandbox.isolation import Isolation
from agentrl.services.sandbox.isolation_choice import choose_isolation
from agentrl.services.sandbox.judge import conclude, judge
from agentrl.services.sandbox.jupyter import run_cells
from agentrl.services.sandbox.languages import Language, find_language, installed_languages
from agentrl.services.sandbox.memory_cgroup import open_memory_cgroups
from agentrl.services.sandbox.metrics import SandboxMetrics
from agentrl.services.sandbox.options import SandboxOptions
from agentrl.services.sandbox.process_tree import adopting_orphans, hidden_memory
from agentrl.services.sandbox.program_runner import ProgramRunner, RunOutcome
from agentrl.services.sandbox.protocol import (
    CommandResult,
    Judge,
    JudgeAnswer,
    JudgeTest,
    OpenSession,
    RunCode,
    RunCodeAnswer,
    RunInSession,
    RunJupyter,
    RunJupyterAnswer,
    SessionAnswer,
    encode,
)
from agentrl.services.sandbox.resource_monitor import ResourceMonitor
from agentrl.services.sandbox.run_limits import MIB, RunLimits
from agentrl.services.sandbox.sandbox_lifecycle import SandboxFault
from agentrl.services.sandbox.sandbox_pool import SandboxPool
from agentrl.services.sandbox.sessions import Sessions
from agentrl.services.sandbox.stateful_interpreter import open_interpreter
from agentrl.services.sandbox.user_range import UIDS_PER_SERVER, find_users


class SandboxService:
    """Everything between a request and a sandbox. Create it with `open_service`."""

    def __init__(
        self, options: SandboxOptions, pool: SandboxPool, languages: dict[str, Language], metrics: SandboxMetrics
    ) -> None:
        self.options, self.isolation, self.pool = options, pool.isolation, pool
        self.languages, self.metrics = languages, metrics
        self.versions: dict[str, str] = {}
        """What languages say about themselves, of those that were asked."""
        self.monitor = ResourceMonitor()
        self.admission = Admission(options.parallel, options.queue, options.queue_seconds)
        self.runner = ProgramRunner(pool, self.monitor, options)
        self.sessions = Sessions(pool, self.monitor, options)

    async def run_code(self, request: RunCode, client: str) -> RunCodeAnswer:
        """Answer `POST /run_code`.

        Raises:
            HTTPException: 422, what is asked for cannot be.
            Busy: no place.
        """
        language = find_language(request.language, self.languages)
        run = self.runner.limits(request.run_timeout, request.memory_limit_mb)
        async with self.admission.place(client):
            answer = await self.runner.run_code(
                *(language, request.code, request.stdin or "", request.files, request.fetch_files),
                *(self._compiler_limits(request.compile_timeout, run), run),
            )
        self.metrics.count(language.name, answer.status, answer.run_result or answer.compile_result)
        return answer

    async def open_session(self, request: OpenSession, client: str) -> SessionAnswer:
        """Answer `POST /sessions`.

        Raises:
            HTTPException: 422, what is asked for cannot be; 503, no interpreter comes up.
            Busy: no place.
        """
        self._must_be_python(request.language)
        limits = self.runner.limits(self.options.max_timeout_s, request.memory_limit_mb)
        limits = replace(limits, seconds=self.options.session_max_s)
        try:
            name = await self.sessions.open(client, limits, request.files)
        except SandboxFault as error:
            raise HTTPException(503, str(error)) from error
        return SessionAnswer(session_id=name, ttl_s=self.options.session_ttl_s)

    async def run_in_session(self, name: str, request: RunInSession, client: str) -> RunCodeAnswer:
        """Answer `POST /sessions/{id}/run`.

        Raises:
            HTTPException: 404, no such session; 422, what is asked for cannot be.
            Busy: no place.
        """
        self._must_be_python(request.language)
        session = self.sessions.get(name)
        seconds = self.runner.limits(request.run_timeout, -1).seconds
        if session.busy > self.options.queue:
            raise Busy(f"{session.busy} runs of this session are already waiting", 1)
        session.busy += 1
        try:
            async with session.turn, self.admission.place(client):
                limit = self.options.files_mb * MIB
                outcome, files, problems = await session.run(request.code, seconds, request.fetch_files, limit)
        except SandboxFault as error:
            answer = RunCodeAnswer(status="SandboxError", message=str(error))
        else:
            ran = RunOutcome(outcome.result, files, problems)
            answer = RunCodeAnswer(
                status="Success" if ran.ok else "Failed",
                message=ran.message,
                run_result=ran.result,
                files=encode(ran.files),
            )
        finally:
            session.busy -= 1
            session.used_at = time.monotonic()
        self.metrics.count("python", answer.status, answer.run_result)
        return answer

    async def run_jupyter(self, request: RunJupyter, client: str) -> RunJupyterAnswer:
        """Answer `POST /run_jupyter`.

        Raises:
            HTTPException: 422, what is asked for cannot be.
            Busy: no place.
        """
        limits = self.runner.limits(request.total_timeout, request.memory_limit_mb, "total_timeout")
        async with self.admission.place(client):
            try:
                async with open_interpreter(self.pool, self.monitor, limits, request.files) as interpreter:
                    answer = await run_cells(interpreter, request, self.options)
            except SandboxFault as error:
                answer = RunJupyterAnswer(status="SandboxError", message=str(error))
        self.metrics.count("python", answer.status, None)
        return answer

    async def judge(self, request: Judge, client: str) -> JudgeAnswer:
        """Answer `POST /judge`.

        Raises:
            HTTPException: 422, what is asked for cannot be.
            Busy: no place.
        """
        language = find_language(request.language, self.languages)
        limits = self.runner.limits(request.timeout, request.memory_limit_mb, "timeout")
        if any(test.follow is not None for test in request.tests) and language.compile is not None:
            raise HTTPException(422, f"tests: `follow` stands behind code that is not compiled; got {language.name}")
        asserts = [test for test in request.tests if test.check is not None]
        if asserts and language.name not in LANGUAGES:
            known = ", ".join(LANGUAGES)
            raise HTTPException(422, f"tests: `assert` follows code of {known}; got {language.name}")
        for place, test in enumerate(request.tests):
            if test.check is not None and language.name == "bash":
                try:
                    guard(test.check)
                except ValueError as error:
                    raise HTTPException(422, f"tests.{place}.assert: {error}") from error
        most = self.options.output_mb * MIB
        for place, test in enumerate(request.tests):
            if len((test.output or "").encode(errors="surrogatepass")) > most:
                raise HTTPException(
                    422, f"tests.{place}.output: wanted at most {most} bytes, the part of a run's output that is kept"
                )
        async with self.admission.place(client):
            return await self._judge(request, language, limits, client)

    async def _judge(self, request: Judge, language: Language, limits: RunLimits, client: str) -> JudgeAnswer:
        """Judge in a place that is held."""
        faults: list[str] = []
        try:
            program, compiled = await self.runner.compile(
                language, request.code, request.files, self._compiler_limits(request.compile_timeout, limits)
            )
        except SandboxFault as error:
            return JudgeAnswer(status="SandboxError", message=str(error), passed=0, total=len(request.tests))
        if compiled is not None and (compiled.status != "Finished" or compiled.return_code != 0):
            return JudgeAnswer(status="Failed", message="", passed=0, total=len(request.tests), compile_result=compiled)
        checks = CheckedRun(self.runner, language, request.code, request.files)

        async def run(test: JudgeTest) -> tuple[CommandResult, bool]:
            done = True
            try:
                if test.check is not None:
                    result, done = await checks.run(test.check, test.input or "", limits)
                else:
                    tested = program
                    if test.follow is not None:
                        code = f"{request.code}\n\n{test.follow}\n"
                        tested = self.runner.program(language, code, request.files)
                    result = (await self.runner.run(tested, test.input or "", limits)).result
            except SandboxFault as error:
                self.metrics.count(language.name, "SandboxError", None)
                faults.append(str(error))
                raise
            ok = result.status == "Finished" and result.return_code == 0
            self.metrics.count(language.name, "Success" if ok else "Failed", result)
            return result, done

        most = self.options.output_mb * MIB
        results = await judge(request.tests, run, self.admission.spare(client), request.stop_early, most)
        return conclude(results, compiled, faults)

    def _must_be_python(self, language: str) -> None:
        if find_language(language, self.languages).name != "python":
            raise HTTPException(422, f"language: got {language!r}, wanted python, the only language of sessions")

    def _compiler_limits(self, seconds: float, run: RunLimits) -> RunLimits:
        """A compiler may need more memory than its program."""
        return self.runner.limits(seconds, max(run.memory_mb, self.options.memory_mb), "compile_timeout")


@asynccontextmanager
async def open_service(options: SandboxOptions, metrics: SandboxMetrics) -> AsyncIterator[SandboxService]:
    """Start a service and end it.

    Raises:
        UserInputError: no isolation that is strong enough, or the interpreter does not run.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(hidden_memory())
        folder = stack.enter_context(_server_folder())
        isolation = _isolate(options, folder)
        if (cgroups := open_memory_cgroups()) is not None:
            stack.callback(cgroups.close)
            isolation = replace(isolation, memory_cgroups=cgroups, details=(*isolation.details, "memory cgroup"))
        # A container may have no init that takes in orphans: sandboxes take in their own (see `Sandbox.kill`).
        stack.enter_context(adopting_orphans())
        pool = SandboxPool(isolation, folder, _uids(), options.warm_count, options.output_mb)
        stack.push_async_callback(pool.close)
        service = SandboxService(options, pool, installed_languages(isolation.layout), metrics)
        stack.push_async_callback(service.monitor.close)
        stack.push_async_callback(service.sessions.close)
        pool.fill()
        yield service


def check_startup(options: SandboxOptions) -> None:
    """Find out whether a service could start.

    Raises:
        UserInputError: no isolation that is strong enough, or the interpreter does not run.
    """
    with _server_folder() as folder:
        _isolate(options, folder)


@contextmanager
def _server_folder() -> Iterator[Path]:
    """Where the folders of runs are."""
    with server_folder("sandbox") as folder:
        folder.chmod(0o711)  # code that is another user has to get through to its own folder
        yield folder


def _isolate(options: SandboxOptions, folder: Path) -> Isolation:
    layout = make_layout(folder, options.python, _uids(), options.disk_mb)
    wanted, required = options.isolation, options.require_isolation
    fresh, allow_weak = options.fresh_interpreters, options.allow_weak_isolation
    return choose_isolation(folder, layout, wanted, required, fresh, allow_weak)


def _uids() -> range:
    """A number for each run that is open; where runs are users of their own, it is their user's."""
    users, _ = find_users()
    return users or range(UIDS_PER_SERVER)
