"""The reward manager `prime`: the score function runs in a pool of processes, each call with its own deadline."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import pickle
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from agentrl.errors import InfrastructureError, PluginError, RewardError, UserInputError
from agentrl.interfaces import RewardInput, RewardManager, RewardResult
from agentrl.observability.said_once import say_once
from agentrl.own_time import OwnTime
from agentrl.plugins.threads import call_in_thread
from agentrl.plugins.users_code import described
from agentrl.rewards.dispatcher import ScoreFunction
from agentrl.rewards.score_call import ONE, check_call
from agentrl.rewards.score_process import NotServed, ProcessDied, ScoreProcess, TookTooLong

logger = logging.getLogger(__name__)

_TRIES = 2
"""A process may have died by chance (memory), so the call is tried once more in a new one."""


class PrimeRewardManager(RewardManager):
    """Calls `score_fn(data_source=, solution_str=, ground_truth=, extra_info=)` in processes.

    A call that reaches its deadline is killed, whatever it does (it sleeps, or computes in C), and scores 0, as in
    PRIME; `reason` says so in the rollout log, and `reward/timed_out/mean` counts. Nothing else is scored 0: a function
    that raises, or whose process dies twice, leaves its trajectory out. A process keeps what its function has loaded
    from call to call; it starts when it is first needed.

    Args:
        score_fn: sync or async; a function at the top of a module or file, and keywords that can be pickled.
        timeout_s: deadline of one call. Waiting for a process, and in `queueing()`, is not its time.
        num_processes: the size of the pool; None: one per processor.
        reference: how a process finds the function (`file.py:name` or `module.name`); None: by its own module.

    Raises:
        PluginError: the function cannot be called so, or a process cannot find it.
    """

    def __init__(
        self,
        score_fn: ScoreFunction,
        timeout_s: float = 60.0,
        *,
        num_processes: int | None = None,
        reference: str | None = None,
    ) -> None:
        check_call(score_fn, ONE)
        self._function = _pickled(score_fn, reference)
        self._timeout_s = timeout_s
        self._room = asyncio.Semaphore(num_processes or os.cpu_count() or 1)
        self._idle: list[ScoreProcess] = []

    async def score(self, item: RewardInput) -> RewardResult:
        """Score one trajectory.

        Raises:
            RewardError: the function raised, returned no finite number, or its process died.
            InfrastructureError: a service behind the function failed, or kept it waiting for an hour.
        """
        values = (item.data_source, item.solution_str, item.ground_truth, item.extra_info)
        try:
            arguments = pickle.dumps(dict(zip(ONE, values, strict=True)))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise RewardError(f"a row cannot be sent to the process of the score function: {error}") from error
        caller = OwnTime()
        try:
            async with self._room:
                result: RewardResult = await call_in_thread(lambda: self._ask(arguments, caller))
                return result
        finally:
            caller.abandoned = True

    def _ask(self, arguments: bytes, caller: OwnTime) -> RewardResult:
        """One call, in a process that waits for one or in a new one."""
        death = ""
        for _ in range(_TRIES):
            process = self._take()
            try:
                result = process.ask(arguments, self._timeout_s, caller)
            except TookTooLong:
                return self._timed_out()
            except NotServed as error:
                raise InfrastructureError(str(error)) from None
            except ProcessDied as died:
                death = str(died)
                continue
            except (RewardError, UserInputError, InfrastructureError):  # the function's: the process is good
                self._idle.append(process)
                raise
            self._idle.append(process)
            return replace(result, extra={**result.extra, "timed_out": False}, metrics={"timed_out": 0.0})
        raise RewardError(f"the process of the score function died {_TRIES} times, the last time by {death}")

    def _take(self) -> ScoreProcess:
        try:
            return self._idle.pop()
        except IndexError:
            return ScoreProcess(self._function)

    def _timed_out(self) -> RewardResult:
        reason = f"the score function took over {self._timeout_s:g} s (reward_model.timeout_s) and was killed"
        say_once(logger, logging.WARNING, f"{reason}: such trajectories score 0, and reward/timed_out/mean counts them")
        return RewardResult(0.0, {"timed_out": True, "reason": reason}, service_used=False, metrics={"timed_out": 1.0})


def _pickled(score_fn: ScoreFunction, reference: str | None) -> bytes:
    kwargs: dict[str, Any] = {}
    args: tuple[Any, ...] = ()
    while isinstance(score_fn, functools.partial):
        kwargs, args = {**score_fn.keywords, **kwargs}, (*score_fn.args, *args)
        score_fn = score_fn.func
    try:
        return pickle.dumps((reference or _reference(score_fn), args, kwargs))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise PluginError(
            f"reward_model.reward_manager: prime cannot send the reward_kwargs of {described(score_fn)} to its "
            f"processes: {error}"
        ) from error


def _reference(score_fn: ScoreFunction) -> str:
    """Where a process finds a function: `file.py:name`, or `module.name` of a module without a file."""
    name = getattr(score_fn, "__qualname__", type(score_fn).__qualname__)
    module = sys.modules.get(getattr(score_fn, "__module__", None) or "")
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not score_fn:
        raise PluginError(
            f"reward_model.reward_manager: prime calls the score function in other processes, which cannot find "
            f"{described(score_fn)}: put it at the top of a file, or use the reward manager naive"
        )
    home, file = str(getattr(module, "__name__", "")), getattr(module, "__file__", None)
    # A plug-in file and a script have modules that only this process knows.
    by_name = home != "__main__" and not home.startswith("agentrl_plugin_") and find_spec(home) is not None
    return f"{home}.{name}" if by_name else f"{file}:{name}"
