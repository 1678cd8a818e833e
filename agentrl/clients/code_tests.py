"""Test cases of a coding task in the formats of the field's datasets, and the code in an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_FENCED = re.compile(r"```[ \t]*([\w+#-]*)[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL)
_TAGS = {
    "python": ("python", "py", "python3"),
    "cpp": ("cpp", "c++", "cc", "cxx"),
    "nodejs": ("javascript", "js", "nodejs", "node"),
    "bash": ("bash", "sh", "shell"),
}
"""How blocks of a language are marked, if not by its name."""
_WANTED = "a list of asserts or of {input, output}, or {inputs, outputs, fn_name?}, or one of these as JSON text"


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

    Args:
        value: asserts (`["assert f(1) == 2"]`), `[{input, output}]`, `[{assert}]`, `{inputs, outputs}`, the same with
            `fn_name` (an input is a list of arguments, or text with one JSON value per line), `{assert_case}`, or any
            of these as JSON text.

    Raises:
        ValueError: the value is empty or has another form.
    """
    if isinstance(value, str):
        value = _parse(value)
    if isinstance(value, dict):
        if value.get("fn_name"):
            return _calls(str(value["fn_name"]), value)
        value = _columns(value)
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"got {value!r:.200}, wanted {_WANTED}")
    return [_read_test(item) for item in value]


def last_code_block(text: str, language: str | None = None) -> str | None:
    """The last fenced block of a text; None if it has none. A block that was cut off counts.

    Args:
        text: what the model wrote.
        language: prefer blocks marked as this language: a block with the program's output may follow the program.
    """
    blocks = _FENCED.findall(text)
    tags = _TAGS.get(language or "", (language,))
    marked = [block for tag, block in blocks if tag.lower() in tags]
    found = marked or [block for _, block in blocks]
    return found[-1].rstrip() if found else None


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        # Broken JSON must not become a test: as code it would fail for every program.
        if text.lstrip()[:1] in ("{", "[") or not re.search(r"\bassert\b", text):
            raise ValueError(f"got {text!r:.200}, wanted {_WANTED} ({error})") from None
        return [text]


def _columns(value: dict[str, Any]) -> Any:
    if "inputs" in value and "outputs" in value:
        return [{"input": given, "output": wanted} for given, wanted in _pairs(value)]
    return value.get("assert_case", [value])


def _pairs(value: dict[str, Any]) -> list[tuple[Any, Any]]:
    inputs, outputs = value.get("inputs"), value.get("outputs")
    if not isinstance(inputs, list | tuple) or not isinstance(outputs, list | tuple):
        raise ValueError(f"got {value!r:.200}, wanted {_WANTED}")
    if len(inputs) != len(outputs):
        raise ValueError(f"got {len(inputs)} inputs and {len(outputs)} outputs, wanted the same number of each")
    return list(zip(inputs, outputs, strict=True))


def _calls(name: str, value: dict[str, Any]) -> list[CodeTest]:
    if not name.isidentifier():
        raise ValueError(f"fn_name: got {name!r:.100}, wanted the name of a function")
    calls = [FunctionCall(name, _arguments(given), _returned(wanted)) for given, wanted in _pairs(value)]
    if not calls:
        raise ValueError(f"got {value!r:.200}, wanted {_WANTED}")
    return [CodeTest(call=call) for call in calls]


def _arguments(given: Any) -> tuple[Any, ...]:
    if isinstance(given, list | tuple):
        return tuple(given)
    try:
        return tuple(json.loads(line) for line in str(given).split("\n") if line.strip())
    except ValueError as error:
        raise ValueError(f"got the input {given!r:.200}, wanted one JSON value per line ({error})") from None


def _returned(wanted: Any) -> Any:
    try:
        return json.loads(wanted) if isinstance(wanted, str) else wanted
    except ValueError:
        return wanted


def _read_test(item: Any) -> CodeTest:
    if isinstance(item, str) and item.strip():
        return CodeTest(check=item)
    if isinstance(item, dict) and isinstance(item.get("assert"), str):
        return CodeTest(check=item["assert"])
    if isinstance(item, dict) and item.get("output") is not None:
        return CodeTest(stdin=_text(item.get("input")), stdout=_text(item["output"]))
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
        return (
            isinstance(given, dict)
            and given.keys() == wanted.keys()
            and all(_equal(given[key], wanted[key]) for key in wanted)
        )
    if isinstance(given, float) and isinstance(wanted, int | float):
        return abs(given - wanted) <= 1e-9 * max(1.0, abs(wanted))
    return bool(given == wanted)


def _lines(text: str) -> Sequence[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
