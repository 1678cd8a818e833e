"""`@tool`: a function, plain or async, as a tool with a name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar, overload

from agentrl.errors import PluginError
from agentrl.plugins.functions import TOOL_NAME, function_schema, refuse_generator
from agentrl.plugins.registry import register

_NAME = re.compile(r"[\w-]+")
"""Names that every chat template and tool-call format can carry."""

F = TypeVar("F", bound=Callable[..., Any])


@overload
def tool(function: F) -> F: ...
@overload
def tool(*, name: str | None = None) -> Callable[[F], F]: ...
def tool(function: F | None = None, *, name: str | None = None) -> F | Callable[[F], F]:
    """Register a function as a tool; its signature and docstring are the schema that the model sees.

    ::

        @tool
        def multiply(a: int, b: int) -> int:
            "Multiply two numbers."
            return a * b

    Args:
        function: the tool; a plain function runs in its own thread.
        name: of the tool, in YAML and for the model; None: the function's own.

    Returns:
        The function, unchanged: it can still be called.

    Raises:
        PluginError: a model could not call it with JSON (see `function_schema`), or the name is taken or not one word.
    """

    def decorate(plugin: F) -> F:
        if isinstance(plugin, type) or not callable(plugin):
            raise PluginError(f"@tool: got {plugin!r}, wanted a function; register a class with @register(name)")
        known_as = getattr(plugin, "__name__", "") if name is None else name
        if not isinstance(known_as, str) or not _NAME.fullmatch(known_as):
            raise PluginError(f"@tool: got the name {known_as!r}, wanted letters, digits, _ and -: @tool(name='...')")
        refuse_generator(plugin)
        function_schema(plugin)  # a signature that cannot be a schema is an error here, not at the start of a run
        try:
            setattr(plugin, TOOL_NAME, known_as)
        except AttributeError:
            wanted = "wanted a function: let one call the method or built-in"
            raise PluginError(f"@tool: got {plugin!r}, which can carry no name; {wanted}") from None
        return register(known_as, kind="tools")(plugin)

    return decorate if function is None else decorate(function)
