"""What a function's annotations make of the model's JSON, and how functions that block are run."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, Field

from agentrl.chat.renderer import ChatRenderer
from agentrl.errors import PluginError, ToolServiceError
from agentrl.interfaces import BaseTool
from agentrl.plugins import ToolSpec
from agentrl.plugins.adapt import as_tool, schema_of
from agentrl.rollout.tools.toolset import ToolSet
from agentrl.testing.models import byte_tokenizer
from agentrl.types import LoopLimits, ToolCall


class Unit(Enum):
    FEET = "ft"
    INCH = "in"


@dataclass
class Point:
    """A place."""

    x: float
    y: float = 0.0


@dataclass
class Line:
    points: list[Point] = field(default_factory=list)
    unit: Unit = Unit.FEET


class Order(BaseModel):
    item: str = Field(min_length=2)
    count: int = 1


class Filter(TypedDict):
    name: str


@dataclass
class Tree:
    children: list[Tree]


def parameters(function: Any) -> dict[str, Any]:
    return schema_of(function, {})["function"]["parameters"]["properties"]


def test_schemas_of_structures() -> None:
    def draw(
        line: Line,
        order: Order | None = None,
        unit: Unit = Unit.INCH,
        level: Literal[1, 2] = 1,
        where: Filter | None = None,
        size: Annotated[int, Field(ge=1, description="Pixels.")] = 3,
        span: tuple[int, int] = (0, 1),
    ) -> str:
        """Draw.

        Args:
            line: What to draw,
                point by point.
        """
        return ""

    point = {
        "description": "A place.",
        "type": "object",
        "properties": {"x": {"type": "number"}, "y": {"type": "number", "default": 0.0}},
        "required": ["x"],
    }
    found = parameters(draw)
    assert found["line"]["description"] == "What to draw, point by point."
    assert found["line"]["properties"]["points"] == {"type": "array", "items": point}
    assert found["line"]["properties"]["unit"] == {"type": "string", "enum": ["ft", "in"], "default": "ft"}
    assert found["order"]["anyOf"][0]["properties"]["item"] == {"type": "string", "minLength": 2}
    assert found["order"]["anyOf"][1] == {"type": "null"}
    assert found["unit"] == {"type": "string", "enum": ["ft", "in"], "default": "in"}
    assert found["level"] == {"type": "integer", "enum": [1, 2], "default": 1}
    assert found["where"]["anyOf"][0]["properties"] == {"name": {"type": "string"}}
    assert found["size"] == {"type": "integer", "minimum": 1, "description": "Pixels.", "default": 3}
    assert found["span"]["maxItems"] == 2
    assert "$ref" not in str(found)
    assert schema_of(draw, {})["function"]["parameters"]["required"] == ["line"]


async def test_functions_get_objects() -> None:
    def draw(line: Line, orders: Sequence[Order], unit: Unit = Unit.FEET, plain: Any = None) -> str:
        """Draw."""
        assert isinstance(line.points[0], Point)
        return f"{line.points[0].x} {orders[0].count} {unit.name} {plain}"

    tool = as_tool(draw, {}, schema_of(draw, {}))
    given = {"line": {"points": [{"x": 1}]}, "orders": [{"item": "ab"}], "unit": "in", "plain": {"x": 1}}
    assert (await tool.execute(given)).text == "1.0 1 INCH {'x': 1}"
    bad = await tool.execute({**given, "orders": [{"item": "a"}]})
    assert bad.is_error
    assert bad.text == "draw was not run: arguments.orders.0.item: String should have at least 2 characters"


def test_types_that_json_cannot_carry() -> None:
    def recursive(tree: Tree) -> str:
        """Walk."""
        return ""

    def odd(values: tuple[object, ...]) -> str:
        """Odd."""
        return ""

    with pytest.raises(PluginError, match=r"recursive\(tree\): the type contains itself"):
        schema_of(recursive, {})
    with pytest.raises(PluginError, match=r"unknown\(x\): JSON has no type"):
        schema_of(_unknown_class(), {})


async def _streams(x: int) -> Any:
    """Counts."""
    yield x


def _counts(x: int) -> Any:
    """Counts."""
    yield x


class _StreamingTool(BaseTool):
    async def execute(self, arguments: dict[str, Any], **kwargs: Any) -> Any:
        yield "a part"


@pytest.mark.parametrize("tool", [_streams, _counts, functools.partial(_counts, 1), _StreamingTool])
def test_a_tool_that_yields_is_refused(tool: Any) -> None:
    with pytest.raises(PluginError, match=r"(_streams|_counts|_StreamingTool\.execute) yields: .*so `return` it"):
        as_tool(tool, {}, {})


def _unknown_class() -> Any:
    class Opaque:
        """No structure."""

    def unknown(x) -> str:  # type: ignore[no-untyped-def] # its annotation is set below: Opaque is local
        """Unknown."""
        return ""

    unknown.__annotations__ = {"x": Opaque}
    return unknown


async def test_partials_and_objects_that_can_be_called() -> None:
    def scale(value: float, factor: float) -> float:
        """Scale."""
        return value * factor

    class Adder:
        """Adds."""

        __name__ = "adder"

        async def __call__(self, a: int, b: Unit = Unit.FEET) -> str:
            return f"{a} {b.name}"

    doubled = functools.partial(scale, factor=2.0)
    functools.update_wrapper(doubled, scale)
    assert (await as_tool(doubled, {}, schema_of(doubled, {})).execute({"value": 3})).text == "6.0"
    adder = Adder()
    assert (await as_tool(adder, {}, schema_of(adder, {})).execute({"a": 1, "b": "in"})).text == "1 INCH"


def test_a_partial_is_named_after_its_function() -> None:
    def scale(value: float, factor: float) -> float:
        """Scale a value."""
        return value * factor

    shown = schema_of(functools.partial(scale, factor=2.0), {})["function"]
    assert (shown["name"], shown["description"]) == ("scale", "Scale a value.")


async def test_whole_numbers_reach_the_function_as_integers() -> None:
    """Models write 3.0 too, which JSON Schema accepts as an integer; `range(3.0)` would be the tool's failure."""

    def count(to: int, steps: list[int], most: int | None = None) -> str:
        """Count."""
        return f"{[*range(0, to, *steps)]} {most!r}"

    tool = as_tool(count, {}, schema_of(count, {}))
    assert (await tool.execute({"to": 3.0, "steps": [2.0], "most": 5.0})).text == "[0, 2] 5"
    assert (await tool.execute({"to": 3, "steps": [1], "most": None})).text == "[0, 1, 2] None"


async def test_functions_that_hang_starve_nobody() -> None:
    def work(hang: bool) -> str:
        """Work."""
        time.sleep(8.0 if hang else 0.0)
        return "done"

    spec = ToolSpec("work", work, {}, schema_of(work, {}), timeout_s=4.0)  # a busy machine pauses for seconds
    tools = ToolSet(
        [spec], limits=LoopLimits(prompt_length=9, response_length=9), renderer=ChatRenderer(byte_tokenizer())
    )
    await tools.start()
    hanging = [asyncio.create_task(tools.execute([ToolCall("work", {"hang": True})])) for _ in range(200)]
    await asyncio.sleep(0)
    (response,) = await tools.execute([ToolCall("work", {"hang": False})])
    assert response.text == "done"
    results = await asyncio.gather(*hanging, return_exceptions=True)
    assert {type(result) for result in results} == {ToolServiceError}
    await tools.release()


def test_a_function_that_hangs_does_not_keep_the_process() -> None:
    code = (
        "import asyncio, time\n"
        "from agentrl.plugins.functions import call\n"
        "async def main():\n"
        "    await asyncio.wait_for(call(time.sleep, 60), 0.1)\n"
        "try:\n"
        "    asyncio.run(main())\n"
        "except TimeoutError:\n"
        "    print('over')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout == "over\n", done.stderr
