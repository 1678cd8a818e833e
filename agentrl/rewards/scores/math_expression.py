r"""Whether two expressions are equal, with computer algebra; runs in a process of its own, since it may never end.

math-verify reads the LaTeX. Numbers are compared to 150 digits relative to their size, and expressions with variables
at random points, because the library itself calls `\frac{1}{2^{98}}` and `\frac{1}{2^{99}}` equal. It decides what has
no value at points: equations, conditions, sets.
"""

from __future__ import annotations

import random
import re
from fractions import Fraction
from typing import Any

import sympy
from latex2sympy2_extended.math_normalization import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

from agentrl.rewards.scores.math_compare import rounds_to

_READING = LatexExtractionConfig(
    normalization_config=NormalizationConfig(basic_latex=True, boxed="none"), boxed_match_priority=-1
)
"""Nothing that makes another value of an answer: no removed units, no repaired operators, no last number of a text."""
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*\\degree(?![A-Za-z])")
_PRODUCTS = re.compile(r"(?:\)|\\pi)\s*(?=[(\d]|\\frac)|(?<![\w^.}\\])(?:\d+\.?\d*|\.\d+)\s*(?=\()")
_OTHER_BRACKETS = re.compile(r"(?<!\\sqrt)\[([^\[\],]*)\]|\\\{([^{},]*)\\\}")
_BINOMIAL = re.compile(r"(?<![\^_])\\binom\{[^{}]*\}\{[^{}]*\}")
_JOINED = re.compile(r"(?<![\w^.}\\])(\d+)\{(\d+)\}")
_SEVERAL_NUMBERS = re.compile(r"\s*[-+]?[\d.]+(?:\s+[\d.]+)+\s*")
_NEVER_S = 3600
"""The library's own alarms; the process has its limit in processor time."""
_DIGITS = 30
_WORKING_DIGITS = 600
_SAME = sympy.Float(10, 30) ** -150
_TINY = sympy.Float(10, 30) ** -400
_POINTS = 4
_LARGEST_EXPONENT = 10**6
_TROUBLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RecursionError,
    TypeError,
)
"""What sympy raises for expressions that it cannot compute, and `ValueError`."""


def read_expression(text: str) -> Any | None:
    """The expression that the LaTeX text means; None if it means none."""
    if _SEVERAL_NUMBERS.fullmatch(text):
        return None
    text = _BINOMIAL.sub(r"(\g<0>)", _OTHER_BRACKETS.sub(r"(\1\2)", text))
    # the library adds what it takes for a mixed number: 11 for `5(6)`, `(5)(6)` and `5{6}`, which is 56
    text = _JOINED.sub(r"\1\2", text)
    text = _PRODUCTS.sub(r"\g<0>\\cdot ", text)
    text = _DEGREES.sub(r"{(\\frac{\1\\pi}{180})}", text)
    found = parse(f"${text}$", extraction_config=[_READING], fallback_mode="no_fallback", parsing_timeout=_NEVER_S)
    if not found or isinstance(found[0], str) or found[0].has(sympy.zoo, sympy.nan):
        return None
    return found[0]


def equal_expressions(a: str, b: str) -> bool:
    """Whether two LaTeX texts mean equal expressions."""
    left, right = read_expression(a), read_expression(b)
    if left is None or right is None:
        return False
    if left == right:
        return True
    if _is_huge(left) or _is_huge(right):
        return False
    verdict = _by_value(left, right, a, b)
    if verdict is None and isinstance(left, sympy.Eq) and isinstance(right, sympy.Eq):
        verdict = _same_equation(left, right)
    if verdict is None and isinstance(left, Relational) and isinstance(right, Relational):
        verdict = _same_solutions(left, right)
    if verdict is not None:
        return verdict
    return bool(verify(right, left, timeout_seconds=_NEVER_S, allow_set_relation_comp=True))


def _is_huge(expression: Any) -> bool:
    """Whether a number in it has more digits than anyone writes: `9^{9^{9^9}}`, `(10^9)!`."""
    for node in sympy.postorder_traversal(expression):
        argument = (
            node.exp if isinstance(node, sympy.Pow) else node.args[0] if isinstance(node, sympy.factorial) else None
        )
        if argument is None or getattr(argument, "free_symbols", True):
            continue
        if _exceeds(argument):
            return True
    return False


def _exceeds(number: Any) -> bool:
    """Whether a number is over a million. Its own powers were looked at before, so it can be computed."""
    value = number.evalf(15)
    return not value.is_finite or bool(abs(value) > _LARGEST_EXPONENT)


def _by_value(left: Any, right: Any, a: str, b: str) -> bool | None:
    """Equality by numbers; None if these are no expressions of numbers."""
    if not all(isinstance(side, sympy.Expr) for side in (left, right)):
        return None
    left, right = (_exact(side) for side in (left, right))
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    real = not (left.has(sympy.I) or right.has(sympy.I))
    if not symbols:
        return _equal_numbers(left, right, a, b)
    chance, agreed = random.Random(7), 0
    for point in range(4 * _POINTS):
        # Both signs: `\sqrt{x^2}` equals x only for positive x.
        values = {symbol: _random_number(chance, negative=point % 2 == 1) for symbol in symbols}
        verdict = _equal_numbers(left.xreplace(values), right.xreplace(values), "", "", real=real)
        if verdict is False:
            return False
        agreed += verdict is True
        if agreed >= _POINTS:
            return True
    return None


def _exact(expression: Any) -> Any:
    """The expression with decimals as fractions, `i` as the imaginary unit, and undefined functions as symbols."""
    exact = {number: sympy.Rational(str(number)) for number in expression.atoms(sympy.Float)}
    unknown = {call: sympy.Symbol(str(call), real=True) for call in expression.atoms(AppliedUndef)}
    imaginary = {symbol: sympy.I for symbol in expression.free_symbols if symbol.name == "i"}
    return expression.xreplace({**exact, **unknown, **imaginary})


def _random_number(chance: random.Random, *, negative: bool) -> Any:
    value = sympy.Rational(chance.randrange(10**11, 3 * 10**11), 10**11)
    return -value if negative and chance.random() < 0.7 else value


def _equal_numbers(left: Any, right: Any, a: str, b: str, *, real: bool = False) -> bool | None:
    """Whether two numbers are equal; None if they have no value (or, with `real`, no real one)."""
    try:
        left, right = left.doit(), right.doit()
        if left.is_Rational and right.is_Rational:
            exact = bool(left == right)
            return exact or _rounded(left, right, a, b)
        sizes = [abs(side.evalf(_DIGITS, maxn=_WORKING_DIGITS)) for side in (left, right)]
        if not all(size.is_Float or size.is_Rational for size in sizes):
            return None if real or not {left, right} & {sympy.oo, -sympy.oo} else False
        if real and not (left.is_real and right.is_real):
            return None
        apart = abs((left - right).evalf(_DIGITS, maxn=_WORKING_DIGITS))
        if not (apart.is_Float or apart.is_Rational):
            return None
        largest = max(sizes)
        if largest <= _TINY and left.is_zero is not False and right.is_zero is not False:
            return None  # may be zeros that were only computed
        return bool(apart <= largest * _SAME) or _rounded(left, right, a, b)
    except (*_TROUBLE, ValueError):
        return None


def _rounded(left: Any, right: Any, a: str, b: str) -> bool:
    """Whether one text is a decimal of at least six places, and the other value rounded to it."""
    for text, other in ((a, right), (b, left)):
        if "." in text and other.is_real:
            value = sympy.Rational(other.evalf(60, maxn=_WORKING_DIGITS))
            if rounds_to(text, Fraction(int(value.p), int(value.q))):
                return True
    return False


def _same_equation(left: Any, right: Any) -> bool | None:
    """`2x + y = 5` is `4x + 2y = 10`: one side less the other is the same at all points, but for a factor."""
    first, second = (_exact(side.lhs - side.rhs) for side in (left, right))
    if first.free_symbols != second.free_symbols or not first.free_symbols:
        return None
    values = {
        symbol: sympy.Rational(7, 5) + number for number, symbol in enumerate(sorted(first.free_symbols, key=str))
    }
    try:
        below = second.xreplace(values).doit()
        factor = first.xreplace(values).doit() / below if not below.is_zero else sympy.S.Zero
    except (*_TROUBLE, ValueError):
        return None
    return True if factor.is_finite and factor != 0 and _by_value(first, factor * second, "", "") else None


def _same_solutions(left: Any, right: Any) -> bool | None:
    """Inequalities of one variable by what solves them: `2x > 4` is `x > 2`."""
    if left.free_symbols != right.free_symbols or len(left.free_symbols) != 1:
        return None
    try:
        return True if left.as_set() == right.as_set() else None
    except (*_TROUBLE, ValueError):
        return None
