"""The run's reward manager and score function, from `reward_model` and `custom_reward_function`."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, cast

from agentrl.chat.loading import load_renderer
from agentrl.config.reward_checks import overlong_of
from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError, PluginError, repr_of, suggest
from agentrl.interfaces import RewardManager
from agentrl.plugins import registry
from agentrl.plugins.users_code import described
from agentrl.plugins.verl.run_view import ConfigView, tokenizer_of
from agentrl.rewards.batch import BatchRewardManager
from agentrl.rewards.dapo import DapoRewardManager
from agentrl.rewards.dispatcher import ScoreFunction, default_compute_score
from agentrl.rewards.naive import NaiveRewardManager
from agentrl.rewards.prime import PrimeRewardManager
from agentrl.rewards.score_call import MANY, ONE
from agentrl.rewards.scores.code import CodeScore
from agentrl.rewards.verl_manager import is_verl_manager, load_verl_manager

MANAGERS: dict[str, Callable[..., RewardManager]] = {
    "naive": NaiveRewardManager,
    "batch": BatchRewardManager,
    "prime": PrimeRewardManager,
    "dapo": DapoRewardManager,
}
"""Reward managers by name."""


def load_code_score(config: RunConfig, workers: int = 1) -> CodeScore | None:
    """The scorer of coding tasks; None if the run names no sandbox service.

    Args:
        config: the run.
        workers: agent-loop workers, which share `max_concurrent`.

    Raises:
        ConfigError: the address is not valid, or `max_concurrent` is less than one request per worker.
    """
    section = config.reward_model.sandbox_fusion
    if section.url is None:
        return None
    if section.max_concurrent < workers:
        raise ConfigError(
            f"reward_model.sandbox_fusion.max_concurrent: got {section.max_concurrent}, wanted at least {workers}: one "
            "request for each agent-loop worker"
        )
    try:
        return CodeScore(
            section.url,
            max_concurrent=section.max_concurrent // workers,
            memory_limit_mb=section.memory_limit_mb,
            headers=section.headers,
        )
    except ValueError as error:
        raise ConfigError(f"reward_model.sandbox_fusion.url {error}") from error


def load_score_function(config: RunConfig, workers: int = 1) -> ScoreFunction:
    """The user's score function, else `default_compute_score`, in either case with `reward_kwargs` bound.

    Args:
        config: the run.
        workers: see `load_code_score`.

    Raises:
        PluginError: the file or the function cannot be found or loaded.
        ConfigError: see `load_code_score`.
    """
    section = config.custom_reward_function
    function: ScoreFunction = default_compute_score
    if section.path is None and (code_score := load_code_score(config, workers)) is not None:
        function = functools.partial(default_compute_score, code_score=code_score)
    if section.path is not None:
        function = cast(ScoreFunction, registry.resolve("rewards", _reference(config) or section.path))
    if not callable(function) or isinstance(function, type):
        raise PluginError(f"custom_reward_function: {section.name} in {section.path} is not a function")
    check_kwargs(function, section.reward_kwargs)
    return functools.partial(function, **section.reward_kwargs) if section.reward_kwargs else function


def _reference(config: RunConfig) -> str | None:
    """The place of the user's score function, `file.py:name` or `module.name`; None: it is registered by its name."""
    section = config.custom_reward_function
    path = str(section.path).removeprefix("pkg://")  # how verl marks a module
    if section.path in registry.known("rewards"):
        return None
    return f"{path}{':' if path.endswith('.py') else '.'}{section.name}"


def check_kwargs(function: ScoreFunction, kwargs: Mapping[str, Any]) -> None:
    """Refuse `reward_kwargs` that the function does not take.

    Raises:
        PluginError: names the nearest parameter.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # built in: its parameters are not known
        return
    given = [name for name in kwargs if name in (*ONE, *MANY)]
    if given:
        where = f"custom_reward_function.reward_kwargs.{given[0]}"
        raise PluginError(f"{where}: every call passes the row's own {given[0]}, so this value would never count")
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return  # `default_compute_score` passes them on to the function of the row's data source
    own = [name for name in parameters if name not in (*ONE, *MANY)]
    for name in kwargs:
        if name not in parameters and name not in inspect.signature(default_compute_score).parameters:
            where = f"custom_reward_function.reward_kwargs.{name}"
            raise PluginError(f"{where}: {described(function)} has no such parameter.{suggest(name, own)}")


def scores_by_source(config: RunConfig) -> bool:
    """Whether rows are scored by the built-in function of their `data_source`, and by nothing of the user's."""
    return config.custom_reward_function.path is None and config.reward_manager_name in MANAGERS


def load_reward_manager(config: RunConfig, workers: int = 1, renderer: Any = None) -> RewardManager:
    """Build the run's reward manager around its score function.

    Args:
        config: the run.
        workers: see `load_code_score`.
        renderer: of the model, for managers written for verl; None: it is loaded where one is needed.

    Raises:
        PluginError: unknown manager, or the score function cannot be loaded.
    """
    section, name = config.reward_model, config.reward_manager_name
    timeout_s = section.timeout_s
    if name == "batch" and config.custom_reward_function.path is None:
        raise PluginError(
            "reward_model.reward_manager: batch calls a score function with lists (data_sources, solution_strs, "
            "ground_truths, extra_infos), which the built-in functions do not take: set custom_reward_function.path"
        )
    if section.reward_kwargs and name in MANAGERS and name != "dapo":
        where = f"reward_model.reward_kwargs.{next(iter(section.reward_kwargs))}"
        raise PluginError(
            f"{where}: the reward manager '{name}' takes no options; those of a score function are "
            "custom_reward_function.reward_kwargs"
        )
    score_fn = load_score_function(config, workers)
    manager: Any = MANAGERS.get(name)
    if name == "prime" and config.custom_reward_function.path is None:
        manager = NaiveRewardManager  # the built-in functions have limits and processes of their own
    if manager is None:
        known = {*MANAGERS, *registry.known("rewards")}
        if not any(mark in name for mark in ".:") and name not in known:
            raise PluginError(f"reward_model.reward_manager: '{name}' is unknown.{suggest(name, known)}")
        manager = registry.resolve("rewards", name)
    if is_verl_manager(manager):
        renderer = renderer or _load_renderer(config)
        return load_verl_manager(
            manager,
            score_fn,
            timeout_s,
            tokenizer=tokenizer_of(renderer),
            config=ConfigView(config),
            reward_kwargs=section.reward_kwargs,
        )
    wanted = "Derive it from agentrl.interfaces.RewardManager, or give it verl's __call__(data, return_dict)"
    options = _options(config, workers)
    try:
        built = manager(score_fn, timeout_s, **options)
    except TypeError as error:
        raise PluginError(
            f"reward_model.reward_manager: '{name}' cannot be built as (score_fn, timeout_s): {error}. {wanted}"
        ) from error
    if not callable(getattr(built, "score", None)):
        raise PluginError(
            f"reward_model.reward_manager: '{name}' built {repr_of(built)}, which has no `score`. {wanted}"
        )
    return cast(RewardManager, built)


def _options(config: RunConfig, workers: int) -> dict[str, Any]:
    """What the manager is built with, besides its score function and its deadline."""
    name = config.reward_manager_name
    if name == "dapo":
        overlong, most = overlong_of(config)
        return {"overlong": overlong, "max_response_length": most}
    if name == "prime" and config.custom_reward_function.path is not None:
        processes = config.reward_model.num_processes or os.cpu_count() or 1
        return {"num_processes": max(1, processes // workers), "reference": _reference(config)}
    return {} if name in MANAGERS else config.reward_model.reward_kwargs


def _load_renderer(config: RunConfig) -> Any:
    model = config.actor_rollout_ref.model
    options = config.data.apply_chat_template_kwargs
    return load_renderer(
        model.path, model.tokenizer_path, model.chat_template, options, trust_remote_code=model.trust_remote_code
    )
