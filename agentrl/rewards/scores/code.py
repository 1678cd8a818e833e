"""Code: the last fenced block against the row's tests, run in a sandbox service (`reward_model.sandbox_fusion`).

A sandbox that could not run the tests says nothing about the code: that is an error, never a score.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.clients.code_blocks import last_code_block
from agentrl.clients.code_tests import CodeTest, read_tests
from agentrl.clients.empty_checks import must_test
from agentrl.clients.http import ServiceClient
from agentrl.clients.sandbox import SandboxClient
from agentrl.clients.split_asserts import parse_check
from agentrl.clients.trials import judge_tests
from agentrl.errors import RewardError

AT_ONCE = 8
"""Tests per request. Its results decide whether more tests are run."""
MAX_TIMEOUTS = 3
"""After this many tests that timed out, the rest is not run."""


def code_gold_problem(ground_truth: Any, language: str = "python") -> str | None:
    """Why the tests of a coding task cannot be run; None: they can.

    Args:
        ground_truth: the tests.
        language: of the programs.
    """
    try:
        for test in read_tests(ground_truth):
            if test.check is not None and language == "python":
                parse_check(test.check)
            if test.check is not None:
                must_test(test.check, language)
    except ValueError as error:
        return f"the ground truth of a coding task: {error}"
    return None


class CodeScore:
    """Scores programs in one sandbox service: `agentrl serve sandbox`, or any that speaks SandboxFusion's protocol.

    Args:
        url: its address, with or without `/run_code`.
        max_concurrent: most requests to it at the same time.
        memory_limit_mb: of each test.
        headers: sent with every request.
        retries: attempts after the first for a request that the service could not serve.
        backoff_s: the first pause between attempts.

    Raises:
        ValueError: the address is not valid.
    """

    def __init__(
        self,
        url: str,
        *,
        max_concurrent: int = 64,
        memory_limit_mb: int = 1024,
        headers: Mapping[str, str] | None = None,
        retries: int = 3,
        backoff_s: float = 0.5,
    ) -> None:
        self._url, self._memory_limit_mb, self._headers = url, memory_limit_mb, headers
        self._retries, self._backoff_s = retries, backoff_s
        self._slots = asyncio.Semaphore(max_concurrent)
        self._service()

    async def __call__(
        self,
        solution_str: str,
        ground_truth: Any,
        continuous: bool = True,
        timeout: float = 10.0,
        language: str = "python",
    ) -> dict[str, Any]:
        """Score one solution.

        Args:
            solution_str: what the assistant wrote.
            ground_truth: the tests; see `agentrl.clients.read_tests`.
            continuous: the score is the share of tests that passed; false: 1 if all did, and 0 if not.
            timeout: seconds of each test.
            language: of the code.

        Returns:
            `score`, and `has_code`: whether the solution holds a fenced block. Without one the score is 0, and
            `service_used` is false, since no sandbox was called.

        Raises:
            RewardError: the ground truth holds no tests, or they do not fit the language.
            ToolServiceError: the sandbox could not run the tests, after retries.
        """
        try:
            tests = read_tests(ground_truth)
        except ValueError as error:
            raise RewardError(f"the ground truth of a coding task: {error}") from error
        code = last_code_block(solution_str, language)
        if code is None:
            return {"score": 0.0, "has_code": False, "service_used": False}
        service = self._service()
        sandbox = SandboxClient(
            service,
            language=language,
            run_timeout_s=timeout,
            memory_limit_mb=self._memory_limit_mb,
            slots=self._slots,
        )
        try:
            passed = await _passed(sandbox, code, tests, stop_early=not continuous)
        except ValueError as error:
            raise RewardError(f"the ground truth of a coding task: {error}") from error
        finally:
            await service.aclose()
        return {"score": passed / len(tests) if continuous else float(passed == len(tests)), "has_code": True}

    def _service(self) -> ServiceClient:
        return ServiceClient(self._url, retries=self._retries, backoff_s=self._backoff_s, headers=self._headers)


async def _passed(sandbox: SandboxClient, code: str, tests: Sequence[CodeTest], *, stop_early: bool) -> int:
    """The number of tests that pass; tests that need not run any more count as failed."""
    passed = timeouts = 0
    for start in range(0, len(tests), AT_ONCE):
        group = tests[start : start + AT_ONCE]
        outcomes = await judge_tests(sandbox, code, group, stop_early=stop_early, at_once=AT_ONCE)
        passed += sum(outcome.passed for outcome in outcomes)
        timeouts += sum(outcome.result.timed_out for outcome in outcomes)
        compiles = not outcomes[0].result.compile_failed
        if (stop_early and passed < start + len(group)) or timeouts >= MAX_TIMEOUTS or not compiles:
            break
    return passed
