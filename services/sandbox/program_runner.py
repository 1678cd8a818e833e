"""Runs one piece of code: files in, compile, run, files out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fastapi import HTTPException

from agentrl.services.sandbox.languages import Language
from agentrl.services.sandbox.options import SandboxOptions
from agentrl.services.sandbox.protocol import CommandResult, RunCodeAnswer, encode
from agentrl.services.sandbox.resource_monitor import ResourceMonitor
from agentrl.services.sandbox.run_files import FileContent, all_files, get_files, put_files
from agentrl.services.sandbox.run_limits import MIB, RunLimits
from agentrl.services.sandbox.sandbox_lifecycle import ExitStatus, Sandbox, SandboxFault
from agentrl.services.sandbox.sandbox_pool import SandboxPool

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Program:
    """Code that is ready to run: its files, the compiler's output included."""

    language: Language
    files: Mapping[str, FileContent]


@dataclass(slots=True)
class RunOutcome:
    """The result of one run."""

    result: CommandResult
    files: dict[str, FileContent] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """It ended by itself with return code 0."""
        return self.result.status == "Finished" and self.result.return_code == 0

    @property
    def message(self) -> str:
        """Why files could not be returned."""
        return "; ".join(f"fetch_files: {problem}" for problem in self.problems)


class ProgramRunner:
    """Runs programs in sandboxes of a pool."""

    def __init__(self, pool: SandboxPool, monitor: ResourceMonitor, options: SandboxOptions) -> None:
        self.pool, self.monitor, self._options = pool, monitor, options

    def limits(self, seconds: float, memory_mb: int, name: str = "run_timeout") -> RunLimits:
        """Limits of a request.

        Raises:
            HTTPException: 422, it asks for more than the service gives.
        """
        options = self._options
        if seconds > options.max_timeout_s:
            raise HTTPException(422, f"{name}: got {seconds:g} s, wanted at most {options.max_timeout_s:g} s")
        if memory_mb > options.max_memory_mb:
            raise HTTPException(422, f"memory_limit_MB: got {memory_mb}, wanted at most {options.max_memory_mb}")
        memory_mb = memory_mb if memory_mb > 0 else options.memory_mb
        return RunLimits(seconds, memory_mb, options.processes, options.file_mb, options.disk_mb)

    async def compile(
        self, language: Language, code: str, files: Mapping[str, FileContent], limits: RunLimits
    ) -> tuple[Program, CommandResult | None]:
        """Make a program of code; the result is None for a language without a compiler.

        Raises:
            HTTPException: 422, the files do not fit together.
            SandboxFault: the compiler could not be run.
        """
        source = self.program(language, code, files)
        if language.compile is None:
            return source, None
        ran = await self._execute(language.compile, language, source.files, b"", limits, keep_all=True)
        return Program(language, ran.files) if ran.ok else source, ran.result

    def program(self, language: Language, code: str, files: Mapping[str, FileContent]) -> Program:
        """Code and its files, not compiled.

        Raises:
            HTTPException: 422, one of the files would replace the program.
        """
        own = [language.file, *(["main"] if language.run and language.run[0] == "./main" else [])]
        for name in own:
            if name in files:
                raise HTTPException(422, f"files: {name!r} is the program of `code` itself; give the file another name")
        return Program(language, {**files, language.file: FileContent(code.encode(errors="surrogatepass"))})

    async def run(self, program: Program, stdin: str, limits: RunLimits, fetch: Sequence[str] = ()) -> RunOutcome:
        """Run a program.

        Raises:
            HTTPException: 422, the files do not fit together.
            SandboxFault: it could not be run.
        """
        data = stdin.encode(errors="surrogatepass")
        return await self._execute(program.language.run, program.language, program.files, data, limits, fetch)

    async def run_code(
        self,
        language: Language,
        code: str,
        stdin: str,
        files: Mapping[str, FileContent],
        fetch: Sequence[str],
        compile_limits: RunLimits,
        run_limits: RunLimits,
    ) -> RunCodeAnswer:
        """Compile and run; a sandbox that fails is an answer too.

        Raises:
            HTTPException: 422, the files do not fit together.
        """
        compiled = None
        try:
            program, compiled = await self.compile(language, code, files, compile_limits)
            if compiled is not None and (compiled.status != "Finished" or compiled.return_code != 0):
                return RunCodeAnswer(status="Failed", message="", compile_result=compiled)
            ran = await self.run(program, stdin, run_limits, fetch)
        except SandboxFault as error:
            return RunCodeAnswer(status="SandboxError", message=str(error), compile_result=compiled)
        return RunCodeAnswer(
            status="Success" if ran.ok else "Failed",
            message=ran.message,
            compile_result=compiled,
            run_result=ran.result,
            files=encode(ran.files),
        )

    async def _execute(
        self,
        arguments: tuple[str, ...] | None,
        language: Language,
        files: Mapping[str, FileContent],
        stdin: bytes,
        limits: RunLimits,
        fetch: Sequence[str] = (),
        keep_all: bool = False,
    ) -> RunOutcome:
        fault = SandboxFault("no attempt was made")
        for _ in range(_ATTEMPTS):
            async with self.pool.sandbox() as sandbox:
                try:
                    put_files(sandbox.work, files, sandbox.owner)
                except ValueError as error:
                    raise HTTPException(422, f"files: {error}") from error
                except OSError as error:
                    fault = SandboxFault(f"cannot write the files: {error}")
                    continue
                try:
                    await sandbox.begin(self.job(arguments, language, limits), stdin)
                except SandboxFault as error:  # no code has run: another sandbox can do it
                    fault = error
                    continue
                with self.monitor.watch(sandbox, limits):
                    ended = await sandbox.wait(limits.seconds)
                ran = RunOutcome(await self._result(sandbox, ended))
                limit = self._options.files_mb * MIB
                if keep_all and ran.ok:
                    ran.files = all_files(sandbox.work, limits.disk_mb * MIB)
                elif fetch:
                    ran.files, ran.problems = get_files(sandbox.work, fetch, limit)
                return ran
        raise fault

    def job(self, arguments: tuple[str, ...] | None, language: Language, limits: RunLimits) -> dict[str, object]:
        """What a launcher is told: to run `arguments`, or `main.py` if there are none."""
        rlimits = limits.rlimits(language.reserves_memory)
        if arguments is None:
            return {"kind": "main", "path": self.pool.isolation.layout.python_path, "limits": rlimits}
        heap_mb = max(16, limits.memory_mb * 3 // 4)
        filled = [argument.replace("{memory_mb}", str(heap_mb)) for argument in arguments]
        return {"kind": "command", "language": language.name, "argv": filled, "limits": rlimits}

    async def _result(self, sandbox: Sandbox, ended: ExitStatus) -> CommandResult:
        """Raises SandboxFault when the program was never there."""
        failure = await sandbox.receive(200)
        if failure.startswith(b"E"):
            raise SandboxFault(f"cannot start {failure[1:].decode(errors='replace')}")
        return describe_exit(sandbox, ended)


def describe_exit(sandbox: Sandbox, ended: ExitStatus) -> CommandResult:
    """What the answer says about a program that ended."""
    stdout = sandbox.stdout.take().decode(errors="replace")
    stderr = sandbox.stderr.take().decode(errors="replace")
    if sandbox.stopped is not None:
        stderr += f"\nThe program was stopped: {sandbox.stopped}.\n"
    return CommandResult(
        status="TimeLimitExceeded" if ended.timed_out else "Finished",
        execution_time=round(ended.seconds, 4),
        cpu_time=round(ended.cpu_s, 4),
        return_code=None if ended.timed_out else ended.code,
        stdout=stdout,
        stderr=stderr,
    )
