"""`agentrl data arithmetic --words`: short calculations that are read from left to right, asked in words.

    12, then + 34, then * 2
    expression  (12+34)*2
    question    What is twelve plus thirty-four, times two?      (a comma closes what stands before it)

Every step is exact: a difference is never negative and a quotient is whole, so answers are whole numbers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from agentrl.errors import UserInputError

_OPERATORS = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}
# fmt: off
_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
    "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen",
    "seventeen", "eighteen", "nineteen",
)
# fmt: on
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_TRIES_PER_QUESTION = 2000


@dataclass(frozen=True, slots=True)
class Difficulty:
    """What questions of a difficulty are made of."""

    operations: tuple[int, ...]
    """Numbers of operations; each is as likely as the others."""
    largest: int
    """Largest number to begin with, to add or to subtract."""
    largest_factor: int
    """Largest number to multiply with or divide by; the smallest is 2."""


DIFFICULTIES = {
    "easy": Difficulty((1,), 20, 9),
    "medium": Difficulty((1, 2), 99, 12),
    "hard": Difficulty((2, 3), 999, 99),
}


@dataclass(frozen=True, slots=True)
class WordProblem:
    """A question in the form in which a row asks it, its expression, and its answer."""

    question: str
    expression: str
    answer: str


def generate_problems(count: int, seed: int, difficulty: str) -> list[WordProblem]:
    """Draw distinct problems.

    Args:
        count: how many.
        seed: seed of the generator; a smaller `count` gives the first of them.
        difficulty: a key of `DIFFICULTIES`.

    Raises:
        UserInputError: fewer distinct questions of this difficulty were found.
    """
    rng = random.Random(seed)
    problems: dict[str, WordProblem] = {}
    for _ in range(count):
        for _ in range(_TRIES_PER_QUESTION):
            problem = _draw(rng, DIFFICULTIES[difficulty])
            if problem.question not in problems:
                break
        else:
            raise UserInputError(
                f"found only {len(problems)} distinct {difficulty} questions of the {count} wanted: ask for fewer "
                "rows, or for another --difficulty"
            )
        problems[problem.question] = problem
    return list(problems.values())


def number_in_words(number: int) -> str:
    """A whole number from 0 to 999: `thirty-four`, `two hundred five`."""
    hundreds, rest = divmod(number, 100)
    if hundreds:
        return f"{_SMALL[hundreds]} hundred" + (f" {number_in_words(rest)}" if rest else "")
    if number < len(_SMALL):
        return _SMALL[number]
    tens, ones = divmod(number, 10)
    return _TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else "")


def _draw(rng: random.Random, difficulty: Difficulty) -> WordProblem:
    value = rng.randint(2, difficulty.largest)
    words, expression, adds = number_in_words(value), str(value), False
    for place in range(rng.choice(difficulty.operations)):
        operator, operand = _draw_step(rng, difficulty, value)
        value = {"+": value + operand, "-": value - operand, "*": value * operand, "/": value // operand}[operator]
        words += f"{',' if place else ''} {_OPERATORS[operator]} {number_in_words(operand)}"
        if operator in "*/" and adds:
            expression = f"({expression})"
        adds = operator in "+-"
        expression += f"{operator}{operand}"
    return WordProblem(f"What is {words}?", expression, str(value))


def _draw_step(rng: random.Random, difficulty: Difficulty, value: int) -> tuple[str, int]:
    """An operator and the number behind it; where the drawn operator has no exact step, an addition."""
    operator = rng.choice(list(_OPERATORS))
    factors = range(2, difficulty.largest_factor + 1)
    operands = {
        "+": range(1, difficulty.largest + 1),
        "-": range(1, min(value, difficulty.largest) + 1),
        "*": factors,
        "/": [factor for factor in factors if value % factor == 0],
    }
    if not operands[operator]:
        operator = "+"
    return operator, rng.choice(operands[operator])
