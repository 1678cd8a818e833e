"""Runs tests of a program in a sandbox: one request per test, or several tests per request if it has `/judge`."""

from __future__ import annotations

import ast
import asyncio
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.clients.code_tests import CodeTest, same_output, same_value
from agentrl.clients.empty_checks import must_test
from agentrl.clients.sandbox import RunResult, SandboxClient
from agentrl.clients.split_asserts import parse_check, split_asserts, with_checked_unittest

_PRELUDE = """\
import bisect, collections, functools, heapq, itertools, math, random, re, string, sys
from collections import *
from typing import *
from functools import cache, cached_property, cmp_to_key, lru_cache, partial, reduce
from itertools import accumulate, chain, combinations, count, groupby, pairwise, permutations, product, zip_longest
from heapq import heapify, heappop, heappush, heappushpop, heapreplace, nlargest, nsmallest
from bisect import bisect_left, bisect_right, insort
from math import ceil, comb, factorial, floor, gcd, inf, isqrt, lcm, log, log2, sqrt
from copy import copy, deepcopy
"""
"""Imports for a program whose function is called: the sites that ask for a function provide them."""
_SAY = {
    "python": '__import__("sys").__stdout__.write("\\n{mark}true\\n")',
    "bash": "[ $? -eq 0 ] || exit 1\nprintf '\\n%s\\n' {mark}true",
    "nodejs": 'process.stdout.write("\\n{mark}true\\n");',
    "perl": 'print STDOUT "\\n{mark}true\\n";',
}
"""How a program says that it came to the end of its assert, where both run in one process."""
_BEFORE = {
    "python": '__name__ = "__main__"',
    "nodejs": 'console.assert = (holds) => { if (!holds) throw new Error("AssertionError"); };',  # Node's own goes on
}
"""What stands before an assert, in the process of the program."""
_AS_MODULE = '__import__("sys").modules["main"] = __import__("sys").modules["__main__"]; __name__ = "main"'
"""Before a program that is called: its `if __name__ == "__main__":` would read input that nobody gives."""
_CALL = """
def _{mark}():
    import json, sys

    def plain(value):
        # numpy's numbers and arrays; a deque, a set or any other object is no JSON value
        if type(value).__module__.partition(".")[0] in ("numpy", "torch") and hasattr(value, "tolist"):
            return value.tolist()
        raise TypeError(f"the function returned {{type(value).__name__}}, which is no JSON value")

    def keyed(value):
        # numpy's numbers as keys, at any depth
        if isinstance(value, dict):
            numbers = {{key: key.item() if hasattr(type(key), "item") else key for key in value}}
            return {{numbers[key]: keyed(item) for key, item in value.items()}}
        return [keyed(item) for item in value] if type(value) in (list, tuple) else value

    found = globals().get({name!r})
    if found is None:
        found = getattr(globals()["Solution"](), {name!r})
    sys.set_int_max_str_digits(0)
    answer = json.dumps(keyed(found(*json.loads({arguments!r}))), default=plain)
    sys.__stdout__.write("\\n{mark}" + answer + "\\n")

_{mark}()
"""


_NOTHING = object()
"""Equal to no value that a test may want."""


@dataclass(frozen=True, slots=True)
class TestOutcome:
    """How one test went."""

    __test__ = False  # tells pytest that this is not a test class

    test: CodeTest
    passed: bool
    result: RunResult


async def run_tests(
    sandbox: SandboxClient, code: str, tests: Sequence[CodeTest], at_once: int = 8
) -> list[TestOutcome]:
    """Run every test in its own request, at most `at_once` at the same time; one outcome per test, in order.

    Raises:
        ToolServiceError: the sandbox could not run one of them.
        ValueError: the language is not one of which functions can be called, or an assert is not Python
            or tests nothing.
    """
    slots, trial = asyncio.Semaphore(at_once), _Trial(code, sandbox.language)

    async def run(test: CodeTest) -> TestOutcome:
        async with slots:
            return trial.outcome(test, await sandbox.run(trial.program(test), test.stdin))

    tasks = [asyncio.create_task(run(test)) for test in tests]
    try:
        return list(await asyncio.gather(*tasks))
    finally:  # if one failed, the others must not go on with a client that its owner is about to close
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def judge_tests(
    sandbox: SandboxClient, code: str, tests: Sequence[CodeTest], *, stop_early: bool = False, at_once: int = 8
) -> list[TestOutcome]:
    """Run the tests in one request (`POST /judge`), or as `run_tests` does if the service has no such route.

    Args:
        sandbox: the service.
        code: the program.
        tests: a few tests; all are sent in one request, so its deadline covers them together.
        stop_early: after the first failed test the others need not run, and count as failed.
        at_once: see `run_tests`.

    Raises:
        ToolServiceError: the sandbox could not run one of them.
        ValueError: the language is not one of which functions can be called, or an assert is not Python
            or tests nothing.
    """
    trial = _Trial(code, sandbox.language)
    asked = [trial.question(test) for test in tests]
    results = await sandbox.judge(trial.start(tests), asked, stop_early=stop_early)
    if results is None:
        return await run_tests(sandbox, code, tests, at_once)
    return [trial.judged(test, result) for test, result in zip(tests, results, strict=True)]


def _as_module(code: str) -> str:
    """A Python program under the name of a module, which it gets after its `from __future__ import`, if it has one."""
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code  # fails in the sandbox, which says why
    future = [node for node in body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    if not future:
        return f"{_AS_MODULE}\n{code}"
    lines = code.encode().splitlines(keepends=True)
    place = int(future[-1].end_lineno or 1)
    return b"".join([*lines[:place], b"\n", _AS_MODULE.encode(), b"\n", *lines[place:]]).decode()


class _Trial:
    """One program under test.

    The wanted result of a call is never sent to the sandbox, and an assert is run out of the program's reach if the
    service has `/judge`. Without it, an assert of the form `assert f(1) == 2` is split: the sandbox evaluates `f(1)`,
    and the 2 stays here. Of any other assert a program must come to the end, where it prints a word.
    """

    def __init__(self, code: str, language: str) -> None:
        self._code, self._language = code, language
        self._mark = f"ended_{secrets.token_hex(8)}"

    def start(self, tests: Sequence[CodeTest]) -> str:
        """The program, without the code after it."""
        called = any(test.call is not None for test in tests)
        code = _PRELUDE + self._code if called and "from __future__" not in self._code else self._code
        return _as_module(code) if all(test.call is not None for test in tests) else code

    def program(self, test: CodeTest) -> str:
        """The program and the code after it."""
        after = self._after(test)
        if after is None:
            return self._code
        asserted = test.check is not None and self._language == "python"
        return f"{_as_module(self._code) if asserted else self.start([test])}\n\n{after}\n"

    def question(self, test: CodeTest) -> dict[str, Any]:
        """The test in the form that `/judge` takes."""
        if test.check is not None:
            self._must_fit(test.check)
            return {"input": test.stdin, "assert": test.check}
        if test.call is None and test.stdout is not None:
            return {"input": test.stdin, "output": test.stdout}
        return {"input": test.stdin, "follow": self._after(test) or ""}

    def judged(self, test: CodeTest, result: RunResult) -> TestOutcome:
        """How a test went for `/judge`, which has run its assert out of the program's reach."""
        return TestOutcome(test, result.ok, result) if test.check is not None else self.outcome(test, result)

    def outcome(self, test: CodeTest, result: RunResult) -> TestOutcome:
        """Whether a run of `program` passes its test."""
        passed = result.ok
        if test.call is not None:
            passed = passed and same_value(self._told(result.stdout), test.call.returns)
        elif test.check is not None:
            split = split_asserts(test.check, self._mark) if self._language == "python" else None
            told = self._told(result.stdout) if passed else None
            failure = split.failure(told) if split else None if told is True else ""
            if passed and failure:  # the sandbox, which does not know what is expected, could not say it
                result = replace(result, stderr=f"{result.stderr}\n{failure}\n".lstrip())
            passed = passed and failure is None
        elif test.stdout is not None:
            passed = passed and same_output(result.stdout, test.stdout)
        return TestOutcome(test, passed, result)

    def _after(self, test: CodeTest) -> str | None:
        if test.call is not None:
            if self._language != "python":
                raise ValueError(f"fn_name: got {test.call.name!r} for {self._language}, only Python can be called")
            arguments = json.dumps(test.call.arguments)
            return _CALL.format(mark=self._mark, name=test.call.name, arguments=arguments)
        if test.check is not None:
            self._must_fit(test.check)
            python = self._language == "python"
            split = split_asserts(test.check, self._mark) if python else None
            before = _BEFORE.get(self._language, "")
            check = with_checked_unittest(test.check) if python else test.check
            after = split.code if split else f"{check}\n{_SAY[self._language].format(mark=self._mark)}"
            return f"{before}\n{after}"
        return None

    def _must_fit(self, check: str) -> None:
        if self._language not in _SAY:
            raise ValueError(
                f"assert: got one for {self._language}, wanted the language to be one of {', '.join(_SAY)}"
            )
        if self._language == "python":
            parse_check(check)
        must_test(check, self._language)

    def _told(self, stdout: str) -> Any:
        """What the code after the program printed last, decoded; `_NOTHING` if it printed nothing."""
        said = [line for line in stdout.splitlines() if line.startswith(self._mark)]
        try:
            return json.loads(said[-1].removeprefix(self._mark)) if said else _NOTHING
        except ValueError:
            return _NOTHING
