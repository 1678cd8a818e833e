"""The judge, where a program could pass that should not, or fail that should not."""

from __future__ import annotations

import pytest
from sandbox_service import Server, needs_language

MIB = 1024 * 1024
FLOOD = "import sys; sys.stdout.write('x' * (9 << 20))"


@pytest.mark.parametrize(
    ("language", "program", "fails", "holds"),
    [
        ("python", "def f(): return 1", "assert f() == 2", "assert f() == 1"),
        ("bash", "f() { echo 1; }", '[ "$(f)" = 2 ]', '[ "$(f)" = 1 ]'),
        ("bash", "f() { echo 1; }", "f | grep -q 2", "f | grep -q 1"),
        ("nodejs", "const f = () => 1", "require('assert')(f() === 2)", "require('assert')(f() === 1)"),
        ("perl", "sub f { 1 }", "die unless f() == 2;", "die unless f() == 1;"),
    ],
)
def test_a_check_that_fails(server: Server, language: str, program: str, fails: str, holds: str) -> None:
    needs_language(language)
    answer = server.judge(program, [{"assert": fails}, {"assert": holds}], language=language)
    assert [test["verdict"] for test in answer["tests"]] == ["RuntimeError", "Passed"], answer
    assert "ended_" not in answer["tests"][1]["run_result"]["stderr"]


def test_a_program_that_hides_its_check(server: Server) -> None:
    needs_language("perl")
    answer = server.judge("sub f { 1 }\n__END__", [{"assert": "die unless f() == 2;"}], language="perl")
    assert [test["verdict"] for test in answer["tests"]] == ["WrongAnswer"]


def test_a_check_that_cannot_follow(server: Server) -> None:
    needs_language("cpp")
    body = {"code": "int main() {}", "tests": [{"assert": "1"}], "language": "cpp"}
    answer = server.http.post("/judge", json=body)
    assert answer.status_code == 422
    assert "`assert` follows code of python, bash" in answer.json()["detail"]


def test_a_check_counts_behind_more_output_than_is_kept(server: Server) -> None:
    answer = server.judge(FLOOD, [{"assert": "assert True"}, {"assert": "assert False"}])
    assert [test["verdict"] for test in answer["tests"]] == ["Passed", "RuntimeError"]
    too_much = server.http.post("/judge", json={"code": FLOOD, "tests": [{"output": "x" * (9 << 20)}]})
    assert too_much.status_code == 422
    assert "tests.0.output: wanted at most 8388608 bytes" in too_much.json()["detail"]


def test_all_outputs_together_are_bounded(server: Server) -> None:
    """Each is compared whole, then shown in part."""
    code = "import sys; sys.stdout.write('x' * (3 << 20)); sys.stderr.write('y' * (3 << 20))"
    answer = server.judge(code, [{"output": "x" * (3 << 20)}] * 6)
    assert answer["passed"] == 6
    for name in ("stdout", "stderr"):
        outputs = [test["run_result"][name] for test in answer["tests"]]
        assert sum(map(len, outputs)) < 8 * MIB + 6 * 100
        assert "[output cut: " in outputs[0]


def test_lines_are_compared_by_their_ends_alone(server: Server) -> None:
    windows = server.judge(r"print('a\r\nb ', end='\r\n')", [{"output": "a\nb\n"}])
    assert windows["status"] == "Success"
    for sign in ("\\x0c", "\\u2028", "\\x1c"):
        assert server.judge(f"print('a{sign}b')", [{"output": "a\nb"}])["passed"] == 0, sign
