"""The reviewer runs tests in a real service and says what fails."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import Response
from sandbox_server import Sandbox

from agentrl.clients import CodeTest, last_code_block, read_tests
from agentrl.clients.code_tests import same_output
from agentrl.errors import ToolServiceError
from agentrl.interactions.code_feedback import CodeFeedbackInteraction
from agentrl.types import InteractionResponse

RIGHT = "Here:\n```python\ndef double(n):\n    return 2 * n\n```\nDone."
WRONG = "```python\ndef double(n):\n    return n + 2\n```"


async def review(sandbox: Sandbox, answer: str, tests: Any, **config: Any) -> InteractionResponse:
    interaction = CodeFeedbackInteraction({"sandbox_url": sandbox.url, "retries": 0, **config})
    await interaction.start_interaction(query="q", tests=tests)
    try:
        response = await interaction.generate_response(
            [{"role": "user", "content": RIGHT}, {"role": "assistant", "content": answer}]
        )
        assert await interaction.calculate_score() == response.score
        return response
    finally:
        await interaction.finalize_interaction()


ASSERTS = ["assert double(2) == 4", "assert double(3) == 6, 'three'"]


async def test_asserts(sandbox: Sandbox) -> None:
    good = await review(sandbox, RIGHT, ASSERTS)
    assert (good.should_terminate, good.score, good.content) == (True, 1.0, "All tests passed.")
    assert good.metadata == {"passed": 2, "tests": 2}
    bad = await review(sandbox, WRONG, ASSERTS)
    assert (bad.should_terminate, bad.score) == (False, 0.5)
    assert bad.content.startswith("1 of 2 tests failed.\n\nTest 2:\nassert double(3) == 6, 'three'\nError:\n")
    assert "AssertionError: three" in bad.content
    assert (await review(sandbox, WRONG, ASSERTS, continuous=False)).score == 0.0


@pytest.mark.parametrize("leave", ["raise SystemExit(0)", "import os\nos._exit(0)"])
async def test_code_that_ends_before_its_asserts_passes_none(sandbox: Sandbox, leave: str) -> None:
    assert (await review(sandbox, f"```python\n{leave}\n```", ASSERTS)).score == 0.0


async def test_programs(sandbox: Sandbox) -> None:
    tests = {"inputs": ["2", "3", "x"], "outputs": ["4\n", "6", "0"]}
    code = "```\nn = int(input())\nprint(2 * n if n < 3 else 5)\n```"
    response = await review(sandbox, code, tests, max_shown=1, max_chars=20)
    assert response.score == pytest.approx(1 / 3)
    assert response.content == (
        "2 of 3 tests failed.\n\nTest 2:\nInput:\n3\nExpected output:\n6\nYour output:\n5\n\n(1 more failed.)\n\n"
        "Correct your code and write the whole program again."
    )
    hidden = await review(sandbox, code, tests, hide_tests=True)
    assert hidden.content == "2 of 3 tests failed. Correct your code and write the whole program again."
    endless = await review(
        sandbox, "```python\nwhile True: pass\n```", [{"input": "", "output": ""}], run_timeout_s=0.2
    )
    assert "It ran longer than 0.2 s." in endless.content


async def test_an_answer_without_code(sandbox: Sandbox) -> None:
    response = await review(sandbox, "I do not know.", ASSERTS, no_code_text="Code, please.")
    assert (response.should_terminate, response.score, response.content) == (False, 0.0, "Code, please.")
    assert sandbox.requests == []


async def test_a_sandbox_that_fails_is_no_score(sandbox: Sandbox) -> None:
    sandbox.orders += [Response("down", 503)] * 2
    with pytest.raises(ToolServiceError, match="HTTP 503: down"):
        await review(sandbox, RIGHT, ASSERTS)


@pytest.mark.parametrize("tests", [None, [], 3, "", [3], [{"input": "1"}], {"inputs": [1], "outputs": []}])
async def test_rows_without_tests(sandbox: Sandbox, tests: Any) -> None:
    interaction = CodeFeedbackInteraction({"sandbox_url": sandbox.url})
    if tests == "":
        tests = "[]"
    with pytest.raises(ValueError, match=r"`interaction_kwargs\.tests`: got"):
        await interaction.start_interaction(tests=tests)


@pytest.mark.parametrize(("config", "says"), [({}, "sandbox_url"), ({"sandbox_url": "http://x", "show": 1}, "show")])
def test_a_configuration_that_cannot_work(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        CodeFeedbackInteraction(config)


@pytest.mark.parametrize(
    "value",
    [
        [{"input": "1\n2", "output": "3"}],
        '[{"input": "1\\n2", "output": "3"}]',
        {"inputs": [["1", "2"]], "outputs": ["3"]},
        ({"input": ["1", 2], "output": 3},),
    ],
)
def test_spellings_of_a_program_test(value: Any) -> None:
    assert read_tests(value) == [CodeTest(stdin="1\n2", stdout="3")]


@pytest.mark.parametrize("value", ["assert x", ["assert x"], [{"assert": "assert x"}], {"assert_case": ["assert x"]}])
def test_spellings_of_an_assert(value: Any) -> None:
    assert read_tests(value) == [CodeTest(check="assert x")]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```\ntext\n```\nb\n```", "b"),
        ("```py\r\nx = 1\r\n```", "x = 1"),
        ("```python\ncut off", "cut off"),
        ("no code, `inline` only", None),
    ],
)
def test_the_last_block_counts(text: str, code: str | None) -> None:
    assert last_code_block(text) == code


@pytest.mark.parametrize(
    ("language", "code"), [("python", "b"), ("cpp", "c"), ("bash", "4"), (None, "4")], ids=lambda value: str(value)
)
def test_the_last_block_of_the_language_counts(language: str | None, code: str) -> None:
    text = "```python\na\n```\n```py\nb\n```\n```C++\nc\n```\nIt prints\n```\n4\n```"
    assert last_code_block(text, language) == code


def test_outputs_differ_in_more_than_space_at_ends() -> None:
    assert same_output("1 \n2\n\n", "1\n2")
    assert not same_output("1\n\n2", "1\n2")
    assert not same_output(" 1", "1")
