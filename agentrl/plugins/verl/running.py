"""The trajectory that a loop written for verl is playing, for what such loops import instead of being given."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field

from agentrl.errors import PluginError
from agentrl.interfaces import LoopContext


@dataclass(slots=True)
class Running:
    """A trajectory, and what its loop did with its tools."""

    context: LoopContext
    calls: int = 0
    errors: int = 0
    """Calls that the model got wrong."""
    seconds: float = 0.0
    rewards: list[float] = field(default_factory=list)


RUNNING: ContextVar[Running | None] = ContextVar("running_verl_loop", default=None)


def running(what: str) -> Running:
    """The trajectory whose loop makes this call.

    Args:
        what: named in the error.

    Raises:
        PluginError: no loop is running here.
    """
    trajectory = RUNNING.get()
    if trajectory is None:
        raise PluginError(f"{what} works only inside the `run` of an agent loop")
    return trajectory
