"""Mixed demonstrations of the calculator demo: the model imitates them before the reward tells which habit pays off.

Some conversations use the calculator correctly, some answer without it, some call it with a wrong operator. Supervised
learning copies the mixture; only the reward tells the habits apart.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agentrl.cli.demo.tokenizer import ANSWER_HEAD
from agentrl.data.preprocess.arithmetic import Pair
from agentrl.data.preprocess.expressions import canonical, exact_value
from agentrl.types import Message

DIRECT_SHARE = 0.35
WRONG_SHARE = 0.20
_OPERATORS = "+-*/"


class Habit(StrEnum):
    """How a demonstration gets its answer."""

    TOOL = "tool"
    """Calls the calculator with the expression."""
    DIRECT = "direct"
    """Answers without a call."""
    WRONG_OPERATOR = "wrong_operator"
    """Calls the calculator with one operator exchanged."""


@dataclass(frozen=True, slots=True)
class DemonstrationPlan:
    """One demonstration before its tool has run."""

    habit: Habit
    expression: str
    answer: str
    """The right answer, which a direct demonstration gives."""
    called: str
    """The expression that the calculator gets."""


def plan_demonstrations(
    pairs: Sequence[Pair], count: int, seed: int, direct: float = DIRECT_SHARE, wrong: float = WRONG_SHARE
) -> list[DemonstrationPlan]:
    """Draw demonstrations.

    Args:
        pairs: expressions and answers to draw from, with replacement.
        count: how many.
        seed: seed of the draw.
        direct: share that answers without the tool.
        wrong: share that calls it with a wrong operator.
    """
    rng = random.Random(seed)
    habits = list(Habit)
    weights = [1.0 - direct - wrong, direct, wrong]
    plans = []
    for _ in range(count):
        habit = rng.choices(habits, weights)[0]
        expression, answer = rng.choice(pairs)
        called = exchange_operator(expression, rng) if habit is Habit.WRONG_OPERATOR else expression
        plans.append(DemonstrationPlan(habit, expression, answer, called))
    return plans


def exchange_operator(expression: str, rng: random.Random) -> str:
    """Replace one operator so that the value changes and can be written with few decimals.

    A few expressions (`0+0`) allow no such change; they are returned unchanged.
    """
    value = exact_value(expression)
    places = [place for place, char in enumerate(expression) if char in _OPERATORS]
    exchanges = [(place, operator) for place in places for operator in _OPERATORS if operator != expression[place]]
    rng.shuffle(exchanges)
    for place, operator in exchanges:
        changed = expression[:place] + operator + expression[place + 1 :]
        try:
            other = exact_value(changed)
        except ZeroDivisionError:
            continue
        if other != value and canonical(other) is not None:
            return changed
    return expression


def conversation(plan: DemonstrationPlan, calculate: Callable[[str], str], tool: str) -> list[Message]:
    """The messages of a demonstration.

    Args:
        plan: the demonstration.
        calculate: text of the tool's answer to an expression.
        tool: name of the tool.
    """
    question: Message = {"role": "user", "content": plan.expression}
    if plan.habit is Habit.DIRECT:
        return [question, {"role": "assistant", "content": ANSWER_HEAD + plan.answer}]
    result = calculate(plan.called)
    arguments = json.dumps({"expression": plan.called})
    call = {"type": "function", "function": {"name": tool, "arguments": arguments}}
    return [
        question,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": result, "name": tool},
        {"role": "assistant", "content": ANSWER_HEAD + result},
    ]


def shares(plans: Iterable[DemonstrationPlan]) -> dict[Habit, float]:
    """Share of each habit."""
    habits = [plan.habit for plan in plans]
    return {habit: habits.count(habit) / max(1, len(habits)) for habit in Habit}
