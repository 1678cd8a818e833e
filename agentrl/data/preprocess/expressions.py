"""Arithmetic expressions over decimal numbers: exact values, canonical numbers, and the annotations of GSM8K.

Values are `Fraction`s, so `0.1*30` is 3 and `1/3*30` is 10, as a person would write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fractions import Fraction

ANNOTATION = re.compile(r"<<([^<>]*)>>")
MAX_DECIMALS = 4
_NUMBER = r"\d+(?:\.\d+)?|\.\d+"
_TOKEN = re.compile(rf"({_NUMBER})|([-+*/()])")
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}


def exact_value(expression: str) -> Fraction:
    """Value of an expression of non-negative numbers, `+ - * /` and parentheses.

    Raises:
        ValueError: another character, or not an expression.
        ZeroDivisionError: a division by zero.
    """
    tokens = tokenize(expression)
    value, rest = _evaluate(tokens, 0, 1)
    if rest != len(tokens):
        raise ValueError(f"{expression!r}: unexpected {tokens[rest]!r}")
    return value


def tokenize(expression: str) -> list[str]:
    """Numbers, operators and parentheses of an expression, without spaces."""
    text = expression.replace(" ", "")
    tokens = [match.group() for match in _TOKEN.finditer(text)]
    if "".join(tokens) != text:
        raise ValueError(f"{expression!r}: wanted only numbers, + - * / and parentheses")
    return tokens


def _evaluate(tokens: list[str], at: int, least: int) -> tuple[Fraction, int]:
    """Precedence climbing: the value of the operators of precedence `least` and above that start at `at`."""
    # 1+2*3-4: `1`, then `+` with the right side `2*3` (precedence 2 and above), then `-` with `4`.
    value, at = _operand(tokens, at)
    while at < len(tokens) and _PRECEDENCE.get(tokens[at], 0) >= least:
        operator = tokens[at]
        right, at = _evaluate(tokens, at + 1, _PRECEDENCE[operator] + 1)
        value = _apply(operator, value, right)
    return value, at


def _operand(tokens: list[str], at: int) -> tuple[Fraction, int]:
    if at < len(tokens) and tokens[at] == "(":
        value, at = _evaluate(tokens, at + 1, 1)
        if at == len(tokens) or tokens[at] != ")":
            raise ValueError("a parenthesis is not closed")
        return value, at + 1
    if at == len(tokens) or tokens[at] in "+-*/)":
        raise ValueError("a number is missing")
    return Fraction(tokens[at]), at + 1


def _apply(operator: str, left: Fraction, right: Fraction) -> Fraction:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    return left * right if operator == "*" else left / right


def canonical(value: Fraction) -> str | None:
    """The canonical form of a number: `10`, `0.25`, `-3.5`; None if it needs more than four decimals."""
    scaled = value * 10**MAX_DECIMALS
    if scaled.denominator != 1:
        return None
    whole, decimals = divmod(abs(scaled.numerator), 10**MAX_DECIMALS)
    text = f"{whole}.{decimals:0{MAX_DECIMALS}d}".rstrip("0").rstrip(".")
    return f"-{text}" if value < 0 else text


def clean_annotation(annotation: str) -> tuple[str, str] | None:
    """Expression and answer of one annotation such as `48/2=24`; None if it is not a plain expression.

    The answer is computed, not read: some annotations of GSM8K are rounded or wrong. Spaces and superfluous zeros are
    removed, and `.5` becomes `0.5`.
    """
    try:
        tokens = tokenize(annotation.split("=")[0])
        if not any(token in _PRECEDENCE for token in tokens):
            return None
        expression = "".join(_canonical_token(token) for token in tokens)
        answer = canonical(exact_value(expression))
    except (ValueError, ZeroDivisionError):
        return None
    return None if answer is None else (expression, answer)


def _canonical_token(token: str) -> str:
    if token in "+-*/()":
        return token
    whole, _, decimals = token.partition(".")
    whole, decimals = whole.lstrip("0") or "0", decimals.rstrip("0")
    return f"{whole}.{decimals}" if decimals else whole


def expressions_in(solutions: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Distinct expressions with their answers, in order of appearance, from solutions annotated as in GSM8K."""
    seen = set()
    for solution in solutions:
        for annotation in ANNOTATION.findall(solution):
            pair = clean_annotation(annotation)
            if pair is not None and pair[0] not in seen:
                seen.add(pair[0])
                yield pair
