"""Checks of programs in all languages; those of each are in `test_checks_python.py` and the others beside it."""

from __future__ import annotations

import pytest
from sandbox_service import Server, needs_language

LATE = [
    ("python", "while True: pass", "assert True"),
    ("python", "def f():\n    while True: pass", "assert f()"),
    ("python", "import os\nos.write(3, b'00000009[\"ready\"]')\nwhile True: os.read(3, 1000)", "assert f() == 1"),
    ("nodejs", "for (;;);", "1"),
    ("bash", "while true; do :; done", "true"),
]


@pytest.mark.parametrize(("language", "program", "check"), LATE)
def test_a_program_that_does_not_end_runs_out_of_time(quick: Server, language: str, program: str, check: str) -> None:
    needs_language(language)
    answer = quick.judge(program, [{"assert": check}], language=language, timeout=0.3)
    assert answer["tests"][0]["verdict"] == "TimeLimitExceeded", answer


def test_at_every_level(server: Server) -> None:
    checks = [{"assert": "assert f(2) == 4"}, {"assert": "assert f(2) == 5"}, {"follow": "print(f(3))"}]
    answer = server.judge("def f(x): return x * x", checks)
    assert [test["verdict"] for test in answer["tests"]] == ["Passed", "RuntimeError", "Passed"]
    assert answer["tests"][2]["run_result"]["stdout"] == "9\n"
    assert "AssertionError" in answer["tests"][1]["run_result"]["stderr"]


@pytest.mark.parametrize("language", ["java", "cpp", "go", "rust"])
def test_the_other_languages_have_no_asserts(quick: Server, language: str) -> None:
    needs_language(language)
    answer = quick.http.post("/judge", json={"code": "x", "tests": [{"assert": "1"}], "language": language})
    assert answer.status_code == 422
    assert "`assert` follows code of python, bash" in answer.json()["detail"]


JAVA = 'public class Main { public static void main(String[] a) { assert 1 + 1 == %s : "no"; System.out.println(2); } }'


def test_a_java_program_runs_its_own_asserts(quick: Server) -> None:
    needs_language("java")
    answers = [quick.judge(JAVA % value, [{"output": "2"}], language="java", compile_timeout=60) for value in (2, 3)]
    assert [answer["tests"][0]["verdict"] for answer in answers] == ["Passed", "RuntimeError"]


@pytest.mark.parametrize(
    ("language", "program"),
    [
        ("python", "import os; print(4, flush=True); os._exit(0)"),
        ("cpp", '#include <cstdio>\n#include <cstdlib>\nint main() { puts("4"); exit(0); }'),
        (
            "java",
            "public class Main { public static void main(String[] a) { System.out.println(4); System.exit(0); } }",
        ),
        ("python", "import os, sys\nfor fd in range(3, 20):\n    try: os.write(fd, b'5')\n    except OSError: pass"),
        (
            "python",
            "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(0.3); print(5)\nelse: os._exit(0)",
        ),
        ("bash", "cat /proc/self/environ main.sh; ls -la / .; (sleep 0.3; echo 5) & exit 0"),
    ],
)
def test_a_wanted_output_never_reaches_the_program(quick: Server, language: str, program: str) -> None:
    needs_language(language)
    answer = quick.judge(program, [{"input": "2", "output": "5"}], language=language, compile_timeout=60)
    assert (answer["tests"][0]["passed"], answer["status"]) == (False, "Failed")
