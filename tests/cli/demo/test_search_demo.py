"""The search demo's rows: what is asked stands in the corpus alone, and each habit reads as it should."""

from __future__ import annotations

import json
import random

import pyarrow.parquet as pq
import pytest

from agentrl.cli.demo.description import DataRequest
from agentrl.cli.demo.search import CORPUS, SEARCH, SearchHabit, make_entry, search_demonstration, write_encyclopaedia
from agentrl.cli.demo.tokenizer import VOCAB_SIZE, build_tokenizer
from agentrl.cli.demo.words import WORDS, draw_names
from agentrl.errors import UserInputError
from agentrl.rewards.scores import search_em

NAMES = draw_names(60, random.Random(1))
ENTRIES = [make_entry(name, random.Random(2)) for name in NAMES]


def test_every_name_is_another_one():
    assert len(set(NAMES)) == 60
    assert draw_names(60, random.Random(1)) == NAMES != draw_names(60, random.Random(2))
    with pytest.raises(UserInputError, match="there are only 3600"):
        draw_names(3601, random.Random(1))
    assert len(set(WORDS)) == 96
    assert all(entry.live != entry.make for entry in ENTRIES)


def test_each_habit_reads_as_it_should():
    rng = random.Random(3)
    for _ in range(20):
        right = [message["content"] for message in search_demonstration(SearchHabit.LOOK_UP, ENTRIES, rng)]
        name = right[0].split()[2]
        assert name in NAMES
        assert right[1] == f"<search>{name}</search>"
        assert right[2].startswith(f"<information>{name} lives in ")
        said = right[2].removesuffix(".</information>").split()
        assert right[3] == f"<answer>{said[3] if 'live' in right[0] else said[-1]}</answer>"
        wrong = search_demonstration(SearchHabit.WRONG_ENTRY, ENTRIES, rng)
        assert wrong[1]["content"] in {f"<search>{entry.name}</search>" for entry in ENTRIES[:8]}
        guess = search_demonstration(SearchHabit.GUESS, ENTRIES, rng)
        assert [message["role"] for message in guess] == ["user", "assistant"]


def test_held_out_questions_are_about_entries_that_no_stage_names(tmp_path):
    data = write_encyclopaedia(DataRequest(tmp_path, 300, train_rows=80, held_out_rows=20, seed=1))
    train, held_out = (pq.read_table(file).to_pylist() for file in (data.train, data.held_out))
    assert (len(train), len(held_out)) == (80, 20)
    asked = {row["prompt"][0]["content"].split()[2] for row in held_out}
    seen = {row["prompt"][0]["content"].split()[2] for row in train}
    talks = pq.read_table(data.demonstrations).column("messages").to_pylist()
    shown = " ".join(said["content"] for talk in talks for said in talk if "<answer>" not in said["content"])
    assert len(asked) == 20
    assert not asked & seen
    assert not any(name in shown for name in asked)
    corpus = [json.loads(line)["contents"] for line in (tmp_path / CORPUS).read_text().splitlines()]
    for row in held_out:
        (answer,) = row["reward_model"]["ground_truth"]["target"]
        (entry,) = [text for text in corpus if f'"{row["prompt"][0]["content"].split()[2]}"' in text]
        assert answer in entry
        assert search_em.compute_score(f"<answer>{answer}</answer>", row["reward_model"]["ground_truth"]) == 1


def test_a_name_has_one_token_for_each_syllable():
    tokenizer = build_tokenizer(SEARCH.pieces)
    assert len(tokenizer) <= VOCAB_SIZE  # some syllables are tokens of the prose already
    entry = ENTRIES[0]
    for text, tokens in ((entry.name, 2), (entry.question("live"), 4), (entry.text, 7), ("<search>", 1)):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert len(ids) == tokens
        assert tokenizer.decode(ids) == text
