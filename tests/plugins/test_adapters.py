"""Plain functions and verl-style classes work as tools and interactions."""

from __future__ import annotations

import threading
from typing import Any, Literal

import pytest

from agentrl.errors import PluginError, ToolServiceError
from agentrl.plugins.adapt import as_interaction, as_tool, schema_of
from agentrl.types import ToolResponse

SCHEMA = {"type": "function", "function": {"name": "grade", "description": "", "parameters": {"type": "object"}}}


def convert(value: float, unit: Literal["ft", "m"], digits: int = 2, tags: list[str] | None = None) -> str:
    """Convert a length
    to metres.

    Args:
        value: the length,
            as a number.
        unit (str): its unit.

    Returns:
        Text.
    """
    return f"{value}{unit}{digits}{tags}{threading.current_thread() is threading.main_thread()}"


def test_schema_of_a_function() -> None:
    function = schema_of(convert, {})["function"]
    assert (function["name"], function["description"]) == ("convert", "Convert a length to metres.")
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "value": {"type": "number", "description": "the length, as a number."},
            "unit": {"type": "string", "enum": ["ft", "m"], "description": "its unit."},
            "digits": {"type": "integer", "default": 2},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        },
        "required": ["value", "unit"],
        "additionalProperties": False,
    }


async def test_a_sync_function_runs_in_a_thread() -> None:
    response = await as_tool(convert, {}, schema_of(convert, {})).execute({"value": 1.5, "unit": "m"})
    assert response.text == "1.5m2NoneFalse"


async def test_an_async_function_may_return_a_response() -> None:
    async def tool(x: int) -> ToolResponse:
        """Tool."""
        return ToolResponse(text=str(x), reward=0.5)

    assert (await as_tool(tool, {}, schema_of(tool, {})).execute({"x": 1})).reward == 0.5


def test_a_function_that_json_cannot_call() -> None:
    def tool(x: bytes) -> str:
        """Tool."""
        return str(x)

    with pytest.raises(PluginError, match=r"tool\(x\): JSON has no type for <class 'bytes'>"):
        schema_of(tool, {})


class VerlStyleTool:
    """As in verl: an instance id, a triple, one keyword `create_kwargs`."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        self.name = tool_schema.function.name if tool_schema else "none"
        self.dumped = tool_schema.model_dump(exclude_unset=True) if tool_schema else None
        self.instances: dict[str, dict[str, Any]] = {}

    def get_openai_tool_schema(self) -> dict[str, Any]:
        return SCHEMA

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        self.instances["one"] = {"truth": kwargs["create_kwargs"]["ground_truth"], "calls": 0}
        return "one", ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> tuple[Any, float, dict]:
        state = self.instances[instance_id]
        state["calls"] += 1
        right = parameters["answer"] == state["truth"]
        return ToolResponse(text=f"{self.name} {right} {kwargs}"), float(right), {"calls": state["calls"], "note": "x"}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return float(self.instances[instance_id]["calls"])

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        del self.instances[instance_id]


async def test_a_verl_tool() -> None:
    assert schema_of(VerlStyleTool, {}) == SCHEMA
    tool = as_tool(VerlStyleTool, {}, SCHEMA)
    await tool.create(ground_truth="42")
    response = await tool.execute({"answer": "42"}, beam=1)
    assert (response.text, response.reward, response.metrics) == ("grade True {'beam': 1}", 1.0, {"calls": 1.0})
    assert await tool.calc_reward() == 1.0
    await tool.release()
    assert tool._tool.instances == {}  # type: ignore[attr-defined]


async def test_a_verl_tool_with_named_parameters_and_sync_methods() -> None:
    class Named:
        def __init__(self, config: Any, tool_schema: Any) -> None:
            self.truth = ""

        def create(self, instance_id: str | None = None, ground_truth: str = "") -> str:
            self.truth = ground_truth
            return "id"

        def execute(self, instance_id: str, parameters: dict[str, Any]) -> tuple[str, float, None]:
            return f"{instance_id} {self.truth}", 0.0, None

    tool = as_tool(Named, {}, SCHEMA)
    await tool.create(ground_truth="7")
    assert (await tool.execute({})).text == "id 7"
    assert await tool.calc_reward() == 0.0
    await tool.release()
    with pytest.raises(PluginError, match="has no schema of its own"):
        schema_of(Named, {})


class KeepsTheGivenId:
    """Counts on the id that it is given, as verl's loop gives one."""

    def __init__(self, config: Any, tool_schema: Any = None) -> None:
        self.truths: dict[str, str] = {}

    async def create(self, instance_id: str, ground_truth: str) -> None:
        assert isinstance(instance_id, str)
        self.truths[instance_id] = ground_truth

    async def execute(self, instance_id: str, parameters: dict[str, Any]) -> tuple[Any, float, dict]:
        return parameters.get("answer", self.truths[instance_id]), 0.0, {}

    async def start_interaction(self, instance_id: str, **kwargs: Any) -> None:
        await self.create(instance_id, kwargs["ground_truth"])

    async def generate_response(self, instance_id: str, messages: list[Any]) -> tuple[bool, str, float, dict]:
        return True, self.truths[instance_id], 1.0, {}


async def test_verl_plugins_that_keep_the_id_they_are_given() -> None:
    tool = as_tool(KeepsTheGivenId, {}, SCHEMA)
    await tool.create(ground_truth="7")
    assert (await tool.execute({})).text == "7"
    interaction = as_interaction(KeepsTheGivenId, {})
    await interaction.start_interaction(ground_truth="7", query="q")
    assert (await interaction.generate_response([])).content == "7"


async def test_a_verl_tool_with_both_ways_of_create_kwargs() -> None:
    class Both(KeepsTheGivenId):
        async def create(self, instance_id: str | None = None, ground_truth: str = "", **kwargs: Any) -> str:
            self.truths["one"] = f"{ground_truth} {kwargs}"
            return "one"

    tool = as_tool(Both, {}, SCHEMA)
    await tool.create(ground_truth="7")
    assert (await tool.execute({})).text == "7 {'create_kwargs': {'ground_truth': '7'}}"


@pytest.mark.parametrize("answer", [{"text": "lost"}, 5, None])
async def test_a_verl_answer_of_another_type_is_no_empty_text(answer: Any) -> None:
    tool = as_tool(KeepsTheGivenId, {}, SCHEMA)
    await tool.create(ground_truth="7")
    with pytest.raises(ToolServiceError, match="wanted text or a ToolResponse"):
        await tool.execute({"answer": answer})


async def test_a_verl_tool_without_create() -> None:
    class Stateless:
        def __init__(self, config: Any, tool_schema: Any) -> None: ...

        async def execute(self, instance_id: str, parameters: dict[str, Any]) -> tuple[str, float, dict]:
            return f"{len(instance_id) > 0}", 0.0, {}

    tool = as_tool(Stateless, {}, SCHEMA)
    await tool.create()
    assert (await tool.execute({})).text == "True"


class VerlStyleInteraction:
    def __init__(self, config: dict[str, Any]) -> None:
        self.finalized: list[str] = []

    async def start_interaction(self, instance_id: str | None = None, **kwargs: Any) -> str:
        return f"id of {kwargs['query']}"

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        return len(messages) > 1, f"{instance_id} {kwargs}", 0.5, {"n": 1}

    async def calculate_score(self) -> float:
        return 0.25

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        self.finalized.append(instance_id)


async def test_a_verl_interaction() -> None:
    interaction = as_interaction(VerlStyleInteraction, {})
    await interaction.start_interaction(query="q")
    response = await interaction.generate_response([{"role": "assistant", "content": "x"}])
    assert (response.should_terminate, response.content, response.score) == (False, "id of q {'query': 'q'}", 0.5)
    assert await interaction.calculate_score() == 0.25
    await interaction.finalize_interaction()
    assert interaction._interaction.finalized == ["id of q"]  # type: ignore[attr-defined]


def test_what_is_neither() -> None:
    with pytest.raises(PluginError, match="int is not a tool"):
        as_tool(int, {}, SCHEMA)
    with pytest.raises(PluginError, match="is not an interaction"):
        as_interaction(int, {})
