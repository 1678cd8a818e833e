"""Causes of failures, grouped for a reader."""

from __future__ import annotations

from agentrl.rollout.report import causes_of


def failure(error: str, reason: str = "env_error") -> dict[str, str]:
    return {"stop_reason": reason, "error": error}


def test_errors_that_differ_only_in_values_are_one_cause() -> None:
    errors = [f"KeyError: '{name}' (score.py:3)" for name in "abc"]
    errors += [f"the score function took over {seconds} s" for seconds in (60, 61.5)]
    failures = [*map(failure, errors), failure("KeyError: 'a' (score.py:9)"), failure("late", "timeout")]
    assert causes_of(failures) == (
        "\n  3 x env_error: KeyError: 'a' (score.py:3)"
        "\n  2 x env_error: the score function took over 60 s"
        "\n  1 x env_error: KeyError: 'a' (score.py:9)"
        "\n  1 x timeout: late"
    )


def test_a_few_causes_are_shown_and_the_rest_counted() -> None:
    assert causes_of([failure(name) for name in "abcdefg"]).endswith("\n  and 2 other causes")
