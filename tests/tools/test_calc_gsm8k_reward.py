"""The grader remembers: a call that does not improve costs something."""

from __future__ import annotations

import pytest

from agentrl.tools.calc_gsm8k_reward import CalcGsm8kReward, read_number


async def test_a_call_that_does_not_improve_is_penalised() -> None:
    tool = CalcGsm8kReward({"penalty": 0.1})
    await tool.create(ground_truth="1,234")
    rewards = [(await tool.execute({"answer": answer})).reward for answer in ("5", "#### 1234.0", "1234", "7")]
    assert rewards == [-0.1, 0.0, -0.1, -0.1]
    assert await tool.calc_reward() == 1.0


async def test_an_answer_without_a_number_is_a_mistake() -> None:
    tool = CalcGsm8kReward({})
    await tool.create(ground_truth=72)
    assert (await tool.execute({"answer": "no idea"})).is_error
    assert await tool.calc_reward() == 0.0


@pytest.mark.parametrize("kwargs", [{}, {"ground_truth": None}, {"ground_truth": "unknown"}])
async def test_a_row_without_ground_truth(kwargs: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"create_kwargs\.ground_truth"):
        await CalcGsm8kReward({}).create(**kwargs)


def test_what_is_no_number_or_another_one() -> None:
    assert read_number("72/0") is None
    assert read_number("٧٢") is None
    assert read_number("72/5") != 72


def test_a_configuration_that_cannot_work() -> None:
    with pytest.raises(ValueError, match=r"unknown key 'config\.penalti'\. Did you mean 'penalty'"):
        CalcGsm8kReward({"penalti": 1})


@pytest.mark.parametrize(
    "text",
    ["72", "72.0", "72.", "$72", "it is 72.", "#### 72", "3 + 69 = 72", "#### 5 wait #### 72", "144/2", "#### 72 in 8"],
)
def test_the_same_number(text: str) -> None:
    assert read_number(text) == 72
