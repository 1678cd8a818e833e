"""Tests of coding tasks as datasets write them: what is text, what is JSON, what is called."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from agentrl.clients.code_tests import CodeTest, FunctionCall, read_tests, same_value

FUNCTIONAL = {"input": '"a"\n[1]', "output": '["b"]', "testtype": "functional"}
STDIN = {"input": "1\n", "output": "2\n", "testtype": "stdin"}


def call(*arguments: Any, returns: Any) -> CodeTest:
    return CodeTest(call=FunctionCall("f", arguments, returns))


@pytest.mark.parametrize(
    ("value", "tests"),
    [
        ({"fn_name": "f", "inputs": [["true"]], "outputs": ["true"]}, [call("true", returns="true")]),
        ({"fn_name": "f", "inputs": [[1]], "outputs": ["2"]}, [call(1, returns="2")]),
        ({"fn_name": "f", "inputs": ["true"], "outputs": ["true"]}, [call(True, returns=True)]),
        (
            {"fn_name": "f", "inputs": ["1", "2"], "outputs": ["yes", "12"]},
            [call(1, returns="yes"), call(2, returns="12")],
        ),
        ({"fn_name": "f", "inputs": ["1"], "outputs": [None]}, [call(1, returns=None)]),
        (
            {"fn_name": "f", "inputs": [5, None, {"a": 1}, True, 0.5], "outputs": ["6", "1", "[2]", "null", 3]},
            [
                *(call(5, returns=6), call(None, returns=1), call({"a": 1}, returns=[2]), call(True, returns=None)),
                call(0.5, returns=3),
            ],
        ),
        ({"fn_name": "Solution().f", "inputs": [["a"]], "outputs": ["b"]}, [call("a", returns="b")]),
        ({"fn_name": "f", "input": [1, 2], "output": [3, 4]}, [call(1, 2, returns=[3, 4])]),
        ({"input": ["1", "2"], "output": ["3", "4"]}, [CodeTest("1", "3"), CodeTest("2", "4")]),
        (
            {
                "public_tests": {"input": ["1"], "output": ["2"]},
                "private_tests": {"input": [], "output": []},
                "generated_tests": {"input": ["3", "4"], "output": ["5", "6"]},
            },
            [CodeTest("1", "2"), CodeTest("3", "5"), CodeTest("4", "6")],
        ),
        ({"input_output": '{"inputs": ["1"], "outputs": ["2"]}'}, [CodeTest("1", "2")]),
        (
            {"input_output": '{"fn_name": "f", "inputs": [[1], [2]], "outputs": [3, 4]}'},
            [call(1, returns=3), call(2, returns=4)],
        ),
        (
            [{"input": "1", "expected_output": "2"}, {"stdin": "3", "stdout": "4"}],
            [CodeTest("1", "2"), CodeTest("3", "4")],
        ),
        ([{**FUNCTIONAL, "fn_name": "f"}], [call("a", [1], returns=["b"])]),
        ([{**FUNCTIONAL, "metadata": '{"func_name": "f"}'}], [call("a", [1], returns=["b"])]),
        ({"func_name": "f", "test_cases": [FUNCTIONAL]}, [call("a", [1], returns=["b"])]),
        ([{"type": "function_call", "fn_name": "f", "input": [1], "output": [2]}], [call(1, returns=[2])]),
        ([{"type": "stdin_stdout", "fn_name": "f", "input": "1", "output": "2"}], [CodeTest("1", "2")]),
        ([{"type": "public", "input": "1", "output": "2"}], [CodeTest("1", "2")]),
        ([STDIN], [CodeTest("1\n", "2\n")]),
        ({"fn_name": "f", "testtype": "stdin", "inputs": ["1"], "outputs": ["2"]}, [CodeTest("1", "2")]),
        ({"fn_name": None, "inputs": ["1"], "outputs": ["2"]}, [CodeTest("1", "2")]),
    ],
)
def test_what_the_data_say(value: Any, tests: list[CodeTest]) -> None:
    assert read_tests(value) == tests
    assert read_tests(json.dumps(value)) == tests


def test_arrays_of_a_parquet_file_are_lists() -> None:
    assert read_tests({"inputs": np.array(["1"]), "outputs": np.array(["2"])}) == [CodeTest("1", "2")]
    rows = np.array([{"input": np.array(["1", "2"]), "output": "3"}])
    assert read_tests(rows) == [CodeTest("1\n2", "3")]
    assert read_tests({"fn_name": "f", "inputs": [np.array([1])], "outputs": np.array([2])}) == [call(1, returns=2)]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([FUNCTIONAL], "functional needs `fn_name`"),
        ([{**STDIN, "testtype": "files"}], "testtype: got 'files', wanted stdin or functional"),
        ([{"assert": " "}], "got the test"),
    ],
)
def test_tests_that_say_too_little(value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_tests(value)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("true", "true"),
        (0.1 + 0.2, 0.3),
        (3, 3.0),
        (3.0, 3),
        ([1, 2.0000000001], (1, 2)),
        ({"1": [2]}, {1: [2]}),
        ({"true": 1}, {True: 1}),
        (float("nan"), float("nan")),
        (float("inf"), float("inf")),
        (10**400, 10**400),
        (2, [2]),
    ],
)
def test_equal_values(given: Any, wanted: Any) -> None:
    assert same_value(given, wanted)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (True, "true"),
        ("true", True),
        ("2", 2),
        (2, "2"),
        (0.30001, 0.3),
        (float("inf"), 1.0),
        (1.0, float("inf")),
        (10**400, 1.0),
        (10**18 + 1, 10**18),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 2}),
        (None, False),
        ([[2]], [2, 3]),
    ],
)
def test_values_that_differ(given: Any, wanted: Any) -> None:
    assert not same_value(given, wanted)


def test_a_difference_is_relative() -> None:
    assert not same_value(0.0, 5e-10)
    assert same_value(1e-12 * (1 + 1e-12), 1e-12)
    assert same_value(1e20 * (1 + 1e-12), 1e20)
