"""What runs where a sandbox has no `/judge`: the program and its assert in one process."""

from __future__ import annotations

import subprocess
from typing import Any, cast

import pytest
from needs import needs

from agentrl.clients.code_tests import CodeTest
from agentrl.clients.sandbox import RunResult
from agentrl.clients.trials import run_tests


class Node:
    """A sandbox of JavaScript without isolation."""

    language = "nodejs"

    async def run(self, code: str, stdin: str = "") -> RunResult:
        done = subprocess.run(["node", "-e", code], input=stdin, capture_output=True, text=True, check=False)
        return RunResult(done.returncode == 0, done.stdout, done.stderr, done.returncode)


@pytest.mark.parametrize(("wanted", "passes"), [(1, True), (2, False)])
async def test_console_assert_of_javascript_can_fail(wanted: int, passes: bool) -> None:
    needs("node")
    test = CodeTest(check=f"console.assert(f() === {wanted})")
    (outcome,) = await run_tests(cast(Any, Node()), "const f = () => 1;", [test])
    assert outcome.passed is passes
