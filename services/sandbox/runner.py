"""Runs one piece of code: files in, compile, run, files out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fastapi import HTTPException

from agentrl.services.sandbox.folders import Content, all_files, get_files, put_files
from agentrl.services.sandbox.jail import Exit, Jail, SandboxFault
from agentrl.services.sandbox.languages import Language
from agentrl.services.sandbox.limits import MIB, Limits
from agentrl.services.sandbox.options import Options
from agentrl.services.sandbox.pool import Pool
from agentrl.services.sandbox.protocol import CommandResult, RunCodeAnswer, encode
from agentrl.services.sandbox.watch import Watch

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Program:
    """Code that is ready to run: its files, the compiler's output included."""

    language: Language
    files: Mapping[str, Content]


@dataclass(slots=True)
class Ran:
    """What one run left behind."""

    result: CommandResult
    files: dict[str, Content] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """It ended by itself with return code 0."""
        return self.result.status == "Finished" and self.result.return_code == 0

    @property
    def message(self) -> str:
        """Why files did not come."""
        return "; ".join(f"fetch_files: {problem}" for problem in self.problems)


class Runner:
    """Runs programs in sandboxes of a pool."""

    def __init__(self, pool: Pool, watch: Watch, options: Options) -> None:
        self.pool, self.watch, self._options = pool, watch, options

    def limits(self, seconds: float, memory_mb: int, name: str = "run_timeout") -> Limits:
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
        return Limits(seconds, memory_mb, options.processes, options.file_mb, options.disk_mb)

    async def compile(
        self, language: Language, code: str, files: Mapping[str, Content], limits: Limits
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

    def program(self, language: Language, code: str, files: Mapping[str, Content]) -> Program:
        """Code and its files, not compiled."""
        return Program(language, {**files, language.file: Content(code.encode(errors="surrogatepass"))})

    async def run(self, program: Program, stdin: str, limits: Limits, fetch: Sequence[str] = ()) -> Ran:
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
        files: Mapping[str, Content],
        fetch: Sequence[str],
        compile_limits: Limits,
        run_limits: Limits,
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
        files: Mapping[str, Content],
        stdin: bytes,
        limits: Limits,
        fetch: Sequence[str] = (),
        keep_all: bool = False,
    ) -> Ran:
        fault = SandboxFault("no attempt was made")
        for _ in range(_ATTEMPTS):
            async with self.pool.jail() as jail:
                try:
                    put_files(jail.work, files, jail.owner)
                except ValueError as error:
                    raise HTTPException(422, f"files: {error}") from error
                except OSError as error:
                    fault = SandboxFault(f"cannot write the files: {error}")
                    continue
                try:
                    await jail.begin(self._job(arguments, language, limits), stdin)
                except SandboxFault as error:  # no code has run: another sandbox can do it
                    fault = error
                    continue
                with self.watch.over(jail, limits):
                    ended = await jail.wait(limits.seconds)
                ran = Ran(await self._result(jail, ended))
                limit = self._options.files_mb * MIB
                if keep_all and ran.ok:
                    ran.files = all_files(jail.work, limits.disk_mb * MIB)
                elif fetch:
                    ran.files, ran.problems = get_files(jail.work, fetch, limit)
                return ran
        raise fault

    def _job(self, arguments: tuple[str, ...] | None, language: Language, limits: Limits) -> dict[str, object]:
        rlimits = limits.rlimits(language.reserves_memory)
        if arguments is None:
            return {"kind": "main", "path": self.pool.isolation.layout.python_path, "limits": rlimits}
        heap_mb = max(16, limits.memory_mb * 3 // 4)
        filled = [argument.replace("{memory_mb}", str(heap_mb)) for argument in arguments]
        return {"kind": "command", "argv": filled, "limits": rlimits}

    async def _result(self, jail: Jail, ended: Exit) -> CommandResult:
        """Raises SandboxFault when the program was never there."""
        failure = await jail.receive(200)
        if failure.startswith(b"E"):
            raise SandboxFault(f"cannot start {failure[1:].decode(errors='replace')}")
        return describe_exit(jail, ended)


def describe_exit(jail: Jail, ended: Exit) -> CommandResult:
    """What the answer says about a program that ended."""
    stdout = jail.stdout.take().decode(errors="replace")
    stderr = jail.stderr.take().decode(errors="replace")
    if jail.stopped is not None:
        stderr += f"\nThe program was stopped: {jail.stopped}.\n"
    return CommandResult(
        status="TimeLimitExceeded" if ended.timed_out else "Finished",
        execution_time=round(ended.seconds, 4),
        return_code=None if ended.timed_out else ended.code,
        stdout=stdout,
        stderr=stderr,
    )
