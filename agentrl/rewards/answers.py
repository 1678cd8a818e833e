"""The answer in a response, as the score function of its data source reads it: what majority votes are counted by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentrl.boxed import last_boxed
from agentrl.errors import PluginError
from agentrl.rewards.dispatcher import ScoreFunction, find_score
from agentrl.rewards.scores import arithmetic, geo3k, gsm8k, math, math_dapo, pictures, search_em
from agentrl.rewards.scores.numbers import last_number


def _number(text: str) -> str | None:
    number = gsm8k.extract_answer(text)
    return None if number is None else str(number.normalize())


def _last_number(text: str) -> str | None:
    number = last_number(arithmetic.TOOL_CALL.sub(" ", text))
    return None if number is None else str(number.normalize())


def _boxed(text: str) -> str | None:
    return _squeezed(last_boxed(text))


def _answer_line(text: str) -> str | None:
    return _squeezed(math_dapo.answer_of(text))


def _squeezed(answer: str | None) -> str | None:
    return None if answer is None else "".join(answer.split())


def _tagged(text: str) -> str | None:
    answers = search_em.ANSWER.findall(text)
    return search_em.normalize_answer(answers[-1]) if answers else None


_ANSWERS: dict[ScoreFunction, Callable[[str], str | None]] = {
    gsm8k.compute_score: _number,
    arithmetic.compute_score: _last_number,
    math.compute_score: _boxed,
    geo3k.compute_score: _boxed,
    pictures.compute_score: pictures.last_answer,
    math_dapo.compute_score: _answer_line,
    search_em.compute_score: _tagged,
}


def answer_reader(data_source: str) -> Callable[[str], str | None] | None:
    """What finds the answer in a response for the built-in score of a data source; None: its score has no such part."""
    try:
        score: Any = find_score(data_source)
    except PluginError:  # unknown, or scored in a sandbox: there is no answer to vote for
        return None
    return _ANSWERS.get(score)
