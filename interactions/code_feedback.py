"""A reviewer who runs the row's tests on the code and reports the failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.interfaces import (
    BaseInteraction,
    CodeTest,
    SandboxClient,
    TestOutcome,
    check_config,
    judge_tests,
    last_code_block,
    read_tests,
)
from agentrl.types import InteractionResponse, JsonDict, Message

_CONFIG = (
    *("sandbox_url", "language", "run_timeout_s", "compile_timeout_s", "memory_limit_mb", "retries", "backoff_s"),
    *("headers", "at_once", "max_shown", "max_chars", "hide_tests", "continuous", "passed_text", "no_code_text"),
)
_PASSED = "All tests passed."
_NO_CODE = "I found no code in your answer. Write the whole program in one ``` block."


class CodeFeedbackInteraction(BaseInteraction):
    """Runs the last code block of the last answer against the row's tests and continues until all pass.

    Args:
        config: the sandbox: `sandbox_url` (required), `language` (python), `run_timeout_s` (10), `compile_timeout_s`
            (10), `memory_limit_mb` (-1), `retries` (3), `backoff_s` (0.5), `headers`, `at_once` (8 tests). The reply:
            `max_shown` failures (3), `max_chars` of each part (500), `hide_tests` (false; true: only the number of
            failures), `passed_text`, `no_code_text`. The score: `continuous` (true: the share of tests that passed;
            false: 1 if all did, else 0).

    A row gives `tests`: asserts, or `{input, output}` pairs.
    """

    def __init__(self, config: JsonDict) -> None:
        super().__init__(config)
        check_config(config, _CONFIG)
        self._sandbox = SandboxClient.from_config(config)
        self._tests: list[CodeTest] = []
        self._score = 0.0

    async def start_interaction(self, **interaction_kwargs: Any) -> None:
        """Needs `tests`; other keys are ignored."""
        self._sandbox.service.scope = self.scope
        try:
            self._tests = read_tests(interaction_kwargs.get("tests"))
        except ValueError as error:
            raise ValueError(f"`interaction_kwargs.tests`: {error}") from error

    async def generate_response(self, messages: list[Message]) -> InteractionResponse:
        """Test the last assistant message.

        Raises:
            ToolServiceError: the sandbox could not run the tests.
        """
        said = next((str(m["content"]) for m in reversed(messages) if m["role"] == "assistant"), "")
        code = last_code_block(said, self._sandbox.language)
        if code is None:
            self._score = 0.0
            return InteractionResponse(False, str(self.config.get("no_code_text", _NO_CODE)), 0.0)
        outcomes: list[TestOutcome] = []
        at_once = max(1, int(self.config.get("at_once", 8)))
        for start in range(0, len(self._tests), at_once):
            outcomes += await judge_tests(self._sandbox, code, self._tests[start : start + at_once], at_once=at_once)
        passed = sum(outcome.passed for outcome in outcomes)
        done = passed == len(outcomes)
        self._score = passed / len(outcomes) if self.config.get("continuous", True) else float(done)
        text = str(self.config.get("passed_text", _PASSED)) if done else self._report(outcomes)
        return InteractionResponse(done, text, self._score, {"passed": passed, "tests": len(outcomes)})

    async def calculate_score(self) -> float:
        """The score of the last answer."""
        return self._score

    async def finalize_interaction(self) -> None:
        """Close the interaction's own connections."""
        await self._sandbox.service.aclose()

    def _report(self, outcomes: Sequence[TestOutcome]) -> str:
        failed = [(number, one) for number, one in enumerate(outcomes, start=1) if not one.passed]
        head = f"{len(failed)} of {len(outcomes)} tests failed."
        if self.config.get("hide_tests", False):
            return f"{head} Correct your code and write the whole program again."
        shown = failed[: int(self.config.get("max_shown", 3))]
        parts = [head, *(self._describe(number, one) for number, one in shown)]
        if len(failed) > len(shown):
            parts.append(f"({len(failed) - len(shown)} more failed.)")
        return "\n\n".join([*parts, "Correct your code and write the whole program again."])

    def _describe(self, number: int, outcome: TestOutcome) -> str:
        test, result = outcome.test, outcome.result
        lines = [f"Test {number}:"]
        if test.check is not None:
            lines.append(self._cut(test.check))
        else:
            lines += [f"Input:\n{self._cut(test.stdin)}", f"Expected output:\n{self._cut(test.stdout or '')}"]
            lines.append(f"Your output:\n{self._cut(result.stdout)}")
        if result.timed_out:
            lines.append(f"It ran longer than {self._sandbox.run_timeout_s:g} s.")
        if result.stderr:
            lines.append(f"Error:\n{self._cut(result.stderr, tail=True)}")
        return "\n".join(lines)

    def _cut(self, text: str, *, tail: bool = False) -> str:
        limit = int(self.config.get("max_chars", 500))
        text = text.strip()
        if len(text) <= limit:
            return text
        return f"...{text[-limit:]}" if tail else f"{text[:limit]}..."
