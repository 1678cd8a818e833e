"""What a penalty for long responses and a judge need, and which of their keys cannot act."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from agentrl.config.idle import Idle
from agentrl.config.judge import judge_problems
from agentrl.config.rewards import OverlongBufferConfig
from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError, suggest
from agentrl.reported import whole_number_of

BUILT_IN_MANAGERS = ("naive", "batch", "prime", "dapo")
_KWARGS = ("overlong_buffer_cfg", "max_resp_len")
"""Options of `dapo` as verl spells them."""
_OVERLONG = "reward_model.overlong_buffer"
_OPTIONS = "reward_model.reward_kwargs"


def check_overlong(config: RunConfig) -> Iterator[str]:
    """The penalty for long responses fits the run, and its manager is the one that adds it."""
    name = config.reward_manager_name
    if name == "dapo":
        try:
            overlong_of(config)
        except ConfigError as error:
            yield from error.problems
    elif name in BUILT_IN_MANAGERS and config.reward_model.overlong_buffer.enable:
        yield (
            f"{_OVERLONG}.enable: got true, but the reward manager is {name}, which adds no penalty: set "
            "reward_model.reward_manager=dapo"
        )


def overlong_of(config: RunConfig) -> tuple[OverlongBufferConfig, int]:
    """The penalty of a run and the largest length of a response, also where `reward_kwargs` has them, as in verl.

    Raises:
        ConfigError: names the option that is wrong, unknown or given twice.
    """
    section, kwargs = config.reward_model, config.reward_model.reward_kwargs
    for name in kwargs:
        if name not in _KWARGS:
            raise ConfigError(f"{_OPTIONS}.{name}: the reward manager dapo has no such option.{suggest(name, _KWARGS)}")
    overlong, where = section.overlong_buffer, _OVERLONG
    given = kwargs.get("overlong_buffer_cfg")
    if given is not None:
        where = f"{_OPTIONS}.overlong_buffer_cfg"
        if overlong.model_fields_set:
            raise ConfigError(f"{where}: {_OVERLONG} is given too: keep one of them")
        overlong = _section_of(given, where)
    most, whose = config.actor_rollout_ref.rollout.response_length or config.data.max_response_length, "the run's"
    if kwargs.get("max_resp_len") is not None:
        key = f"{_OPTIONS}.max_resp_len"
        own = whole_number_of(kwargs["max_resp_len"])
        if own is None or own < 1:
            raise ConfigError(f"{key}: got {kwargs['max_resp_len']!r:.200}, wanted a number of tokens")
        most, whose = own, key
    if overlong.enable and not 1 <= overlong.len <= most:
        raise ConfigError(f"{where}.len: got {overlong.len}, wanted 1 to {most} tokens ({whose} largest response)")
    return overlong, most


def _section_of(given: object, where: str) -> OverlongBufferConfig:
    known = OverlongBufferConfig.model_fields
    if not isinstance(given, dict):
        raise ConfigError(f"{where}: got {given!r:.200}, wanted a mapping with {', '.join(known)}")
    for name in given:
        if name not in known:
            raise ConfigError(f"{where}.{name}: unknown key.{suggest(str(name), known)}")
    try:
        return OverlongBufferConfig.model_validate(given)
    except ValidationError as error:
        detail = error.errors()[0]
        key = ".".join(map(str, (where, *detail["loc"])))
        raise ConfigError(f"{key}: got {detail['input']!r:.200}. {detail['msg']}") from error


def check_judge(config: RunConfig) -> Iterator[str]:
    """A judge can be asked."""
    if config.reward_model.has_judge:
        yield from judge_problems(config.reward_model.judge)


REWARD_CHECKS = (check_overlong, check_judge)
IDLE_JUDGE_KEYS: tuple[Idle[Any], ...] = (
    Idle(
        ("reward_model.judge.*", "reward_model.combine.judge"),
        lambda run: run.reward_model.judge.base_url is None,
        "reward_model.judge.base_url is not given, so there is no judge",
    ),
    Idle(
        ("reward_model.judge.*",),
        lambda run: run.reward_model.combine.judge == 0,
        "reward_model.combine.judge is 0, so the judge is not asked",
    ),
    Idle(
        ("reward_model.judge.rubric", "reward_model.judge.rubric_path"),
        lambda run: "{rubric}" not in (run.reward_model.judge.template or "{rubric}"),
        "reward_model.judge.template does not name the rubric",
    ),
    Idle(
        ("reward_model.judge.cache_dir",),
        lambda run: not run.reward_model.judge.cache,
        "reward_model.judge.cache is false",
    ),
)
"""Of a training and of an evaluation."""
IDLE_REWARD_KEYS: tuple[Idle[RunConfig], ...] = (
    Idle(
        ("reward_model.overlong_buffer.*",),
        lambda run: run.reward_manager_name != "dapo",
        "the reward manager is not dapo",
    ),
    Idle(
        ("reward_model.overlong_buffer.*",),
        lambda run: not run.reward_model.overlong_buffer.enable,
        "reward_model.overlong_buffer.enable is false",
    ),
    Idle(
        ("reward_model.num_processes",),
        lambda run: run.reward_manager_name != "prime" or run.custom_reward_function.path is None,
        "only the reward manager prime has processes, for a score function of your own (custom_reward_function.path)",
    ),
    *IDLE_JUDGE_KEYS,
)
