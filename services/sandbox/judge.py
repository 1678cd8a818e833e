"""Runs a program against a list of tests, several at the same time."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from agentrl.services.sandbox.protocol import CommandResult, JudgeAnswer, JudgeTest, TestResult, Verdict
from agentrl.services.sandbox.sandbox_lifecycle import SandboxFault

_LEAST_SHOWN = 4096
RunTest = Callable[[JudgeTest], Awaitable[tuple[CommandResult, bool]]]
"""Runs the program on one test; how it ended, and whether it came to its last line. Raises SandboxFault, or Busy."""
_SAY = {
    "python": '__import__("sys").__stderr__.write("\\n{mark}\\n")',
    "bash": "[ $? -eq 0 ] || exit 1\nprintf '\\n%s\\n' {mark} >&2",
    "nodejs": 'process.stderr.write("\\n{mark}\\n");',
    "perl": 'print STDERR "\\n{mark}\\n";',
}
"""How a program of a language reports that it reached its end: on stderr, which is hardly ever cut off."""


class AssertCheck:
    """Code that follows a program and must not fail. A program that ends before it has not passed.

    Args:
        code: the check.
        language: name of its language, one of `AssertCheck.languages`.
    """

    languages = tuple(_SAY)

    def __init__(self, code: str, language: str) -> None:
        self._mark = f"ended_{secrets.token_hex(8)}"
        self._say = _SAY[language].format(mark=self._mark)
        self._code = code

    def follow(self, program: str) -> str:
        """The program with the check behind it."""
        return f"{program}\n\n{self._code}\n{self._say}\n"

    def read(self, result: CommandResult) -> tuple[CommandResult, bool]:
        """The result as the program itself printed it, and whether the check was done."""
        before, said, after = (result.stderr or "").partition(f"\n{self._mark}\n")
        return result.model_copy(update={"stderr": before + after}) if said else result, bool(said)


async def judge(
    tests: list[JudgeTest], run: RunTest, at_once: int, stop_early: bool, shown_chars: int
) -> list[TestResult]:
    """One result per test, in order.

    Args:
        tests: the tests.
        run: runs one.
        at_once: tests at the same time.
        stop_early: once one has failed, the others are ended or not begun.
        shown_chars: of each output of all tests together; each result shows its share, after it was compared.

    Raises:
        Busy: the service has no place for the rest.
    """
    results = [TestResult(passed=False, verdict="Skipped") for _ in tests]
    places, share = asyncio.Semaphore(at_once), max(_LEAST_SHOWN, shown_chars // len(tests))

    async def one(number: int) -> bool:
        async with places:
            results[number] = _shorten(await _run(tests[number], run), share)
        return results[number].passed

    tasks = [asyncio.create_task(one(number)) for number in range(len(tests))]
    try:
        for done in asyncio.as_completed(tasks):
            if not await done and stop_early:
                break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return results


def conclude(results: list[TestResult], compiled: CommandResult | None, faults: list[str]) -> JudgeAnswer:
    """The answer for these results."""
    passed = sum(result.passed for result in results)
    broken = any(result.verdict == "SandboxError" for result in results)
    return JudgeAnswer(
        status="SandboxError" if broken else "Success" if passed == len(results) else "Failed",
        message="; ".join(dict.fromkeys(faults)),
        passed=passed,
        total=len(results),
        compile_result=compiled,
        tests=results,
    )


def same_output(given: str, wanted: str) -> bool:
    """Whether two outputs are equal, apart from spaces at the ends of lines and empty lines at the end."""
    return _lines(given) == _lines(wanted)


async def _run(test: JudgeTest, run: RunTest) -> TestResult:
    try:
        result, at_end = await run(test)
    except SandboxFault:
        return TestResult(passed=False, verdict="SandboxError")
    verdict: Verdict = "Passed"
    if result.status == "TimeLimitExceeded":
        verdict = "TimeLimitExceeded"
    elif result.return_code != 0:
        verdict = "RuntimeError"
    elif not at_end or (test.output is not None and not same_output(result.stdout or "", test.output)):
        verdict = "WrongAnswer"
    return TestResult(passed=verdict == "Passed", verdict=verdict, run_result=result)


def _shorten(result: TestResult, share: int) -> TestResult:
    ran = result.run_result
    if ran is not None:
        texts = {"stdout": shorten(ran.stdout or "", share), "stderr": shorten(ran.stderr or "", share)}
        result.run_result = ran.model_copy(update=texts)
    return result


def shorten(text: str, most: int) -> str:
    """The beginning of a text that is longer than `most`, which says so."""
    return text if len(text) <= most else f"{text[:most]}\n[output cut: {len(text) - most} more characters]\n"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().replace("\r\n", "\n").split("\n")]
