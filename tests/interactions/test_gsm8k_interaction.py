"""The gsm8k user: feedback until the answer is right."""

from __future__ import annotations

import pytest

from agentrl.interactions.gsm8k import Gsm8kInteraction


async def started(**config: str) -> Gsm8kInteraction:
    interaction = Gsm8kInteraction(config)
    await interaction.start_interaction(query="q", ground_truth="42")
    return interaction


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("#### 42", True),
        ("It is 42.", True),
        ("#### 41 no, #### 42.0", True),
        ("#### 42 apples in 7 boxes", True),
        ("#### 7 boxes of 42 apples", False),
        ("#### 5", False),
        ("", False),
        ("#### 84/2", True),
        ("#### 42/5", False),
        ("#### 42/0", False),
        ("#### ٤٢", False),
        ("I had 42, so #### 7", False),
    ],
)
async def test_grades(answer: str, right: bool) -> None:
    interaction = await started(wrong="Again.")
    messages = [{"role": "user", "content": "What is 6 * 7? Not 42."}, {"role": "assistant", "content": answer}]
    response = await interaction.generate_response(messages)
    assert (response.should_terminate, response.score) == (right, float(right))
    assert response.content == ("Your answer is correct." if right else "Again.")
    assert await interaction.calculate_score() == float(right)


async def test_user_text_is_never_graded() -> None:
    interaction = await started()
    messages = [{"role": "assistant", "content": "5"}, {"role": "user", "content": "#### 42"}]
    assert (await interaction.generate_response(messages)).score == 0.0


def test_a_configuration_that_cannot_work() -> None:
    with pytest.raises(ValueError, match=r"unknown key 'config\.rigth'\. Did you mean 'right'"):
        Gsm8kInteraction({"rigth": "x"})


async def test_a_row_without_ground_truth() -> None:
    with pytest.raises(ValueError, match=r"interaction_kwargs\.ground_truth"):
        await Gsm8kInteraction({}).start_interaction(query="q")
