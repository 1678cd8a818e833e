"""The test that the page copies passes where the score is the same, and fails where it is not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from made_dumps import record

from agentrl.config import RunConfig
from agentrl.config.rewards import OverlongBufferConfig
from agentrl.interfaces import RewardInput
from agentrl.observability.viewer.as_test import TEXT_MANAGERS, as_test
from agentrl.rewards.dapo import DapoRewardManager
from agentrl.rewards.loading import MANAGERS
from agentrl.types import AgentLoopOutput, StopReason

SCORES = """
def compute_score(data_source, solution_str, ground_truth, extra_info, bonus=0.0):
    assert extra_info["index"] == 3 and extra_info["messages"][0]["role"] == "user"
    return {"score": float(ground_truth in solution_str) + bonus}

async def waits(data_source, solution_str, ground_truth, extra_info):
    return float(ground_truth in solution_str)

def many(data_sources, solution_strs, ground_truths, extra_infos):
    return [float(truth in said) for truth, said in zip(ground_truths, solution_strs)]

def turns(data_source, solution_str, ground_truth, extra_info):
    return extra_info["num_turns"] / (4 * extra_info["num_tool_calls"])
"""
OWN_MANAGER = """
from agentrl.interfaces import RewardManager, RewardResult

class Halves(RewardManager):
    def __init__(self, score_fn, timeout_s, share=1.0):
        self.score_fn, self.share = score_fn, share

    async def score(self, item):
        given = (item.data_source, item.solution_str, item.ground_truth, item.extra_info)
        return RewardResult(self.share * self.score_fn(*given)["score"])
"""
BUFFER = {"enable": True, "len": 20, "penalty_factor": 0.5}


@pytest.fixture
def scores(tmp_path: Path) -> str:
    (tmp_path / "score.py").write_text(SCORES)
    return str(tmp_path / "score.py")


def run_copied(text: str) -> None:
    """What pytest does with it, without the price of a process."""
    scope: dict[str, Any] = {}
    exec(compile(text, "copied.py", "exec"), scope)
    scope["test_score"]()


def scored(**changes: Any) -> dict[str, Any]:
    return record(1, solution_str="It is 2", extra_info={"index": 3}, **changes)


def copied(item: dict[str, Any], given: dict[str, Any]) -> str:
    """The text, with a run that sets these dotted keys."""
    config = RunConfig.model_validate({}).model_dump(mode="json")
    for key, value in given.items():
        *sections, name = key.split(".")
        place = config
        for section in sections:
            place = place[section]
        place[name] = value

    def setting(key: str) -> Any:
        value: Any = config
        for part in key.split("."):
            value = value[part]
        return value

    return as_test(item, "run", setting)


def of(path: str, name: str = "compute_score", **kwargs: Any) -> dict[str, Any]:
    own = {"path": path, "name": name, "reward_kwargs": kwargs}
    return {f"custom_reward_function.{key}": value for key, value in own.items()}


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("compute_score", {}),
        ("waits", {}),
        ("waits", {"reward_model.reward_manager": "prime"}),
        ("many", {"reward_model.reward_manager": "batch"}),
        ("turns", {}),
        ("compute_score", {"reward_manager.name": "dapo"}),
    ],
)
def test_every_way_to_score(scores: str, name: str, more: dict[str, Any]) -> None:
    given = {**of(scores, name), **more}
    run_copied(copied(scored(score=1.0), given))
    with pytest.raises(AssertionError):
        run_copied(copied(scored(score=0.75), given))


def test_options_of_the_score_function(scores: str) -> None:
    run_copied(copied(scored(score=1.5), of(scores, bonus=0.5)))
    with pytest.raises(AssertionError):
        run_copied(copied(scored(score=1.0), of(scores, bonus=0.5)))


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_penalty_for_length_is_no_part_of_it(scores: str, log: bool, weighted: bool) -> None:
    """As the manager dapo reports it: 1 less 0.5. Where the reward has other parts too, that is `outcome_score`."""
    given = of(scores) | {
        "reward_model.reward_manager": "dapo",
        "reward_model.reward_kwargs": {"overlong_buffer_cfg": {**BUFFER, "len": 4096}, "max_resp_len": 20480},
    }
    tokens = AgentLoopOutput([1], [2] * 100, [1] * 100, [0.0] * 100, num_turns=2, stop_reason=StopReason.COMPLETED)
    overlong = OverlongBufferConfig.model_validate({**BUFFER, "log": log})
    manager = DapoRewardManager(lambda **_: 1.0, max_response_length=100, overlong=overlong)
    result = asyncio.run(manager.score(RewardInput("any", "It is 2", "2", {}, output=tokens)))
    assert result.score == 0.5

    def dumped(score: float) -> dict[str, Any]:
        if not weighted:
            return scored(score=score, reward_extra_info=result.extra)
        return scored(score=7.0, reward_extra_info={**result.extra, "outcome_score": score})

    run_copied(copied(dumped(result.score), given))
    with pytest.raises(AssertionError):
        run_copied(copied(dumped(0.25), given))


def test_a_reward_manager_of_the_users(scores: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_MANAGER)
    own = f"{tmp_path / 'own.py'}"
    options = of(scores) | {"reward_model.reward_kwargs": {"share": 0.25}}
    run_copied(copied(scored(score=0.25), options | {"reward_model.reward_manager": f"{own}:Halves"}))
    imported = {"source": "importlib", "name": "Halves", "module": {"path": own, "name": None}}
    run_copied(copied(scored(score=0.25), options | {"reward_manager": imported}))


def test_with_the_score_of_the_data_source() -> None:
    run_copied(copied(scored(score=1.0, messages=[]), {}))
    run_copied(as_test(scored(score=1.0), "run", lambda key: None))


@pytest.mark.parametrize(
    ("item", "given", "reason"),
    [
        (scored(score=None), {}, "it has no score"),
        (scored(), {"reward_model.combine.outcome": 0.0}, "reward_model.combine.outcome is 0"),
    ],
)
def test_where_no_score_function_scored_there_is_no_test(item: dict, given: dict, reason: str) -> None:
    text = copied(item, given)
    assert text.startswith("# ")
    assert text.count("\n") == 1
    assert reason in text


def test_tokens_of_services_are_not_copied() -> None:
    sandbox = {"url": "http://sandbox:1", "headers": {"Authorization": "Bearer 7"}}
    text = copied(scored(), {"reward_model.sandbox_fusion": sandbox})
    assert "http://sandbox:1" in text
    assert "Bearer" not in text


def test_every_built_in_manager_scores_texts() -> None:
    assert set(TEXT_MANAGERS) == set(MANAGERS)


@pytest.mark.parametrize("odd", ['"""', "\\", "'''\n", "\x00{}", "{uid}"])
def test_nothing_that_a_model_writes_is_run(odd: str) -> None:
    evil = f"{odd}\nraise SystemExit(3)\n{odd}"
    item = record(1, output=evil, uid=evil, data_source=evil, gts=evil, messages=[{"role": "user", "content": evil}])
    scope: dict[str, Any] = {}
    exec(compile(as_test(item, evil, lambda key: None), "copied.py", "exec"), scope)
    assert (scope["ANSWER"], scope["GROUND_TRUTH"], scope["MESSAGES"][0]["content"]) == (evil, evil, evil)
