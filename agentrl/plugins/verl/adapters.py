"""Adapters for tools and interactions written for verl: one instance serves one trajectory, under one instance id."""

from __future__ import annotations

import inspect
import uuid
from typing import Any

from agentrl.errors import PluginError, ToolServiceError, repr_of
from agentrl.interfaces import BaseInteraction, BaseTool
from agentrl.plugins.functions import call
from agentrl.plugins.tool_results import tool_result
from agentrl.reported import number_of
from agentrl.types import InteractionResponse, JsonDict, Message, ToolResponse

_OPTIONAL: JsonDict = {"enum": None, "strict": False}
"""Fields of verl's schemas that need not be given."""


class SchemaView(dict[str, Any]):
    """A schema that also reads as attributes on every level, as verl's pydantic models do."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__({name: _view(value) for name, value in dict(*args, **fields).items()})

    def __getattr__(self, name: str) -> Any:
        """Return `self[name]`, or the default of verl's models if the schema has no such key."""
        if name in self:
            return self[name]
        if name in _OPTIONAL:
            return _OPTIONAL[name]
        raise AttributeError(name)

    def model_dump(self, **_: Any) -> JsonDict:
        """The plain mapping."""
        return dict(self)


def _view(value: Any) -> Any:
    if isinstance(value, dict):
        return value if isinstance(value, SchemaView) else SchemaView(value)
    return [_view(item) for item in value] if isinstance(value, list) else value


class VerlTool(BaseTool):
    """A verl tool of one trajectory.

    Args:
        cls: has `create(instance_id, **kw)`, `execute(instance_id, parameters, **kw)`, `calc_reward`, `release`.
        config: its configuration.
        tool_schema: its schema.
    """

    def __init__(self, cls: type, config: JsonDict, tool_schema: JsonDict) -> None:
        super().__init__(config, tool_schema)
        self._tool = cls(config, SchemaView(tool_schema))
        self._id: Any = str(uuid.uuid4())
        self._made = False

    async def create(self, **create_kwargs: Any) -> None:
        """Create the instance; verl passes the row's mapping as one keyword. It may keep the id or return its own."""
        if hasattr(self._tool, "create"):
            made = await call(self._tool.create, **_create_keywords(self._tool.create, self._id, create_kwargs))
            own = made[0] if isinstance(made, tuple) else made
            self._id = self._id if own is None else own
        self._made = True

    async def execute(self, arguments: JsonDict, **execute_kwargs: Any) -> ToolResponse:
        """Run one call; verl's triple becomes one response."""
        result = await call(self._tool.execute, self._id, arguments, **execute_kwargs)
        return tool_result(f"tool '{self.name}': execute returned", result)

    async def calc_reward(self, **kwargs: Any) -> float:
        """The instance's reward."""
        if not hasattr(self._tool, "calc_reward"):
            return 0.0
        return _number(
            f"tool '{self.name}': calc_reward returned", await call(self._tool.calc_reward, self._id, **kwargs)
        )

    async def release(self, **kwargs: Any) -> None:
        """Release the instance, if there is one: `create` may never have succeeded."""
        if self._made and hasattr(self._tool, "release"):
            await call(self._tool.release, self._id, **kwargs)


class VerlInteraction(BaseInteraction):
    """A verl interaction of one trajectory.

    Args:
        cls: has `start_interaction(instance_id, **kw)` and `generate_response(instance_id, messages, **kw)`.
        config: its configuration.
    """

    def __init__(self, cls: type, config: JsonDict) -> None:
        super().__init__(config)
        self._interaction: Any = cls(config)
        self._id: Any = str(uuid.uuid4())
        self._started = False
        self._kwargs: JsonDict = {}

    async def start_interaction(self, **interaction_kwargs: Any) -> None:
        """Start the instance; verl passes the row's mapping again with every turn."""
        answer = self._interaction.generate_response
        self._kwargs = {key: value for key, value in interaction_kwargs.items() if _accepts(answer, key)}
        if hasattr(self._interaction, "start_interaction"):
            own = await call(self._interaction.start_interaction, self._id, **interaction_kwargs)
            self._id = self._id if own is None else own
        self._started = True

    async def generate_response(self, messages: list[Message]) -> InteractionResponse:
        """Ask for the next user message."""
        result = await call(self._interaction.generate_response, self._id, messages, **self._kwargs)
        if not isinstance(result, tuple) or len(result) != 4:
            raise TypeError(f"generate_response returned {result!r}, wanted (terminate, text, score, extra)")
        terminate, content, score, extra = result
        return InteractionResponse(bool(terminate), content or "", score, dict(extra or {}))

    async def calculate_score(self) -> float:
        """The conversation's score."""
        return _number("calculate_score returned", await self._ask("calculate_score"))

    async def finalize_interaction(self) -> None:
        """Finalize the instance, if there is one."""
        if self._started:
            await self._ask("finalize_interaction")

    async def _ask(self, method: str) -> Any:
        """Call an optional method; verl's base class leaves the instance id out of some signatures."""
        function = getattr(self._interaction, method, None)
        if function is None:
            return None
        arguments = (self._id,) if has_parameter(type(self._interaction), method, "instance_id") else ()
        return await call(function, *arguments)


def verl_schema(cls: type, config: JsonDict) -> JsonDict:
    """The schema of a verl tool that provides its own.

    Raises:
        PluginError: it has no schema, or it is not a verl tool.
    """
    if not has_parameter(cls, "execute", "instance_id"):
        raise PluginError(f"{cls.__qualname__} is not a tool: derive it from agentrl.interfaces.BaseTool")
    getter = getattr(cls, "get_openai_tool_schema", None)
    try:
        schema = getter(cls(config, None)) if getter else None
    except (TypeError, AttributeError) as error:
        raise PluginError(f"{cls.__qualname__} has no schema of its own ({error}): give `tool_schema`") from error
    if schema is None:
        raise PluginError(f"{cls.__qualname__} has no schema of its own: give `tool_schema` in the tool YAML")
    return dict(schema.model_dump(exclude_none=True) if hasattr(schema, "model_dump") else schema)


def _number(what: str, value: Any) -> float:
    """A reward or score; None counts as 0."""
    number = 0.0 if value is None else number_of(value)
    if number is None:
        raise ToolServiceError(f"{what} {repr_of(value)}, wanted a number")
    return number


def has_parameter(cls: type, method: str, parameter: str) -> bool:
    """Whether `cls.method` names `parameter` in its signature."""
    function = getattr(cls, method, None)
    return callable(function) and parameter in inspect.signature(function).parameters


def _accepts(function: Any, keyword: str) -> bool:
    parameters = inspect.signature(function).parameters
    return keyword in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _create_keywords(create: Any, instance_id: str, create_kwargs: JsonDict) -> JsonDict:
    """The row's mapping as one keyword, and the keys of it that `create` names; all keys if it has no such keyword."""
    named = inspect.signature(create).parameters
    keywords = {"instance_id": instance_id} if "instance_id" in named else {}
    if not _accepts(create, "create_kwargs"):
        return {**keywords, **create_kwargs}
    known = {key: value for key, value in create_kwargs.items() if key in named}
    return {**keywords, "create_kwargs": create_kwargs, **known}
