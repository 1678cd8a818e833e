"""How trajectories are scored: the sections of `reward_model`, `reward_manager` and `custom_reward_function`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from agentrl.config.base import InputPath, Section, UsedPath


class SandboxFusionConfig(Section):
    """The sandbox service that runs the tests of coding tasks."""

    url: str | None = None
    """Address of `agentrl serve sandbox`, or of any service with SandboxFusion's protocol, with or without `/run_code`;
    required by rows whose `data_source` is codecontests, apps, codeforces or taco."""
    max_concurrent: int = Field(default=64, ge=1)
    """Most requests at the same time, of all agent-loop workers together."""
    memory_limit_mb: int = Field(default=1024, ge=1)
    """Memory limit of each test."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Sent with every request, for example `{Authorization: "Bearer TOKEN"}`."""


class RewardModuleConfig(Section):
    """The user's own reward manager."""

    path: UsedPath | None = None
    """Python file or dotted module, for `source: importlib`."""
    name: str | None = None
    """Class or function in it; null: `reward_manager.name`."""


class RewardManagerConfig(Section):
    """Another way to name the reward manager, which counts more than `reward_model.reward_manager`."""

    source: Literal["register", "importlib"] = "register"
    """register: the manager is called `name`; importlib: it is `module.name` (else `name`) in `module.path`."""
    name: str | None = None
    """register: as `reward_model.reward_manager`; null: that one. importlib: the class, where `module.name` is null."""
    module: RewardModuleConfig = Field(default_factory=RewardModuleConfig)
    """The user's own reward manager."""


class CustomRewardFunction(Section):
    """The user's own score function."""

    path: InputPath | None = None
    """Python file, dotted module, or the registered name of a score function."""
    name: str = "compute_score"
    """Function in that file or module."""
    reward_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to every call."""


class OverlongBufferConfig(Section):
    """DAPO's penalty for long responses (arXiv 2503.14476, equation 13), of `reward_manager: dapo`.

    A response of `max_response_length - len` tokens loses nothing, one of `max_response_length` tokens
    `penalty_factor`, and between them the penalty grows evenly.
    """

    enable: bool = False
    """Add the penalty, a number of at most 0, to the score."""
    len: int = Field(default=0, ge=0)
    """Tokens before the largest length in which the penalty grows."""
    penalty_factor: float = Field(default=1.0, ge=0)
    """Penalty at the largest length."""
    log: bool = False
    """Metrics of the penalty (`reward/overlong_reward/*`) and of the share of responses that have one
    (`reward/overlong/mean`). Dumps have both in either case."""
