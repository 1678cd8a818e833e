"""A plain function as a tool: its signature and docstring are the schema."""

from __future__ import annotations

import asyncio
import contextvars
import enum
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Union, get_args, get_origin

from agentrl.errors import PluginError
from agentrl.interfaces import BaseTool
from agentrl.types import JsonDict, ToolContext, ToolResponse

_SCALARS: dict[Any, JsonDict] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
    inspect.Parameter.empty: {},
}
_ARGUMENT = re.compile(r"^(\w+)(?: *\([^)]*\))?: *(.*)$")


class FunctionTool(BaseTool):
    """Calls a function with the model's arguments; a function that is not async runs in a thread.

    Args:
        function: gets the arguments as keywords, and the row's `execute_kwargs` it has parameters for.
        config: kept for symmetry; a function has no configuration.
        tool_schema: what the model sees.
    """

    def __init__(self, function: Callable[..., Any], config: JsonDict, tool_schema: JsonDict) -> None:
        super().__init__(config, tool_schema)
        self._function = function

    async def execute(self, arguments: JsonDict, **execute_kwargs: Any) -> ToolResponse:
        """Run the function; what it returns becomes the response's text unless it is a `ToolResponse`."""
        result = await call(self._function, **{**arguments, **execute_kwargs})
        return result if isinstance(result, ToolResponse) else ToolResponse(text=str(result))


async def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Await an async function; run any other in a thread, so that it cannot freeze the event loop."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    run = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    result = await asyncio.get_running_loop().run_in_executor(_threads(), run)
    return await result if inspect.isawaitable(result) else result


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Threads for blocking plug-ins; asyncio's own pool is too small for hundreds of trajectories that wait."""
    return ThreadPoolExecutor(max_workers=128, thread_name_prefix="agentrl-plugin")


def function_schema(function: Callable[..., Any]) -> JsonDict:
    """OpenAI function schema from annotations and a Google-style docstring.

    Raises:
        PluginError: an annotation that JSON cannot carry, or a parameter list that a model cannot fill.
    """
    name = getattr(function, "__name__", type(function).__name__)
    summary, described = _read_docstring(inspect.getdoc(function) or "")
    try:
        hints = typing.get_type_hints(function)
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
        schema = _type_schema(hints.get(parameter.name, inspect.Parameter.empty), f"{name}({parameter.name})")
        if parameter.name in described:
            schema = {**schema, "description": described[parameter.name]}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif isinstance(parameter.default, str | int | float | bool | list | dict):
            schema = {**schema, "default": parameter.default}
        properties[parameter.name] = schema
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": summary, "parameters": parameters}}


def _is_context(hint: Any) -> bool:
    """Whether a parameter named `context` is agentrl's to fill; one of another type is the model's."""
    return hint in (Any, ToolContext, ToolContext | None)


def _type_schema(hint: Any, where: str) -> JsonDict:
    """JSON Schema of one annotation."""
    if hint in _SCALARS:
        return dict(_SCALARS[hint])
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_type_schema(option, where) for option in arguments]}
    if hint in (list, Sequence) or origin in (list, Sequence):
        return {"type": "array", "items": _type_schema(arguments[0], where)} if arguments else {"type": "array"}
    if hint in (dict, Mapping) or origin in (dict, Mapping):
        values = _type_schema(arguments[1], where) if arguments else {}
        return {"type": "object", "additionalProperties": values} if values else {"type": "object"}
    raise PluginError(f"tool function {where}: JSON has no type for {hint!r}; give a `tool_schema` in the tool YAML")


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
