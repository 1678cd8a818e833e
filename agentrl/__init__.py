"""agentrl: reinforcement learning for language-model agents, with exact tokens.

These names are the package's public face (see `docs/python_api.md`); each is loaded at first use.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from agentrl.openmp import wait_asleep

wait_asleep(os.environ)

__version__ = "0.1.0"

if TYPE_CHECKING:
    from agentrl.config import RunConfig, load_config
    from agentrl.errors import (
        AgentRLError,
        CheckpointError,
        ConfigError,
        DataError,
        DataProtoError,
        EngineError,
        EngineRequestError,
        EngineTimeout,
        EngineUnavailable,
        FailureBudgetError,
        HealthError,
        InfrastructureError,
        PictureError,
        PluginError,
        RewardError,
        ServiceDownError,
        TemplateError,
        TokenStreamError,
        ToolServiceError,
        UserInputError,
        WeightVersionError,
        WorkerError,
    )
    from agentrl.interfaces import AgentLoopBase, BaseInteraction, BaseTool
    from agentrl.plugins import tool
    from agentrl.trainer.run import TrainResult, train
    from agentrl.trajectory import Trajectory

__all__ = [
    "AgentLoopBase",
    "AgentRLError",
    "BaseInteraction",
    "BaseTool",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DataProtoError",
    "EngineError",
    "EngineRequestError",
    "EngineTimeout",
    "EngineUnavailable",
    "FailureBudgetError",
    "HealthError",
    "InfrastructureError",
    "PictureError",
    "PluginError",
    "RewardError",
    "RunConfig",
    "ServiceDownError",
    "TemplateError",
    "TokenStreamError",
    "ToolServiceError",
    "TrainResult",
    "Trajectory",
    "UserInputError",
    "WeightVersionError",
    "WorkerError",
    "load_config",
    "tool",
    "train",
]

_HOMES = {
    "AgentLoopBase": "interfaces",
    "BaseInteraction": "interfaces",
    "BaseTool": "interfaces",
    "RunConfig": "config",
    "TrainResult": "trainer.run",
    "Trajectory": "trajectory",
    "load_config": "config",
    "tool": "plugins",
    "train": "trainer.run",
}
"""Module of each name; of all others in `__all__` it is `errors`."""


def __getattr__(name: str) -> Any:
    """Load a name of the face (PEP 562)."""
    from importlib import import_module

    if name in __all__:
        value = getattr(import_module(f"agentrl.{_HOMES.get(name, 'errors')}"), name)
        globals()[name] = value
        return value
    if name.startswith("__"):  # what Python itself asks for, such as `__path__`
        raise AttributeError(name)
    from agentrl.errors import suggest

    raise AttributeError(f"module 'agentrl' has no '{name}'.{suggest(name, __all__)}", name=name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
