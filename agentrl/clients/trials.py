"""Runs tests of a program in a sandbox: one request for each, or several in one where the service has `/judge`."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.clients.code_tests import CodeTest, FunctionCall, same_output, same_value
from agentrl.clients.sandbox import RunResult, SandboxClient

_PRELUDE = """\
import bisect, collections, functools, heapq, itertools, math, random, re, string, sys
from collections import *
from typing import *
"""
"""What a program that is called finds imported: sites that ask for a function import these themselves."""
_SAY = """
__import__("sys").__stdout__.write("\\n{mark}\\n")
"""
_CALL = """
def _{mark}():
    import json, sys
    found = globals().get({name!r})
    if found is None:
        found = getattr(globals()["Solution"](), {name!r})
    answer = json.dumps(found(*json.loads({arguments!r})), default=str)
    sys.__stdout__.write("\\n{mark}" + answer + "\\n")

_{mark}()
"""


@dataclass(frozen=True, slots=True)
class TestOutcome:
    """How one test went."""

    __test__ = False  # pytest: this is no test class

    test: CodeTest
    passed: bool
    result: RunResult


async def run_tests(
    sandbox: SandboxClient, code: str, tests: Sequence[CodeTest], at_once: int = 8
) -> list[TestOutcome]:
    """Run every test in a request of its own, some at once; one outcome per test, in order.

    Raises:
        ToolServiceError: the sandbox could not run one of them (R9).
        ValueError: a test calls a function, and the language is not Python.
    """
    slots, trial = asyncio.Semaphore(at_once), _Trial(code, sandbox.language)

    async def run(test: CodeTest) -> TestOutcome:
        async with slots:
            return trial.outcome(test, await sandbox.run(trial.program(test), test.stdin))

    tasks = [asyncio.create_task(run(test)) for test in tests]
    try:
        return list(await asyncio.gather(*tasks))
    finally:  # one that failed must not leave the others to a client that its owner closes
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def judge_tests(
    sandbox: SandboxClient, code: str, tests: Sequence[CodeTest], *, stop_early: bool = False, at_once: int = 8
) -> list[TestOutcome]:
    """Run the tests in one request (`POST /judge`), or as `run_tests` does where the service has no such route.

    Args:
        sandbox: the service.
        code: the program.
        tests: a few tests; a call makes them all of one request, so its time is theirs together.
        stop_early: once one has failed the others need not run, and count as failed.
        at_once: see `run_tests`.

    Raises:
        ToolServiceError: the sandbox could not run one of them (R9).
        ValueError: a test calls a function, and the language is not Python.
    """
    trial = _Trial(code, sandbox.language)
    asked = [trial.question(test) for test in tests]
    results = await sandbox.judge(trial.start(tests), asked, stop_early=stop_early)
    if results is None:
        return await run_tests(sandbox, code, tests, at_once)
    return [trial.outcome(test, result) for test, result in zip(tests, results, strict=True)]


class _Trial:
    """One program under test.

    What follows a Python program says a word at its end that the program cannot know before it runs: a program that
    ends the interpreter early with return code 0 passes nothing. What a call must return stays out of the sandbox.
    """

    def __init__(self, code: str, language: str) -> None:
        self._code, self._language = code, language
        self._mark = f"ended_{secrets.token_hex(8)}"

    def start(self, tests: Sequence[CodeTest]) -> str:
        """The program, without what follows it."""
        called = any(test.call is not None for test in tests)
        return _PRELUDE + self._code if called and "from __future__" not in self._code else self._code

    def program(self, test: CodeTest) -> str:
        """The program and what follows it."""
        after = self._after(test)
        return self._code if after is None else f"{self.start([test])}\n\n{after}\n"

    def question(self, test: CodeTest) -> dict[str, Any]:
        """The test as `/judge` takes it."""
        after = self._after(test)
        if after is None and test.stdout is not None:
            return {"input": test.stdin, "output": test.stdout}
        return {"input": test.stdin, "assert": after or ""}

    def outcome(self, test: CodeTest, result: RunResult) -> TestOutcome:
        """Whether a run passes its test."""
        passed = result.ok
        if test.call is not None:
            passed = passed and self._returned(test.call, result.stdout)
        elif test.check is not None:
            passed = passed and (self._language != "python" or self._mark in result.stdout.splitlines())
        elif test.stdout is not None:
            passed = passed and same_output(result.stdout, test.stdout)
        return TestOutcome(test, passed, result)

    def _after(self, test: CodeTest) -> str | None:
        if test.call is not None:
            if self._language != "python":
                raise ValueError(f"got fn_name {test.call.name!r} for {self._language}, wanted a Python program")
            arguments = json.dumps(test.call.arguments)
            return _CALL.format(mark=self._mark, name=test.call.name, arguments=arguments)
        if test.check is not None and self._language == "python":
            return test.check + _SAY.format(mark=self._mark)
        return test.check

    def _returned(self, call: FunctionCall, stdout: str) -> bool:
        said = [line for line in stdout.splitlines() if line.startswith(self._mark)]
        try:
            return bool(said) and same_value(json.loads(said[-1].removeprefix(self._mark)), call.returns)
        except ValueError:
            return False
