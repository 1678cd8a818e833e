"""Made-up words of two tokens each, such as `Zori`: names that a tiny model can copy and nobody can know."""

from __future__ import annotations

import random

from agentrl.errors import UserInputError

_SYLLABLES = tuple(consonant + vowel for consonant in "bdfghjklmnprstvz" for vowel in "aeiou")
_BEGINNINGS = tuple(map(str.capitalize, _SYLLABLES))
SYLLABLES = (*_BEGINNINGS, *_SYLLABLES)
"""The tokens of the words. With many of them, a syllable seldom stands in two words of a conversation, so that the one
before it tells which comes next."""
WORDS = len(_BEGINNINGS) * len(_SYLLABLES)
"""How many words there are."""


def word(number: int) -> str:
    """The word of a number below `WORDS`: 0 is `Baba`."""
    first, second = divmod(number, len(_SYLLABLES))
    return _BEGINNINGS[first] + _SYLLABLES[second]


def draw_words(count: int, rng: random.Random) -> list[str]:
    """Different words.

    Raises:
        UserInputError: there are not as many.
    """
    if count > WORDS:
        raise UserInputError(f"got {count} words to make up, but there are only {WORDS}")
    return [word(number) for number in rng.sample(range(WORDS), count)]
