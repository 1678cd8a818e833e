"""Runs a program against a list of tests, several at the same time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from agentrl.services.sandbox.admission import SparePlaces
from agentrl.services.sandbox.protocol import CommandResult, JudgeAnswer, JudgeTest, TestResult, Verdict
from agentrl.services.sandbox.sandbox_lifecycle import SandboxFault

_LEAST_SHOWN = 4096
RunTest = Callable[[JudgeTest], Awaitable[tuple[CommandResult, bool]]]
"""Runs the program on one test; how it ended, and whether its check was done. Raises SandboxFault."""
_OWN, _SPARE = "own", "spare"


async def judge(
    tests: list[JudgeTest], run: RunTest, spare: SparePlaces, stop_early: bool, shown_chars: int
) -> list[TestResult]:
    """One result per test, in order.

    The caller holds one place, so every judge ends; tests run at the same time in places that nobody waits for.

    Args:
        tests: the tests.
        run: runs one.
        spare: places beside the caller's own.
        stop_early: once one has failed, the others are ended or not begun.
        shown_chars: of each output of all tests together; each result shows its share, after it was compared.
    """
    results = [TestResult(passed=False, verdict="Skipped") for _ in tests]
    share = max(_LEAST_SHOWN, shown_chars // len(tests))
    left, free = deque(range(len(tests))), {_OWN}
    running: dict[asyncio.Task[bool], str] = {}

    async def one(number: int) -> bool:
        results[number] = _shorten(await _run(tests[number], run), share)
        return results[number].passed

    try:
        while left or running:
            while left and (free or spare.take()):
                running[asyncio.create_task(one(left.popleft()))] = free.pop() if free else _SPARE
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if running.pop(task) == _OWN:
                    free.add(_OWN)
                else:
                    spare.give_back()
            if not all(task.result() for task in done) and stop_early:
                break
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for _ in filter(_SPARE.__eq__, running.values()):
            spare.give_back()
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
