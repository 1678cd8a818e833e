"""A plain function as a tool: its signature and docstring are the schema."""

from __future__ import annotations

import contextvars
import enum
import functools
import inspect
import re
from collections.abc import Callable
from types import CodeType
from typing import Any

from agentrl.errors import PluginError
from agentrl.interfaces import BaseTool
from agentrl.plugins.signatures import arguments_of, hints_of, innermost, type_schema
from agentrl.plugins.threads import call_in_thread
from agentrl.plugins.tool_results import tool_result
from agentrl.types import JsonDict, ToolContext, ToolResponse

TOOL_NAME = "__agentrl_tool__"
"""Attribute of a function that is a tool under another name than its own."""
_ARGUMENT = re.compile(r"^(\w+)(?: *\([^)]*\))?: *(.*)$")


class FunctionTool(BaseTool):
    """Calls a function with the model's arguments; a function that is not async runs in a thread.

    Args:
        function: gets the arguments as keywords, and those of the row's `execute_kwargs` that it has parameters for.
        config: unused; a function has no configuration.
        tool_schema: the schema that the model sees.
    """

    def __init__(self, function: Callable[..., Any], config: JsonDict, tool_schema: JsonDict) -> None:
        super().__init__(config, tool_schema)
        self._function = function

    async def execute(self, arguments: JsonDict, **execute_kwargs: Any) -> ToolResponse:
        """Run the function; `tool_result` says what it may return."""
        try:
            converted = arguments_of(self._function).convert(arguments)
        except ValueError as error:
            return ToolResponse(text=f"{self.name} was not run: {error}", is_error=True)
        result = await call(self._function, **{**converted, **execute_kwargs})
        return tool_result(f"tool '{self.name}' returned", result)


async def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Await an async function; run any other in a thread, so that it cannot freeze the event loop.

    A function that hangs keeps its thread, but blocks neither other functions nor the end of the process.
    """
    code = getattr(function, "__code__", None)  # asked first: five times faster than `inspect` for what is usual
    if (isinstance(code, CodeType) and code.co_flags & inspect.CO_COROUTINE) or inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    result = await call_in_thread(functools.partial(contextvars.copy_context().run, function, *args, **kwargs))
    return await result if inspect.isawaitable(result) else result


def refuse_generator(function: Callable[..., Any]) -> None:
    """A tool or interaction returns.

    Raises:
        PluginError: the function yields.
    """
    inner = innermost(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise PluginError(f"{inner.__qualname__} yields: the whole result is wanted at once, so `return` it")


def function_schema(function: Callable[..., Any]) -> JsonDict:
    """OpenAI function schema from annotations and a Google-style docstring.

    Raises:
        PluginError: an annotation has no JSON type, or a model cannot fill the parameter list.
    """
    inner = innermost(function)
    name = (
        getattr(function, TOOL_NAME, None)
        or getattr(function, "__name__", None)
        or getattr(inner, "__name__", type(inner).__name__)
    )
    summary, described = _read_docstring(inspect.getdoc(inner) or "")
    try:
        hints = hints_of(function)
    except NameError as error:
        raise PluginError(f"tool function {name}: an annotation cannot be resolved: {error}") from error
    properties, required = {}, []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise PluginError(f"tool function {name}: parameter '{parameter.name}' cannot be given by name")
        if parameter.name == "context" and _is_context(hints.get("context", Any)):
            continue
        schema = type_schema(hints.get(parameter.name, inspect.Parameter.empty), f"{name}({parameter.name})")
        if parameter.name in described:
            schema = {**schema, "description": described[parameter.name]}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif isinstance(parameter.default, enum.Enum):
            schema = {**schema, "default": parameter.default.value}
        elif isinstance(parameter.default, str | int | float | bool | list | dict):
            schema = {**schema, "default": parameter.default}
        properties[parameter.name] = schema
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": summary, "parameters": parameters}}


def _is_context(hint: Any) -> bool:
    """Whether agentrl fills a parameter named `context`; one of another type is an argument for the model."""
    return hint in (Any, ToolContext, ToolContext | None)


def _read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """The text before the first section, and the entries under `Args:`."""
    summary, _, rest = doc.partition("\nArgs:")
    summary = re.split(r"\n(?:Returns|Raises|Yields|Examples?):", summary)[0]
    described: dict[str, str] = {}
    last = ""
    for line in rest.splitlines():
        if line and not line.startswith(" "):
            break  # the next section
        match = _ARGUMENT.match(line.strip())
        if match and len(line) - len(line.lstrip()) <= 4:
            last, described[match[1]] = match[1], match[2]
        elif last and line.strip():
            described[last] += " " + line.strip()
    return " ".join(summary.split()), described
