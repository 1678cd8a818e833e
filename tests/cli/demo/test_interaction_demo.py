"""The interaction demo: a wrong greeting is corrected, and only what follows the correction is right."""

from __future__ import annotations

import random

import pyarrow.parquet as pq
import pytest

from agentrl.cli.demo import interaction
from agentrl.cli.demo.description import DataRequest
from agentrl.cli.demo.interaction import GREETINGS, INTERACTION, CorrectionHabit, GreetingInteraction, compute_score
from agentrl.cli.demo.tokenizer import VOCAB_SIZE, build_tokenizer


def said(*texts: str) -> list[dict[str, str]]:
    roles = ("user", "assistant") * 2
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


async def test_a_wrong_greeting_is_corrected_and_a_right_one_ends_the_talk():
    corrects = GreetingInteraction({})
    await corrects.start_interaction(ground_truth="Balund, Zori.")
    reply = await corrects.generate_response(said("Greet Zori.", "Gewick, Zori."))
    assert (reply.should_terminate, reply.content, reply.score) == (False, "No, say Balund.", 0.0)
    reply = await corrects.generate_response(said("Greet Zori.", "Gewick, Zori.", "No, say Balund.", "Balund, Zori."))
    assert (reply.should_terminate, reply.score) == (True, 1.0)
    assert await corrects.calculate_score() == 1.0
    with pytest.raises(ValueError, match=r"`interaction_kwargs\.ground_truth`: got none"):
        await corrects.start_interaction()


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        (["Balund, Zori."], {"score": 1.0}),
        (["Gewick, Zori."], {"score": 0.0}),
        (["Gewick, Zori.", "Balund, Zori."], {"score": 1.0, "second": 1.0}),
        (["Gewick, Zori.", "Balund, Zoru."], {"score": 0.0, "second": 0.0}),
        ([], {"score": 0.0}),
    ],
)
def test_the_last_answer_counts(answers, wanted):
    messages = said("Greet Zori.") + [{"role": "assistant", "content": text} for text in answers]
    assert compute_score("x", " ".join(answers), "Balund, Zori.", {"messages": messages}) == wanted


def test_each_habit_reads_as_it_should():
    rng = random.Random(1)
    for habit in CorrectionHabit:
        talk = [message["content"] for message in interaction.greeting_demonstration(habit, "Zori", rng)]
        wanted = talk[2].removeprefix("No, say ").removesuffix(".")
        assert talk[0] == "Greet Zori."
        assert talk[1] != f"{wanted}, Zori."
        assert (talk[3] == f"{wanted}, Zori.") is (habit is CorrectionHabit.FOLLOW)
        assert (talk[3] == talk[1]) is (habit is CorrectionHabit.REPEAT)
        assert talk[3].partition(",")[0] in GREETINGS


def test_held_out_people_are_in_neither_stage(tmp_path):
    data = interaction.write_greetings(DataRequest(tmp_path, 200, train_rows=80, held_out_rows=20, seed=1))
    train, held_out = (pq.read_table(file).to_pylist() for file in (data.train, data.held_out))
    talks = pq.read_table(data.demonstrations).column("messages").to_pylist()
    people = [{row["prompt"][0]["content"] for row in rows} for rows in (train, held_out)]
    assert {messages[0]["content"] for messages in talks} <= people[0]
    assert (len(people[0]), len(people[1])) == (80, 20)
    assert not people[0] & people[1]
    kwargs = held_out[0]["extra_info"]["interaction_kwargs"]
    assert kwargs == {"name": "greeting", "ground_truth": held_out[0]["reward_model"]["ground_truth"]}


def test_a_greeting_is_a_few_tokens():
    tokenizer = build_tokenizer(INTERACTION.pieces)
    assert len(tokenizer) <= VOCAB_SIZE
    assert len(set(GREETINGS)) == 16
    for text, tokens in (("Greet Zori.", 4), ("Balund, Zori.", 5), ("No, say Balund.", 3)):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert len(ids) == tokens
        assert tokenizer.decode(ids) == text
