"""A score function that cannot be called is refused at the start; one that raises is told with its file and line."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.root import RunConfig
from agentrl.errors import PluginError, RewardError
from agentrl.interfaces import RewardInput
from agentrl.rewards import NaiveRewardManager
from agentrl.rewards.batch import BatchRewardManager
from agentrl.rewards.loading import check_kwargs, load_reward_manager
from agentrl.rewards.scores.gsm8k import compute_score as gsm8k

HERE = "tests/rewards/test_score_call.py"


def positional(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any, /) -> float:
    return 1.0


def without_extra(data_source: str, solution_str: str, ground_truth: Any) -> float:
    return 1.0


def other_names(solution: str, truth: str) -> float:
    return 1.0


def one_more(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any, tokenizer: Any) -> float:
    return 1.0


def lists(data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any) -> list[float]:
    return [1.0]


def single(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    return 1.0


def streams(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any) -> Any:
    yield 1.0


@pytest.mark.parametrize(
    ("manager", "function", "message"),
    [
        (NaiveRewardManager, positional, "positional"),
        (NaiveRewardManager, without_extra, "unexpected keyword argument 'extra_info'"),
        (NaiveRewardManager, other_names, r"other_names \(tests/rewards/test_score_call.py:\d+\) takes \(solution: "),
        (NaiveRewardManager, one_more, "missing a required argument: 'tokenizer'"),
        (NaiveRewardManager, lists, "set reward_model.reward_manager=batch"),
        (BatchRewardManager, single, "set reward_model.reward_manager=naive"),
        (NaiveRewardManager, streams, "streams yields: .*`return` it"),
    ],
)
def test_a_signature_that_no_call_fits(manager: Any, function: Any, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        manager(function)


@pytest.mark.parametrize(
    ("manager", "function"),
    [
        (NaiveRewardManager, single),
        (NaiveRewardManager, lambda **_: 1.0),
        (NaiveRewardManager, functools.partial(one_more, tokenizer=None)),
        (BatchRewardManager, lists),
        (NaiveRewardManager, max),
    ],
)
def test_signatures_that_fit(manager: Any, function: Any) -> None:
    manager(function)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def compute_score(solution_str, ground_truth): return 1.0", r"compute_score \(.*mine.py:1\) takes"),
        ("def compute_score(x=1, **kw): return 1.0", None),
        (
            "def compute_score(data_source, solution_str, ground_truth, extra_info, bonus=0): return 1.0",
            r"reward_kwargs.bonous: compute_score \(.*mine.py:1\) has no such parameter. Did you mean 'bonus'\?",
        ),
    ],
)
def test_the_functions_of_a_run(tmp_path: Path, body: str, message: str | None) -> None:
    (tmp_path / "mine.py").write_text(body)
    kwargs = {"bonous": 1} if message is None or "bonous" in message else {}
    section = {"path": str(tmp_path / "mine.py"), "reward_kwargs": kwargs}
    config = RunConfig.model_validate({"custom_reward_function": section})
    if message is None:
        load_reward_manager(config)
        return
    with pytest.raises(PluginError, match=message):
        load_reward_manager(config)


def test_options_that_the_score_of_a_data_source_does_not_take() -> None:
    with pytest.raises(PluginError, match=r"reward_kwargs.metod: .*has no such parameter. Did you mean 'method'\?"):
        check_kwargs(gsm8k, {"metod": "flexible"})
    check_kwargs(gsm8k, {"method": "flexible"})


@pytest.mark.parametrize("name", ["solution_str", "extra_info", "ground_truth"])
def test_options_that_every_call_would_replace(name: str) -> None:
    with pytest.raises(PluginError, match=rf"reward_kwargs.{name}: every call passes the row's own {name}"):
        check_kwargs(lambda **_: 1.0, {name: "x"})


def helper(text: str) -> int:
    return int(text)


async def test_an_error_names_the_line_of_the_functions_own_code() -> None:
    def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any) -> float:
        return helper(solution_str) if data_source == "helper" else json.loads(solution_str)

    async def later(**fields: Any) -> float:
        return compute_score(**fields)

    for function in (compute_score, later):
        manager, first = NaiveRewardManager(function), compute_score.__code__.co_firstlineno
        with pytest.raises(RewardError) as caught:
            await manager.score(RewardInput("", "{", ""))
        assert str(caught.value).endswith(f" ({HERE}:{first + 1})")
        with pytest.raises(RewardError) as caught:
            await manager.score(RewardInput("helper", "x", ""))
        assert str(caught.value).endswith(f" ({HERE}:{helper.__code__.co_firstlineno + 1})")


@pytest.mark.parametrize("ends", [SystemExit(3), StopIteration(), KeyboardInterrupt(), GeneratorExit()])
async def test_what_would_end_the_worker_is_told_with_its_place(ends: BaseException) -> None:
    def score(**_: Any) -> float:
        raise ends

    line = score.__code__.co_firstlineno + 1
    with pytest.raises(RewardError, match=rf"{type(ends).__name__}: .*\({HERE}:{line}\)"):
        await NaiveRewardManager(score).score(RewardInput("x", "", "", {}))
