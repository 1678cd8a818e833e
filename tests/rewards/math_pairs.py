"""What the tests of mathematical answers share."""

from __future__ import annotations

from collections.abc import Iterable

from agentrl.rewards.scores.math_compare import same_answer
from agentrl.rewards.scores.math_expression import equal_expressions

Pair = tuple[str, str]


def same(answer: str, gold: str) -> bool:
    """Whether two answers are equal, with computer algebra in this process."""
    return bool(same_answer(answer, gold, equal_expressions))


def both_ways(equal: Iterable[Pair], different: Iterable[Pair]) -> list[tuple[str, str, bool]]:
    """Each pair in both directions, with the verdict."""
    pairs = [(*pair, True) for pair in equal] + [(*pair, False) for pair in different]
    return [case for one, other, wanted in pairs for case in ((one, other, wanted), (other, one, wanted))]
