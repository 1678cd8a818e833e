"""The search demo: questions about a made-up encyclopaedia, whose answers nobody can know without looking them up.

Some demonstrations look the entry up, some guess an answer, some look up another, famous entry. All of them read alike,
in the protocol of `search_r1_agent`; only the reward tells them apart.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from agentrl.cli.demo.description import DataRequest, Demo, DemoData, ServiceNeed, draw_habits, write_demo_rows
from agentrl.cli.demo.words import WORD_PIECES, WORDS, draw_names
from agentrl.cli.output import write_text
from agentrl.errors import UserInputError
from agentrl.types import JsonDict, Message

DATA_SOURCE = "searchR1_demo"
FACTS = {"live": ("Where does ", " live?"), "make": ("What does ", " make?")}
"""Beginning and end of the question for each fact of an entry."""
FAMOUS = 8
"""Entries that demonstrations of a wrong search look up."""
PIECES = (
    *WORD_PIECES,
    *(piece for question in FACTS.values() for piece in question),
    *(" lives in ", " and makes "),
    *("<search>", "</search>", "\n\n<information>", "</information>\n\n", "<answer>", "</answer>"),
)
CORPUS, INDEX = "corpus.jsonl", "index"


class SearchHabit(StrEnum):
    """How a demonstration gets its answer."""

    LOOK_UP = "look_up"
    """Searches for the entry that the question is about."""
    GUESS = "guess"
    """Answers without a search, with any word."""
    WRONG_ENTRY = "wrong_entry"
    """Searches for a famous entry instead."""


SHARES = {SearchHabit.LOOK_UP: 0.45, SearchHabit.GUESS: 0.35, SearchHabit.WRONG_ENTRY: 0.20}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the encyclopaedia."""

    name: str
    live: str
    make: str

    @property
    def text(self) -> str:
        """What it says."""
        return f"{self.name} lives in {self.live} and makes {self.make}."

    def question(self, fact: str) -> str:
        """Asks for a fact."""
        before, after = FACTS[fact]
        return f"{before}{self.name}{after}"

    def answer(self, fact: str) -> str:
        """The right answer."""
        return str(getattr(self, fact))


def write_encyclopaedia(request: DataRequest) -> DemoData:
    """Write the corpus and the demo's rows. Neither training questions nor demonstrations name a held-out entry.

    Each demonstration has facts of its own, which are not in the corpus: the model can only learn to copy what it
    reads, not what the corpus says.

    Raises:
        UserInputError: more rows than there are names for, or a file cannot be written.
    """
    rng = random.Random(request.seed)
    in_training = -(-request.train_rows // len(FACTS))
    entries = [make_entry(name, rng) for name in draw_names(in_training + request.held_out_rows, rng)]
    known, new = entries[:in_training], entries[in_training:]
    lines = (json.dumps({"id": str(i), "contents": f'"{e.name}"\n{e.text}'}) for i, e in enumerate(entries))
    write_text(request.folder / CORPUS, "".join(f"{line}\n" for line in lines))
    asked = [(entry, fact) for entry in known for fact in FACTS][: request.train_rows]
    return write_demo_rows(
        request.folder,
        [search_demonstration(habit, known, rng) for habit in draw_habits(rng, SHARES, request.demonstrations)],
        [entry_row(entry, fact, "train", index) for index, (entry, fact) in enumerate(asked)],
        [entry_row(entry, rng.choice(list(FACTS)), "test", index) for index, entry in enumerate(new)],
    )


def make_entry(name: str, rng: random.Random) -> Entry:
    """An entry with two different facts: Zori lives in Balund and makes Gewick."""
    return Entry(name, *rng.sample(WORDS, 2))


def search_demonstration(habit: SearchHabit, known: Sequence[Entry], rng: random.Random) -> list[Message]:
    """A conversation about one of these entries, with other facts; the first ones are the famous entries."""
    entry, fact = make_entry(rng.choice(known).name, rng), rng.choice(list(FACTS))
    question: Message = {"role": "user", "content": entry.question(fact)}
    if habit is SearchHabit.GUESS:
        return [question, _answer(rng.choice(WORDS))]
    found = rng.choice(known[:FAMOUS]) if habit is SearchHabit.WRONG_ENTRY else entry
    return [
        question,
        {"role": "assistant", "content": f"<search>{found.name}</search>"},
        {"role": "tool", "content": f"<information>{found.text}</information>"},
        _answer(found.answer(fact)),
    ]


def entry_row(entry: Entry, fact: str, split: str, index: int) -> JsonDict:
    """Dataset row of one question."""
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": entry.question(fact)}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": [entry.answer(fact)]}},
        "agent_name": "search_r1_agent",
        "extra_info": {"split": split, "index": index},
    }


def index_encyclopaedia(out: Path) -> list[str]:
    """Build the index of the encyclopaedia with `agentrl data index`; returns the options of the service.

    Raises:
        UserInputError: the index cannot be built.
    """
    corpus, index = out / "data" / CORPUS, out / INDEX
    arguments = [str(corpus), "--out", str(index), "--stemmer", "none", "--workers", "1", "--force", "--quiet"]
    command = [sys.executable, "-m", "agentrl", "data", "index", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserInputError(f"cannot build the index {index}: {done.stderr.strip()[-2000:]}")
    return ["--index", str(index)]


def _answer(text: str) -> Message:
    return {"role": "assistant", "content": f"<answer>{text}</answer>"}


SEARCH = Demo(
    name="search",
    title="a search agent learns to look things up",
    questions="questions",
    habits="some guess an answer, some look up something else",
    recipe="demo_search",
    warm_start="demo_search_sft",
    folder=Path("outputs/demo_search"),
    data_source=DATA_SOURCE,
    write=write_encyclopaedia,
    pieces=PIECES,
    train_rows=3072,  # there are names for 3,600 entries
    service=ServiceNeed("retrieval", index_encyclopaedia, lambda out, url: [f"retriever.url={url}"]),
)
