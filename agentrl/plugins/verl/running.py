"""The trajectory that a loop written for verl is playing, for what such loops import instead of being given."""

from __future__ import annotations

from contextvars import ContextVar

from agentrl.errors import PluginError
from agentrl.interfaces import LoopContext

RUNNING: ContextVar[LoopContext | None] = ContextVar("running_verl_loop", default=None)


def running(what: str) -> LoopContext:
    """The context of the trajectory whose loop makes this call.

    Args:
        what: named in the error.

    Raises:
        PluginError: no loop is running here.
    """
    context = RUNNING.get()
    if context is None:
        raise PluginError(f"{what} works only inside the `run` of an agent loop")
    return context
