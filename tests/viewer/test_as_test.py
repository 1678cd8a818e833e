"""The test that the page copies passes where the score is the same, and fails where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_dumps import record

from agentrl.observability.viewer.as_test import as_test

SCORE = """
def compute_score(data_source, solution_str, ground_truth, extra_info, bonus=0.0):
    assert extra_info == {"index": 3}
    return {"score": float(ground_truth in solution_str) + bonus}
"""


def run_copied(text: str) -> None:
    """What pytest does with it, without the price of a process."""
    scope: dict[str, Any] = {}
    exec(compile(text, "copied.py", "exec"), scope)
    scope["test_score"]()


def scored(**changes: Any) -> dict[str, Any]:
    return record(1, solution_str="It is 2", extra_info={"index": 3}, **changes)


def test_with_the_users_score_function(tmp_path: Path) -> None:
    (tmp_path / "score.py").write_text(SCORE)
    custom = {"path": str(tmp_path / "score.py"), "name": "compute_score", "reward_kwargs": {"bonus": 0.5}}
    run_copied(as_test(scored(score=1.5), "run", custom))
    with pytest.raises(AssertionError):
        run_copied(as_test(scored(score=1.0), "run", custom))


def test_with_the_score_of_the_data_source() -> None:
    run_copied(as_test(scored(score=1.0, messages=[]), "run", None))


def test_the_score_functions_part_of_the_reward_counts() -> None:
    run_copied(as_test(scored(score=7.0, reward_extra_info={"outcome_score": 1.0}), "run", {"path": None}))


@pytest.mark.parametrize("odd", ['"""', "\\", "'''\n", "\x00{}", "{uid}"])
def test_nothing_that_a_model_writes_is_run(odd: str) -> None:
    evil = f"{odd}\nraise SystemExit(3)\n{odd}"
    item = record(1, output=evil, uid=evil, data_source=evil, gts=evil, messages=[{"role": "user", "content": evil}])
    scope: dict[str, Any] = {}
    exec(compile(as_test(item, evil, None), "copied.py", "exec"), scope)
    assert (scope["ANSWER"], scope["GROUND_TRUTH"], scope["MESSAGES"][0]["content"]) == (evil, evil, evil)
