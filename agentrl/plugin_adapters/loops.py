"""Options of an agent loop, checked against its constructor when the run starts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from agentrl.errors import PluginError, suggest
from agentrl.interfaces import AgentLoopBase


def check_options(cls: type[AgentLoopBase], options: Mapping[str, Any], where: str) -> None:
    """Refuse options that the loop does not take, and the lack of one that it needs.

    Args:
        cls: the loop; its constructor takes the context and then options by name.
        options: those of the YAML.
        where: named in the error.

    Raises:
        PluginError: with the nearest option.
    """
    parameters = list(inspect.signature(cls.__init__).parameters.values())[2:]
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters) and cls.__init__ is not AgentLoopBase.__init__
    for option in options:
        if option not in named and not takes_any:
            raise PluginError(f"{where}: {cls.__name__} takes no option '{option}'.{suggest(option, named)}")
    missing = [p.name for p in named.values() if p.default is p.empty and p.name not in options]
    if missing:
        raise PluginError(f"{where}: {cls.__name__} needs the option {', '.join(f'`{name}`' for name in missing)}")
