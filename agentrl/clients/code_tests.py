"""Test cases of a coding task: read from a row, run in a sandbox."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.clients.sandbox import RunResult, SandboxClient

_FENCED = re.compile(r"```[ \t]*[\w+#-]*[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL)
_WANTED = "a list of asserts or of {input, output}, or {inputs, outputs}, or one of these as JSON text"


@dataclass(frozen=True, slots=True)
class CodeTest:
    """One test: what the program reads and must print, or code that follows it and must not fail."""

    stdin: str = ""
    stdout: str | None = None
    check: str | None = None


@dataclass(frozen=True, slots=True)
class TestOutcome:
    """How one test went."""

    __test__ = False  # pytest: this is no test class

    test: CodeTest
    passed: bool
    result: RunResult


def read_tests(value: Any) -> list[CodeTest]:
    """The tests of a row.

    Args:
        value: asserts (`["assert f(1) == 2"]`), `[{input, output}]`, `[{assert}]`, `{inputs, outputs}`,
            `{assert_case}`, or any of them as JSON text.

    Raises:
        ValueError: it is something else, or empty.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = [value]
    if isinstance(value, dict):
        value = _columns(value)
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"got {value!r:.200}, wanted {_WANTED}")
    return [_read_test(item) for item in value]


def last_code_block(text: str) -> str | None:
    """The last fenced block of a text; None where there is none. A block that was cut off counts."""
    blocks = _FENCED.findall(text)
    return blocks[-1].rstrip() if blocks else None


async def run_tests(
    sandbox: SandboxClient, code: str, tests: Sequence[CodeTest], at_once: int = 8
) -> list[TestOutcome]:
    """Run every test, some at once; one outcome per test, in order.

    Raises:
        ToolServiceError: the sandbox could not run one of them (R9).
    """
    slots = asyncio.Semaphore(at_once)

    async def run(test: CodeTest) -> TestOutcome:
        async with slots:
            whole = code if test.check is None else f"{code}\n\n{test.check}\n"
            result = await sandbox.run(whole, test.stdin)
        passed = result.ok and (test.stdout is None or same_output(result.stdout, test.stdout))
        return TestOutcome(test, passed, result)

    return list(await asyncio.gather(*map(run, tests)))


def same_output(given: str, wanted: str) -> bool:
    """Whether two outputs differ only in spaces at the ends of lines and in empty lines at the end."""
    return _lines(given) == _lines(wanted)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _columns(value: dict[str, Any]) -> Any:
    if "inputs" in value and "outputs" in value:
        inputs, outputs = value["inputs"], value["outputs"]
        if len(inputs) != len(outputs):
            raise ValueError(f"got {len(inputs)} inputs and {len(outputs)} outputs, wanted as many of each")
        return [{"input": given, "output": wanted} for given, wanted in zip(inputs, outputs, strict=True)]
    return value.get("assert_case", [value])


def _read_test(item: Any) -> CodeTest:
    if isinstance(item, str):
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
