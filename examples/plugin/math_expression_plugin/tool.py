"""The tool `evaluate`: sums, differences, products and quotients of decimal numbers, exactly."""

from __future__ import annotations

import ast
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from agentrl.interfaces import BaseTool
from agentrl.types import JsonDict, ToolResponse

_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: Fraction.__add__,
    ast.Sub: Fraction.__sub__,
    ast.Mult: Fraction.__mul__,
    ast.Div: Fraction.__truediv__,
}


class Evaluate(BaseTool):
    """Evaluates one expression; the model's mistakes are returned as text."""

    @classmethod
    def default_schema(cls) -> JsonDict:
        """One argument."""
        text = {"type": "string", "maxLength": 200, "description": "For example 3 * (4 + 5.5)."}
        parameters = {"type": "object", "properties": {"expression": text}, "required": ["expression"]}
        function = {"name": "evaluate", "description": "Evaluate an arithmetic expression.", "parameters": parameters}
        return {"type": "function", "function": function}

    async def create(self, **create_kwargs: Any) -> None:
        """Start counting the calls of this trajectory."""
        self.calls = 0

    async def execute(self, arguments: JsonDict, **execute_kwargs: Any) -> ToolResponse:
        """Evaluate `expression`."""
        self.calls += 1
        try:
            value = _value(ast.parse(arguments["expression"].strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError) as error:
            return ToolResponse(text=f"cannot be evaluated: {error}", is_error=True)
        return ToolResponse(text=str(value.numerator) if value.denominator == 1 else f"{float(value):.6g}", reward=0.0)

    async def calc_reward(self, **kwargs: Any) -> float:
        """A small penalty for every call after the first."""
        return -0.01 * max(0, self.calls - 1)


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    raise ValueError("only numbers, + - * / and brackets can be used")
