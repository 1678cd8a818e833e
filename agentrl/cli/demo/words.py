"""Made-up words that a tiny model can copy: names of two tokens, such as `Zori`, and words of one, such as `Balund`."""

from __future__ import annotations

import random

from agentrl.errors import UserInputError

_CONSONANTS = "bdfgklmnprtz"
_SYLLABLES = tuple(consonant + vowel for consonant in _CONSONANTS for vowel in "aeiou")
_BEGINNINGS = tuple(map(str.capitalize, _SYLLABLES))
WORDS = tuple(f"{c.upper()}{vowel}{end}" for c in _CONSONANTS for vowel in "aeio" for end in ("lund", "wick"))
"""What can be an answer. One token each: longer ones are not copied after every warm start, whatever its seed."""
WORD_PIECES = (*_BEGINNINGS, *_SYLLABLES, *WORDS)
"""Their tokens."""
NAMES = len(_BEGINNINGS) * len(_SYLLABLES)
"""How many names there are."""


def draw_names(count: int, rng: random.Random) -> list[str]:
    """Different names.

    Raises:
        UserInputError: there are not as many.
    """
    if count > NAMES:
        raise UserInputError(f"got {count} names to make up, but there are only {NAMES}")
    pairs = (divmod(number, len(_SYLLABLES)) for number in rng.sample(range(NAMES), count))
    return [_BEGINNINGS[first] + _SYLLABLES[second] for first, second in pairs]
