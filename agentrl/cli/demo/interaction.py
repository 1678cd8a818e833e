"""The interaction demo: nobody can know how somebody likes to be greeted, but whoever is told can do it right.

The first answer is a guess; the interaction says what was wanted. Some demonstrations then answer as they were told,
some repeat themselves, some guess again. Only the reward tells them apart.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from agentrl.cli.demo.description import Curve, DataRequest, Demo, DemoData, draw_habits, write_demo_rows
from agentrl.cli.demo.words import WORD_PIECES, WORDS, draw_names
from agentrl.interfaces import BaseInteraction, check_config
from agentrl.types import InteractionResponse, JsonDict, Message

DATA_SOURCE = "agentrl/greeting"
NAME = "greeting"
GREETINGS = WORDS[::6]
RIGHT = "Right."
PIECES = (
    *WORD_PIECES,
    *("Greet ", "No, say ", RIGHT, ", "),
)


class CorrectionHabit(StrEnum):
    """What a demonstration does with a correction."""

    FOLLOW = "follow"
    """Answers as it was told."""
    REPEAT = "repeat"
    """Gives its first answer again."""
    GUESS_AGAIN = "guess_again"
    """Gives another greeting than either."""


SHARES = {CorrectionHabit.FOLLOW: 0.45, CorrectionHabit.REPEAT: 0.35, CorrectionHabit.GUESS_AGAIN: 0.20}


class GreetingInteraction(BaseInteraction):
    """Tells how a person likes to be greeted, once the greeting was wrong.

    Args:
        config: empty.
    """

    def __init__(self, config: JsonDict) -> None:
        super().__init__(config)
        check_config(config, ())
        self._wanted, self._score = "", 0.0

    async def start_interaction(self, **interaction_kwargs: Any) -> None:
        """Needs `ground_truth`: the whole greeting."""
        self._wanted = str(interaction_kwargs.get("ground_truth") or "")
        if not self._wanted:
            raise ValueError("`interaction_kwargs.ground_truth`: got none, wanted a greeting such as 'Balund, Zori.'")

    async def generate_response(self, messages: list[Message]) -> InteractionResponse:
        """Compare the last answer."""
        self._score = float(messages[-1]["content"] == self._wanted)
        reply = RIGHT if self._score else correction(self._wanted.partition(",")[0])
        return InteractionResponse(bool(self._score), reply, self._score)

    async def calculate_score(self) -> float:
        """The score of the last answer."""
        return self._score


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any], **_: Any
) -> dict[str, float]:
    """1 if the last answer is the wanted greeting; `second`: the same of those that needed a correction.

    Args:
        data_source: of the row; not used.
        solution_str: not used: it joins the answers.
        ground_truth: the wanted greeting.
        extra_info: holds `messages`.
    """
    answers = [message["content"] for message in extra_info["messages"] if message["role"] == "assistant"]
    score = float(bool(answers) and answers[-1] == ground_truth)
    return {"score": score, "second": score} if len(answers) > 1 else {"score": score}


def write_greetings(request: DataRequest) -> DemoData:
    """Write the demo's rows. No training row and no demonstration greets whom a held-out row greets."""
    rng = random.Random(request.seed)
    people = draw_names(request.train_rows + request.held_out_rows, rng)
    known, new = people[: request.train_rows], people[request.train_rows :]
    return write_demo_rows(
        request.folder,
        [
            greeting_demonstration(habit, rng.choice(known), rng)
            for habit in draw_habits(rng, SHARES, request.demonstrations)
        ],
        [greeting_row(person, rng.choice(GREETINGS), "train", index) for index, person in enumerate(known)],
        [greeting_row(person, rng.choice(GREETINGS), "test", index) for index, person in enumerate(new)],
    )


def greeting(words: str, person: str) -> str:
    """A whole greeting: `Balund, Zori.` with these words."""
    return f"{words}, {person}."


def correction(words: str) -> str:
    """What the interaction says after a wrong greeting."""
    return f"No, say {words}."


def greeting_demonstration(habit: CorrectionHabit, person: str, rng: random.Random) -> list[Message]:
    """A conversation with a wrong first greeting."""
    first, wanted, other = rng.sample(GREETINGS, 3)
    second = {CorrectionHabit.FOLLOW: wanted, CorrectionHabit.REPEAT: first, CorrectionHabit.GUESS_AGAIN: other}[habit]
    return _talk(person, [greeting(first, person), correction(wanted), greeting(second, person)])


def greeting_row(person: str, words: str, split: str, index: int) -> JsonDict:
    """Dataset row of one person."""
    wanted = greeting(words, person)
    return {
        "data_source": DATA_SOURCE,
        "prompt": _talk(person, []),
        "ability": "correction",
        "reward_model": {"style": "rule", "ground_truth": wanted},
        "agent_name": "tool_agent",
        "extra_info": {
            "split": split,
            "index": index,
            "interaction_kwargs": {"name": NAME, "ground_truth": wanted},
        },
    }


def _talk(person: str, said: Sequence[str]) -> list[Message]:
    roles = ("assistant", "user", "assistant")
    answers: list[Message] = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
    return [{"role": "user", "content": f"Greet {person}."}, *answers]


INTERACTION = Demo(
    name="interaction",
    title="an agent learns from what it is told",
    questions="greetings",
    habits="some repeat a wrong answer, some guess again",
    recipe="demo_interaction",
    warm_start="demo_interaction_sft",
    folder=Path("outputs/demo_interaction"),
    data_source=DATA_SOURCE,
    write=write_greetings,
    pieces=PIECES,
    train_rows=3072,  # there are names for 3,600 people
    second=Curve("second answers right", "second_right", f"val-aux/{DATA_SOURCE}/second/mean@1", "reward/second/mean"),
)
