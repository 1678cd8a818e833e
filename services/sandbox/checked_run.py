"""Runs a program and, in a sandbox of its own, a check that calls what the program defines.

The program answers calls; the check compares what it gets. The two share a line of frames, which passes through the
service, and nothing else: no process, no file, no memory. So a program cannot read the check, nor how a test that
passed looks from outside, and it ends no test but by being wrong.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path

from fastapi import HTTPException

from agentrl.services.sandbox.bash_checks import guard
from agentrl.services.sandbox.languages import Language
from agentrl.services.sandbox.program_runner import Program, ProgramRunner, describe_exit
from agentrl.services.sandbox.protocol import CommandResult
from agentrl.services.sandbox.run_files import FileContent, put_files
from agentrl.services.sandbox.run_limits import RunLimits
from agentrl.services.sandbox.sandbox_lifecycle import ExitStatus, Sandbox, SandboxFault

_CHUNK = 1 << 16
_NAME = r"[A-Za-z_$][A-Za-z0-9_$]*"
"""In JavaScript; in bash and Perl `$x` is the value of x."""
_PASSED, _NO_PROGRAM = 0, 3
"""Exit codes of a check: it holds, or the program ended before it could be called. Others: it does not hold."""
_SCRIPTS = Path(__file__).resolve().parent / "check_scripts"
_SERVES = {"bash": "serve.sh", "nodejs": "serve.js", "perl": "serve.pl"}
"""What follows a program of a language so that its functions can be called."""
LANGUAGES = ("python", *_SERVES)
"""Languages in which a check can call a program."""


class CheckedRun:
    """Checks programs of one language.

    Args:
        runner: runs programs.
        language: one of `LANGUAGES`.
        code: the program.
        files: beside the program, and beside the check.
    """

    def __init__(self, runner: ProgramRunner, language: Language, code: str, files: Mapping[str, FileContent]) -> None:
        self._runner, self._language, self._code, self._files = runner, language, code, files

    async def run(self, check: str, stdin: str, limits: RunLimits) -> tuple[CommandResult, bool]:
        """How the program and its check ended, and whether the check was done.

        Raises:
            HTTPException: 422, the files do not fit together.
            SandboxFault: one of the two could not be run.
        """
        pool, monitor = self._runner.pool, self._runner.monitor
        async with AsyncExitStack() as stack:
            tested = await stack.enter_async_context(pool.sandbox())
            checker = await stack.enter_async_context(pool.sandbox())
            await self._begin(tested, self._program(), self._job(limits), stdin.encode(errors="surrogatepass"))
            await self._begin(checker, self._check(check), self._check_job(check, limits), b"")
            lines = [asyncio.create_task(_pass_on(*pair)) for pair in ((tested, checker), (checker, tested))]
            try:
                with monitor.watch(tested, limits), monitor.watch(checker, limits):
                    checked = await checker.wait(limits.seconds)
                    ended = None
                    if checked.code == _NO_PROGRAM and not checked.timed_out:
                        ended = await tested.wait(limits.seconds)
            finally:
                for line in lines:
                    line.cancel()
                await asyncio.gather(*lines, return_exceptions=True)
            await tested.kill()
            return self._result(tested, checker, ended, checked)

    def _result(
        self, tested: Sandbox, checker: Sandbox, ended: ExitStatus | None, checked: ExitStatus
    ) -> tuple[CommandResult, bool]:
        result = describe_exit(tested, ended or checked)
        said = describe_exit(checker, checked)
        texts = {name: (getattr(result, name) or "") + (getattr(said, name) or "") for name in ("stdout", "stderr")}
        return result.model_copy(update=texts), checked.code == _PASSED

    async def _begin(self, sandbox: Sandbox, program: Program, job: dict[str, object], stdin: bytes) -> None:
        try:
            put_files(sandbox.work, program.files, sandbox.owner)
        except ValueError as error:
            raise HTTPException(422, f"files: {error}") from error
        except OSError as error:
            raise SandboxFault(f"cannot write the files: {error}") from error
        await sandbox.begin(job, stdin)

    def _program(self) -> Program:
        code = self._code
        if self._language.name in _SERVES:
            code = f"{code}\n\n{_script(_SERVES[self._language.name])}"
        return self._runner.program(self._language, code, self._files)

    def _job(self, limits: RunLimits) -> dict[str, object]:
        return {**self._runner.job(self._language.run, self._language, limits), "serves": True}

    def _check(self, check: str) -> Program:
        if self._language.name not in _SERVES:
            return Program(self._language, self._files)
        own: frozenset[str] = frozenset()
        if self._language.name == "bash":
            check, own = guard(check)
        names = sorted(
            set(re.findall(_NAME if self._language.name == "nodejs" else _NAME.replace("$", ""), check)) - own
        )
        listed = json.dumps(names) if self._language.name == "nodejs" else " ".join(names)
        script = _script(_SERVES[self._language.name].replace("serve", "check")).replace("THE_NAMES", listed)
        code = script.replace("THE_CHECK", check, 1)
        return self._runner.program(self._language, code, self._files)

    def _check_job(self, check: str, limits: RunLimits) -> dict[str, object]:
        if self._language.name in _SERVES:
            return self._job(limits)
        return {**self._job(limits), "kind": "check", "code": check, "program": self._code}


async def _pass_on(source: Sandbox, target: Sandbox) -> None:
    """Give one end of the line what the other writes, and its end."""
    while data := await source.receive(_CHUNK):
        await target.pass_on(data)
    target.hang_up()


@cache
def _script(name: str) -> str:
    text = (_SCRIPTS / name).read_text(encoding="utf-8")
    return text.replace("THE_LINE", _script(f"line.{name.rpartition('.')[2]}"), 1) if "THE_LINE" in text else text
