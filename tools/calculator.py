"""A calculator on exact fractions that evaluates a syntax tree, never code."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from agentrl.interfaces import TOOL_CONFIG, BaseTool, check_config
from agentrl.types import JsonDict, ToolResponse

_MAX_CHARS = 500
_MAX_BITS = 4096
"""Larger numerators and denominators are refused before they are computed, so no expression takes long."""
_ALLOWED = re.compile(r"[0-9.eE+\-*/%()\s]*")
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
_REWRITES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),  # 1,234
    (re.compile(r"[$€£]"), ""),
    (re.compile(r"[−–]"), "-"),
    (re.compile(r"÷"), "/"),
    (re.compile(r"(?<=[\d).])\s*[x×·]\s*(?=[\d(.])"), "*"),
    (re.compile(r"\^"), "**"),
    (re.compile(r"(\d[\d.]*)\s*%(?!\s*[\d(.])"), r"(\1/100)"),  # 15% but not 7 % 3
    (re.compile(r"\)\s*%(?!\s*[\d(.])"), ")/100"),
    (re.compile(r"(?<![\d.])0+(?=\d)"), ""),  # Python refuses 007
    (re.compile(r"\s*=\s*$"), ""),
)
_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class Calculator(BaseTool):
    """Evaluates `expression`: numbers, `+ - * / // % **`, parentheses, thousands commas, `15%`."""

    def __init__(self, config: JsonDict, tool_schema: JsonDict | None = None) -> None:
        super().__init__(config, tool_schema)
        check_config(config, TOOL_CONFIG)

    @classmethod
    def default_schema(cls) -> JsonDict:
        """One text argument."""
        expression = {"type": "string", "description": "For example (3 + 4) * 2.5"}
        return {
            "type": "function",
            "function": {
                "name": "calculator",
                "description": "Evaluate an arithmetic expression.",
                "parameters": {
                    "type": "object",
                    "properties": {"expression": expression},
                    "required": ["expression"],
                    "additionalProperties": False,
                },
            },
        }

    async def execute(self, arguments: JsonDict, **execute_kwargs: Any) -> ToolResponse:
        """Return the value, or what is wrong with the expression."""
        try:
            return ToolResponse(text=format_number(evaluate(arguments["expression"])))
        except (ValueError, ArithmeticError) as error:
            return ToolResponse(text=f"Error: {error}", is_error=True)


def evaluate(expression: str) -> Fraction:
    """The exact value of an expression; powers with a fractional exponent are floats.

    Raises:
        ValueError: not an arithmetic expression, or too large; the message is for the model.
        ZeroDivisionError: a division by zero.
    """
    if len(expression) > _MAX_CHARS:
        raise ValueError(f"the expression has {len(expression)} characters, at most {_MAX_CHARS} are allowed")
    text = expression.strip()
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    wanted = "use numbers, + - * / // % ** and parentheses"
    if not text or not _ALLOWED.fullmatch(text):
        raise ValueError(f"cannot read '{expression}': {wanted}")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, text.strip())
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"cannot read '{expression}': {wanted}") from None
    except ZeroDivisionError:
        raise ZeroDivisionError("division by zero") from None


def format_number(value: Fraction) -> str:
    """An integer as it is, any other number with up to 15 significant digits and no exponent."""
    if value.denominator == 1:
        return str(value.numerator)
    decimal = Context(prec=15).divide(Decimal(value.numerator), Decimal(value.denominator))
    text = f"{decimal:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _value(node: ast.expr, source: str) -> Fraction:
    if isinstance(node, ast.Constant):
        written = ast.get_source_segment(source, node) or ""
        if not _NUMBER.fullmatch(written):
            raise ValueError(f"'{written}' is not a number that the calculator reads")
        return Fraction(written)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand, source)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, source), _value(node.right, source)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in _BINARY:
            return _bounded(Fraction(_BINARY[type(node.op)](left, right)))
    raise ValueError("use only numbers, + - * / // % ** and parentheses, with an operator between any two numbers")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    # The size of the result is known before it is computed: 3**5000 needs at most 2 bits * 5000 = 10,000 bits and is
    # refused, as is (2**4000)**4000, which would otherwise take the worker's memory.
    if exponent.denominator == 1:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if base not in (0, 1, -1) and bits * abs(exponent.numerator) > 2 * _MAX_BITS:
            raise ValueError("the result is too large")
        return _bounded(Fraction(base**exponent.numerator))
    try:
        result = float(base) ** float(exponent)
    except OverflowError:
        raise ValueError("the result is too large") from None
    if isinstance(result, complex) or not math.isfinite(result):
        raise ValueError("a negative number has no real power with this exponent")
    return Fraction(result)


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise ValueError("the result is too large")
    return value
