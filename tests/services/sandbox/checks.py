"""What the tests of checks share.

The program and its check are in two sandboxes; all that a program can do is answer calls.
"""

from __future__ import annotations

from sandbox_service import Server, needs_language


def must_pass(server: Server, language: str, program: str, check: str) -> None:
    """A right program passes its check."""
    needs_language(language)
    answer = server.judge(program, [{"assert": check}], language=language)
    assert answer["tests"][0]["verdict"] == "Passed", answer


def must_not_pass(server: Server, language: str, program: str, check: str) -> None:
    """A wrong program does not, and sees nothing of the check."""
    needs_language(language)
    answer = server.judge(program, [{"assert": check}], language=language, timeout=2)
    test = answer["tests"][0]
    assert (test["passed"], answer["status"]) == (False, "Failed"), answer
    assert test["verdict"] in ("RuntimeError", "WrongAnswer", "TimeLimitExceeded")
    shown = test["run_result"]["stderr"]
    assert check not in shown.replace(f"    {check}\n", "")  # but for the traceback of the check itself
