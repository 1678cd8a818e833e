"""The score of coding tasks, by tests that run in a sandbox service; one that fails is never a score."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import Response
from needs import SYSTEM_PATH, needs
from sandbox_server import Sandbox
from service_process import Service, serve

from agentrl.config import RunConfig
from agentrl.errors import ConfigError, PluginError, RewardError, ToolServiceError
from agentrl.interfaces import RewardInput, RewardResult
from agentrl.rewards import default_compute_score
from agentrl.rewards.dispatcher import CODE_SOURCES, find_score
from agentrl.rewards.loading import load_code_score, load_reward_manager
from agentrl.rewards.naive import NaiveRewardManager, to_result
from agentrl.rewards.scores.code import MAX_TIMEOUTS, CodeScore


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serve("sandbox") as running:
        yield running


def answer(code: str, tag: str = "python") -> str:
    return f"I think:\n```{tag}\n{code}\n```\nIt prints:\n```text\nthis is no program\n```"


SQUARES = {"inputs": ["2\n", "3\n", "4\n"], "outputs": ["4\n", "9", "16  \n\n"]}
ASSERTS = ["assert double(2) == 4", "assert double(3) == 6, 'three'"]
CALLS = {"fn_name": "add", "inputs": ["1\n[2, 3]", [4, [5]]], "outputs": ["[3, 4]", [[9]]]}
ADD = "def add(n, many: List[int]):\n    return tuple(n + one for one in many)"
SQUARE = "print(int(input()) ** 2)"
DOUBLE = "def double(n):\n    return 2 * n"
HALF = {"fn_name": "half", "inputs": ["3"], "outputs": [0.3]}
TEXT = {"fn_name": "f", "inputs": [["true"]], "outputs": ["true"]}
NUMBER = {"fn_name": "f", "inputs": [[3]], "outputs": [6]}
ROW = {"fn_name": "f", "inputs": ["3"], "outputs": ["[3, 3]"]}
KEYED = {"fn_name": "f", "inputs": [[2]], "outputs": [[{"2": 2}]]}
CASES = [
    (SQUARE, SQUARES, 3, 3),
    ("n = int(input())\nprint(n * n if n < 4 else 0)", SQUARES, 2, 3),
    ("print(input())", SQUARES, 0, 3),
    ("1 / 0", SQUARES, 0, 3),
    ("def f(:", SQUARES, 0, 3),
    (SQUARE, json.dumps(SQUARES), 3, 3),
    (SQUARE, [{"input": "2", "output": "4"}, {"input": ["3"], "output": ["9"]}, {"input": 4, "output": 16}], 3, 3),
    (DOUBLE, ASSERTS, 2, 2),
    ("def double(n):\n    return n + 2", ASSERTS, 1, 2),
    (DOUBLE, {"assert_case": ASSERTS}, 2, 2),
    (DOUBLE, json.dumps(ASSERTS), 2, 2),
    (DOUBLE, ASSERTS[0], 1, 1),
    (ADD, CALLS, 2, 2),
    ("class Solution:\n    def add(self, n, many: List[int]):\n        return [n + one for one in many]", CALLS, 2, 2),
    (f"from __future__ import annotations\n{ADD}\nprint('a try:', add(1, [1]))", json.dumps(CALLS), 2, 2),
    ("def add(n, many):\n    return [7, 7] if n == 1 else [n + many[0]]", CALLS, 1, 2),
    ("def other(n, many):\n    return many", CALLS, 0, 2),
    ("def add(n, many):\n    return object()", CALLS, 0, 2),
    ("def half(x):\n    return math.fsum([0.1] * x)", HALF, 1, 1),
    ("def f(x): return x", TEXT, 1, 1),
    ("def f(x): return True", TEXT, 0, 1),
    ("import numpy\ndef f(x): return numpy.float32(x) * numpy.int64(2)", NUMBER, 1, 1),
    ("import numpy\ndef f(x): return [numpy.int64(2 * x)]", NUMBER, 0, 1),
    ("import numpy\ndef f(x): return numpy.array([x, x])", ROW, 1, 1),
    ("class Solution:\n  @cache\n  def f(self, x): return gcd(2 * x, 0) + pow(0, 1)", NUMBER, 1, 1),
    ("def f(x): return (x, x)", ROW, 1, 1),
    ("import numpy\ndef f(x): return [{numpy.int64(x): x}]", KEYED, 1, 1),
    ("class Text:\n    def __repr__(self): return 'true'\ndef f(x): return Text()", TEXT, 0, 1),
    ("class Same(str):\n    def __eq__(self, other): return True\ndef f(x): return Same()", TEXT, 0, 1),
    ("import json\njson.dumps = lambda *a, **k: 'true'\ndef f(x): return 1", TEXT, 0, 1),
]


@pytest.mark.parametrize(("code", "truth", "passed", "total"), CASES)
async def test_tests_that_pass(service: Service, code: str, truth: Any, passed: int, total: int) -> None:
    score = CodeScore(service.url)
    share = await score(answer(code), truth)
    assert share == {"score": pytest.approx(passed / total), "has_code": True}
    assert await score(answer(code), truth, continuous=False) == {"score": float(passed == total), "has_code": True}


TRICKS = [
    "import sys\nprint(open(sys.argv[0]).read())\nimport os\nos._exit(0)",
    "import re, os\nfor word in re.findall(r'ended_\\w+', open('main.py').read()): print(word + 'true')\nos._exit(0)",
    "class Same:\n    def __eq__(self, other): return True\ndef double(n): return Same()",
    "class Same(int):\n    def __eq__(self, other): return True\ndef double(n): return Same(3)",
    "import builtins\nbuiltins.AssertionError = None\ndef double(n): return 0",
]


@pytest.mark.parametrize("trick", TRICKS)
async def test_a_trick_passes_no_assert(service: Service, sandbox: Sandbox, trick: str) -> None:
    """In agentrl's sandbox; and in another one, which has no judge."""
    for url in (service.url, sandbox.url):
        assert (await CodeScore(url)(answer(trick), ASSERTS))["score"] == 0.0


async def test_right_programs_pass_their_asserts_without_a_judge(sandbox: Sandbox) -> None:
    asserts = [
        "assert f(1) == 2",
        "x = f(2)\nassert x == 3\nassert (4, [5]) == g(4)",
        "assert abs(f(1.5) - 2.5) < 1e-6",
    ]
    code = "def f(n): return n + 1\ndef g(n): return (n, [f(n)])"
    assert (await CodeScore(sandbox.url)(answer(code), asserts))["score"] == 1.0


@pytest.mark.parametrize("end", ["unittest.main()", "if __name__ == '__main__':\n    unittest.main(verbosity=2)"])
async def test_a_check_may_be_a_unittest(service: Service, sandbox: Sandbox, end: str) -> None:
    check = f"import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(1), 2)\n{end}"
    for url in (service.url, sandbox.url):
        for code, wanted in (("def f(n): return n + 1", 1.0), ("def f(n): return n", 0.0)):
            assert (await CodeScore(url)(answer(code), [check]))["score"] == wanted


@pytest.mark.parametrize("first", ["", '"""A program."""\nfrom __future__ import annotations\n'])
@pytest.mark.parametrize(
    "truth", [["assert f(2) == 4"], ["assert f(2) < 5"], {"fn_name": "f", "inputs": ["2"], "outputs": ["4"]}]
)
async def test_the_main_part_of_a_called_program_does_not_run(
    service: Service, sandbox: Sandbox, truth: Any, first: str
) -> None:
    code = f"{first}def f(n): return 2 * n\nif __name__ == '__main__':\n    print(f(int(input())))"
    for url in (service.url, sandbox.url):
        assert (await CodeScore(url)(answer(code), truth))["score"] == 1.0


@pytest.mark.parametrize(
    ("check", "language", "says"),
    [("assert (", "python", "not Python"), ("x", "cpp", "for cpp"), ("f(1) == 2", "python", "nothing can fail")],
)
async def test_an_assert_that_cannot_be_run_is_the_rows_fault(check: str, language: str, says: str) -> None:
    with pytest.raises(RewardError, match=says):
        await CodeScore("http://127.0.0.1:9")(answer("x", language), [check], language=language)


@pytest.mark.parametrize("leave", ["raise SystemExit(0)", "import os\nos._exit(0)", "import sys\nsys.exit()"])
@pytest.mark.parametrize("truth", [ASSERTS, {"fn_name": "double", "inputs": ["2"], "outputs": ["4"]}])
async def test_a_program_that_ends_before_its_tests_passes_none(service: Service, leave: str, truth: Any) -> None:
    score = await CodeScore(service.url)(answer(leave), truth)
    assert score["score"] == 0.0


async def test_tests_may_stand_in_the_extra_info_of_a_row(service: Service) -> None:
    found = await default_compute_score(
        "taco", answer(SQUARE), None, {"test_cases": SQUARES}, code_score=CodeScore(service.url)
    )
    assert found == {"score": 1.0, "has_code": True}


async def test_another_language(service: Service) -> None:
    needs("g++", path=SYSTEM_PATH)
    score = CodeScore(service.url)
    code = "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << n * n; }"
    assert (await score(answer(code, "cpp"), SQUARES, language="cpp"))["score"] == 1.0
    assert (await score(answer("int main( {", "c++"), SQUARES, language="cpp"))["score"] == 0.0
    with pytest.raises(RewardError, match="fn_name: got 'add' for bash"):
        await score(answer("echo", "bash"), CALLS, language="bash")


async def test_an_answer_without_code_scores_0(service: Service) -> None:
    outcome = await CodeScore(service.url)("I do not know.", SQUARES)
    assert to_result(outcome) == RewardResult(0.0, {"has_code": False}, service_used=False)


async def test_a_program_that_never_ends_does_not_run_every_test(sandbox: Sandbox) -> None:
    many = {"inputs": ["1"] * 50, "outputs": ["1"] * 50}
    score = CodeScore(sandbox.url, max_concurrent=MAX_TIMEOUTS)
    assert (await score(answer("while True: pass"), many, timeout=0.05))["score"] == 0.0
    assert sum(path == "/run_code" for path, _ in sandbox.requests) == 8


@pytest.mark.parametrize("truth", [None, [], {}, 3, "[]", "[1", "{'inputs': []}", "no tests", {"inputs": ["1"]}, [""]])
async def test_a_ground_truth_without_tests_is_an_error(truth: Any) -> None:
    with pytest.raises(RewardError, match="ground truth of a coding task: got"):
        await CodeScore("http://127.0.0.1:9")(answer(SQUARE), truth)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"inputs": ["1"]}, "1 inputs and 2 outputs"),
        ({"inputs": ["1\n[2", "1"]}, "one JSON value per line"),
        ({"fn_name": "a b"}, "'a b'"),
        ({"inputs": [], "outputs": []}, "fn_name"),
    ],
)
async def test_calls_that_cannot_be_made(change: dict[str, Any], says: str) -> None:
    with pytest.raises(RewardError, match=says.replace("[", r"\[")):
        await CodeScore("http://127.0.0.1:9")(answer(ADD), {**CALLS, **change})


async def test_a_service_without_judge_runs_test_by_test(sandbox: Sandbox) -> None:
    score = CodeScore(f"{sandbox.url}/run_code", max_concurrent=2)
    for code, truth, wanted in ((SQUARE, SQUARES, 1.0), (ADD, CALLS, 1.0), ("print(4)", SQUARES, 1 / 3)):
        assert (await score(answer(code), truth))["score"] == pytest.approx(wanted)
    assert (await score(answer("print(4)"), SQUARES, continuous=False))["score"] == 0.0


@pytest.mark.parametrize("status", [503, 500, 422])
async def test_a_sandbox_that_fails_is_no_score(sandbox: Sandbox, status: int) -> None:
    sandbox.orders += [{"status": "Success", "run_result": {"stdout": "4"}}, *([Response("down", status)] * 2)]
    score = CodeScore(sandbox.url, max_concurrent=1, retries=1, backoff_s=0.01)
    with pytest.raises(ToolServiceError, match=f"HTTP {status}: down"):
        await score(answer(SQUARE), SQUARES)


async def test_a_full_sandbox_is_waited_for(sandbox: Sandbox) -> None:
    """Twenty refusals are no attempt, and their pauses are not the score function's time."""
    sandbox.orders += [Response("full", 429)] * 20
    score = CodeScore(sandbox.url, retries=0, backoff_s=0.03)
    manager = NaiveRewardManager(lambda solution_str, ground_truth, **_: score(solution_str, ground_truth), 0.5)
    found = await manager.score(RewardInput("taco", answer(DOUBLE), ASSERTS[0]))
    assert found.score == 1.0


def slow(seconds: float) -> str:
    return answer(f"import time\ntime.sleep({seconds})\nprint(int(input()) ** 2)")


async def test_programs_that_sleep_take_no_place_from_right_ones() -> None:
    """Two places and two more in the queue: whoever comes later is refused, again and again, and waits."""
    run = config(url="")
    run.reward_model.timeout_s = 2.0
    run.custom_reward_function.reward_kwargs = {"timeout": 0.3}
    with serve("sandbox", "--parallel", "2", "--queue", "2") as service:
        run.reward_model.sandbox_fusion.url = service.url
        manager = load_reward_manager(run)
        texts = [slow(30), slow(30), slow(30), answer(SQUARE), slow(30)] * 5
        scores = await asyncio.gather(*(manager.score(RewardInput("taco", text, SQUARES)) for text in texts))
    assert [found.score for found in scores] == [float(text == answer(SQUARE)) for text in texts]


async def test_one_test_that_could_not_run_ends_the_others(sandbox: Sandbox) -> None:
    sandbox.orders += [Response("down", 503)]
    with pytest.raises(ToolServiceError, match="down"):
        await CodeScore(sandbox.url, retries=0)(answer("import time; time.sleep(1)"), SQUARES)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_sandbox_error_is_no_score(sandbox: Sandbox) -> None:
    sandbox.orders += [{"status": "SandboxError", "message": "no memory left"}] * 3
    with pytest.raises(ToolServiceError, match="no memory left"):
        await CodeScore(sandbox.url, retries=0)(answer(SQUARE), SQUARES)


def config(**section: Any) -> RunConfig:
    return RunConfig.model_validate({"reward_model": {"sandbox_fusion": section}})


@pytest.mark.parametrize("source", CODE_SOURCES)
async def test_the_run_scores_its_coding_rows(service: Service, source: str) -> None:
    run = config(url=f"{service.url}/run_code", max_concurrent=8, memory_limit_mb=512)
    run.reward_model.reward_manager = "prime"
    half = answer("n = int(input())\nprint(n * n if n == 2 else 0)")
    result = await load_reward_manager(run).score(RewardInput(source, half, json.dumps(SQUARES)))
    assert result == RewardResult(pytest.approx(1 / 3), {"has_code": True})
    run.custom_reward_function.reward_kwargs = {"continuous": False}
    result = await load_reward_manager(run).score(RewardInput(source, half, json.dumps(SQUARES)))
    assert result == RewardResult(0.0, {"has_code": True})


async def test_the_run_leaves_out_what_the_sandbox_did_not_run(sandbox: Sandbox) -> None:
    sandbox.orders += [Response("no such limit", 422)]
    with pytest.raises(ToolServiceError, match="no such limit"):
        await load_reward_manager(config(url=sandbox.url)).score(RewardInput("apps", answer(SQUARE), SQUARES))


def test_a_run_without_a_sandbox_refuses_coding_rows() -> None:
    with pytest.raises(PluginError, match=r"agentrl serve sandbox.*reward_model\.sandbox_fusion\.url"):
        find_score("apps", load_code_score(config()))
    assert find_score("apps", load_code_score(config(url="http://localhost:8080"))) is not None


@pytest.mark.parametrize(
    ("section", "workers", "says"),
    [
        ({"url": "localhost:8080"}, 1, r"sandbox_fusion\.url must be an http\(s\) address, got 'localhost:8080'"),
        ({"url": "http://x", "max_concurrent": 3}, 4, "max_concurrent: got 3, wanted at least 4"),
    ],
)
def test_a_section_that_cannot_work(section: dict[str, Any], workers: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_reward_manager(config(**section), workers)


def test_a_score_function_of_verl_calls_it(sandbox: Sandbox) -> None:
    asked = ("taco", answer(SQUARE), SQUARES, None, f"{sandbox.url}/run_code")
    assert default_compute_score(*asked, None, 512)["score"] == 1.0
    assert sandbox.requests[-1][1]["memory_limit_MB"] == 512

    async def inside() -> Any:
        return await default_compute_score(*asked)

    assert asyncio.run(inside())["score"] == 1.0
    assert default_compute_score("openai/gsm8k", "#### 72", "72", None, sandbox.url) == 1.0
