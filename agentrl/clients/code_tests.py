"""Test cases of a coding task in the formats of the field's datasets."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

_WANTED = "a list of asserts or of {input, output}, or {inputs, outputs, fn_name?}, or one of these as JSON text"
_KINDS = {
    **dict.fromkeys(("stdin", "stdin_stdout", "standard_input"), False),
    **dict.fromkeys(("functional", "function_call", "call_based"), True),
}
"""Spellings of a test's kind, and whether it calls a function."""
_INPUTS, _OUTPUTS = ("input", "stdin"), ("output", "expected_output", "stdout")
_GROUPS = ("public_tests", "private_tests", "generated_tests")
"""Of CodeContests, each `{input: [...], output: [...]}`."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of one of the program's functions (or of a method of its class `Solution`), and what it must return."""

    name: str
    arguments: tuple[Any, ...]
    returns: Any


@dataclass(frozen=True, slots=True)
class CodeTest:
    """One test: input and expected output; or code that is run after the program and must not fail; or a call."""

    stdin: str = ""
    stdout: str | None = None
    check: str | None = None
    call: FunctionCall | None = None


def read_tests(value: Any) -> list[CodeTest]:
    """The tests of a row.

    A pair of input and output is a call of a function if `fn_name` (LiveCodeBench: `func_name`, or `metadata` with it)
    stands in it or beside the list, unless its `testtype` is `stdin`. A call's input is a list of arguments, taken as
    they are, with an output that is taken as it is; or text with one JSON value per line, or another value that is the
    one argument, with an output that is JSON text (all outputs of such calls are plain text where one
    of them is not JSON).

    Args:
        value: asserts (`["assert f(1) == 2"]`), `[{input, output, testtype?}]`, `[{assert}]`, `{inputs, outputs}`,
            `{assert_case}`, or any of these as JSON text, or under `input_output` (APPS); or groups of
            `{input: [...], output: [...]}` (CodeContests).

    Raises:
        ValueError: the value is empty or has another form.
    """
    if isinstance(value, str):
        value = _parse(value)
    value = _without_arrays(value)
    beside: Mapping[str, Any] = {}
    if isinstance(value, dict):
        beside, value = value, _columns(value)
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"got {value!r:.200}, wanted {_WANTED}")
    tests = [_read_test(item, beside) for item in value]
    texts = [test.call.returns for test in tests if test.call is not None and isinstance(test.call.returns, _JsonText)]
    if texts and all(text.is_json for text in texts):
        return [_parsed(test) for test in tests]
    return tests


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        # Broken JSON must not become a test: as code it would fail for every program.
        if text.lstrip()[:1] in ("{", "[") or not re.search(r"\bassert\b", text):
            raise ValueError(f"got {text!r:.200}, wanted {_WANTED} ({error})") from None
        return [text]


def _without_arrays(value: Any) -> Any:
    """The same with lists for the arrays of numpy that rows of a parquet file hold."""
    if isinstance(value, Mapping):
        return {key: _without_arrays(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_without_arrays, value)) if type(value) in (list, tuple) else value
    return _without_arrays(value.tolist()) if hasattr(type(value), "tolist") else value


def _columns(value: Mapping[str, Any]) -> Any:
    if "input_output" in value:
        inner = value["input_output"]
        return _unnested(_parse(inner) if isinstance(inner, str) else inner)
    if groups := [value[name] for name in _GROUPS if isinstance(value.get(name), Mapping)]:
        pairs = [(group.get("input") or [], group.get("output") or []) for group in groups]
        return [{"input": one, "output": other} for pair in pairs for one, other in zip(*pair, strict=True)]
    given, wanted = (next((value[key] for key in keys if key in value), None) for keys in (_INPUTS, _OUTPUTS))
    both = [given, wanted] if isinstance(given, list) and isinstance(wanted, list) else [[], []]
    if len(both[0]) == len(both[1]) > 1 and _function(value) is None:  # else they are the lines of one test
        return [{"input": one, "output": other} for one, other in zip(*both, strict=True)]
    if "inputs" in value and "outputs" in value:
        return [{"input": given, "output": wanted} for given, wanted in _pairs(value)]
    found = next((value[key] for key in ("assert_case", "test_cases", "tests") if key in value), None)
    if found is None and _function(value) is not None and "input" not in value:
        _pairs(value)  # says what is missing
    return [value] if found is None else found


def _unnested(value: Any) -> Any:
    """Tests, or columns of them, as tests that keep the function that they name."""
    if not isinstance(value, Mapping):
        return value
    tests, name = _columns(value), _function(value)
    return [{**test, "fn_name": name} for test in tests] if name and all(isinstance(t, dict) for t in tests) else tests


def _pairs(value: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    inputs, outputs = value.get("inputs"), value.get("outputs")
    if not isinstance(inputs, list | tuple) or not isinstance(outputs, list | tuple) or not inputs:
        raise ValueError(f"got {value!r:.200}, wanted {_WANTED}")
    if len(inputs) != len(outputs):
        raise ValueError(f"got {len(inputs)} inputs and {len(outputs)} outputs, wanted the same number of each")
    return list(zip(inputs, outputs, strict=True))


def _function(value: Mapping[str, Any]) -> str | None:
    """The function that a test, or a list of tests, names."""
    metadata = value.get("metadata")
    if isinstance(metadata, str):
        try:
            metadata = json.loads(metadata)
        except ValueError:
            metadata = None
    for place in (value, metadata if isinstance(metadata, dict) else {}):
        for key in ("fn_name", "func_name"):
            if place.get(key):
                return str(place[key])
    return None


def _calls_function(item: Mapping[str, Any], beside: Mapping[str, Any]) -> str | None:
    """The function that a test calls; None: it is a whole program that reads and prints."""
    name = _function(item) or _function(beside)
    kind = next((place[key] for place in (item, beside) for key in ("testtype", "type") if place.get(key)), None)
    if kind is None or (kind not in _KINDS and "testtype" not in item):  # a `type` may be anything: "public"
        return _checked(name) if name is not None else None
    if kind not in _KINDS:
        raise ValueError(f"testtype: got {kind!r:.100}, wanted stdin or functional")
    if not _KINDS[kind]:
        return None
    if name is None:
        raise ValueError(f"testtype: a test that is {kind} needs `fn_name`, the function that it calls: {item!r:.200}")
    return _checked(name)


def _checked(name: str) -> str:
    """`Solution().f` is the method f of `Solution`, which is called as a function is."""
    name = name.removeprefix("Solution().").removeprefix("Solution.")
    if not name.isidentifier():
        raise ValueError(f"fn_name: got {name!r:.100}, wanted the name of a function")
    return name


class _JsonText(str):
    """The output of a call whose input is JSON text."""

    @property
    def is_json(self) -> bool:
        try:
            json.loads(self)
        except ValueError:
            return False
        return True


def _parsed(test: CodeTest) -> CodeTest:
    call = test.call
    if call is None or not isinstance(call.returns, _JsonText):
        return test
    return replace(test, call=replace(call, returns=json.loads(call.returns)))


def _call(name: str, given: Any, wanted: Any) -> CodeTest:
    """`{"input": [["true"]], "output": "true"}` wants the text "true"; `{"input": "[1]", "output": "true"}` True."""
    if isinstance(given, list | tuple):
        return CodeTest(call=FunctionCall(name, tuple(given), wanted))
    if not isinstance(given, str):
        return CodeTest(call=FunctionCall(name, (given,), _JsonText(wanted) if isinstance(wanted, str) else wanted))
    try:
        arguments = tuple(json.loads(line) for line in given.split("\n") if line.strip())
    except ValueError as error:
        raise ValueError(f"got the input {given!r:.200}, wanted one JSON value per line ({error})") from None
    return CodeTest(call=FunctionCall(name, arguments, _JsonText(wanted) if isinstance(wanted, str) else wanted))


def _read_test(item: Any, beside: Mapping[str, Any]) -> CodeTest:
    if isinstance(item, str) and item.strip():
        return CodeTest(check=item)
    if isinstance(item, dict) and isinstance(item.get("assert"), str) and item["assert"].strip():
        return CodeTest(check=item["assert"])
    if isinstance(item, dict) and (key := next((key for key in _OUTPUTS if key in item), None)) is not None:
        name = _calls_function(item, beside)
        given, wanted = next((item[key] for key in _INPUTS if key in item), None), item[key]
        if name is not None and any(key in item for key in _INPUTS):
            return _call(name, given, wanted)
        if name is None and wanted is not None:
            return CodeTest(stdin=_text(given), stdout=_text(wanted))
    raise ValueError(f"got the test {item!r:.200}, wanted {_WANTED}")


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value))
    return "" if value is None else str(value)


def same_output(given: str, wanted: str) -> bool:
    """Whether two outputs are equal, apart from spaces at the ends of lines and empty lines at the end."""
    return _lines(given) == _lines(wanted)


def same_value(given: Any, wanted: Any) -> bool:
    """Whether a call returned, as JSON, the wanted value; datasets may wrap that value in a list of one."""
    if _equal(given, wanted):
        return True
    return isinstance(wanted, list | tuple) and len(wanted) == 1 and _equal(given, wanted[0])


def _equal(given: Any, wanted: Any) -> bool:
    if isinstance(wanted, list | tuple):
        return isinstance(given, list) and len(given) == len(wanted) and all(map(_equal, given, wanted))
    if isinstance(wanted, dict):
        # JSON has only texts as keys: {1: "a"} comes as {"1": "a"}, and may be wanted in either form.
        wanted = {_key(key): value for key, value in wanted.items()}
        return (
            isinstance(given, dict)
            and given.keys() == wanted.keys()
            and all(_equal(given[key], wanted[key]) for key in wanted)
        )
    if isinstance(given, int | float) and isinstance(wanted, int | float):
        return _close(given, wanted)
    return bool(given == wanted)


def _close(given: float, wanted: float) -> bool:
    """Integers must be equal; where one is no integer, a relative difference of 1e-9 is rounding."""
    if given == wanted or (isinstance(given, int) and isinstance(wanted, int)):
        return given == wanted
    try:
        if math.isnan(given) or math.isnan(wanted):
            return math.isnan(given) and math.isnan(wanted)
        return (
            math.isfinite(given)
            and math.isfinite(wanted)
            and abs(given - wanted) <= 1e-9 * max(abs(given), abs(wanted))
        )
    except OverflowError:  # an integer of 400 digits is close to no float
        return False


def _key(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(key) if isinstance(key, int | float | None) else str(key)


def _lines(text: str) -> Sequence[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
