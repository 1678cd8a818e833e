"""How many calls of a tool may run at the same time and begin per second, in the whole run or in each worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agentrl.errors import ConfigError, suggest
from agentrl.plugins import ToolSpec
from agentrl.reported import number_of, whole_number_of
from agentrl.types import JsonDict

_SCOPES = ("run", "worker")


@dataclass(frozen=True, slots=True)
class CallLimits:
    """`max_concurrency`, `rate_limit_per_s` and `limits_per` of a tool's `config`."""

    max_concurrency: int | None = None
    """Most calls at the same time."""
    rate_limit_per_s: float | None = None
    """Most calls that begin per second; they are spread evenly."""
    per_worker: bool = False
    """True: each worker has the full limits; else its share of them."""

    @classmethod
    def of(cls, name: str, config: JsonDict) -> CallLimits:
        """Read a tool's `config`.

        Raises:
            ConfigError: a value is not a valid limit.
        """
        concurrency = _positive(name, config, "max_concurrency", whole=True)
        rate = _positive(name, config, "rate_limit_per_s", whole=False)
        scope = config.get("limits_per", "run")
        if scope not in _SCOPES:
            raise ConfigError(f"tool '{name}': config.limits_per: got {scope!r}.{suggest(str(scope), _SCOPES)}")
        return cls(None if concurrency is None else int(concurrency), rate, scope == "worker")

    def share(self, workers: int) -> CallLimits:
        """The share of one of `workers` workers: all of them together stay within the limits."""
        if self.per_worker or workers == 1:
            return self
        return CallLimits(
            None if self.max_concurrency is None else self.max_concurrency // workers,
            None if self.rate_limit_per_s is None else self.rate_limit_per_s / workers,
        )


def check_limits(tools: Iterable[ToolSpec], workers: int) -> None:
    """Refuse limits that would allow a worker no call at all.

    Raises:
        ConfigError: names the tool.
    """
    for tool in tools:
        limits = CallLimits.of(tool.name, tool.config)
        if limits.share(workers).max_concurrency == 0:
            raise ConfigError(
                f"tool '{tool.name}': config.max_concurrency: got {limits.max_concurrency} for {workers} agent-loop "
                f"workers, wanted at least one call for each: raise it, lower actor_rollout_ref.rollout.agent."
                "num_workers, or give every worker the full limit (limits_per: worker)"
            )


class Limiter:
    """Delays calls until one more may begin. For one event loop.

    Args:
        limits: a worker's share.
    """

    def __init__(self, limits: CallLimits) -> None:
        self._slots = asyncio.Semaphore(limits.max_concurrency) if limits.max_concurrency is not None else None
        self._interval_s = 1.0 / limits.rate_limit_per_s if limits.rate_limit_per_s is not None else 0.0
        self._next = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a call's turn, and hold its slot until it has ended."""
        if self._slots is None:
            await self._pace()
            yield
            return
        async with self._slots:
            await self._pace()
            yield

    async def _pace(self) -> None:
        if not self._interval_s:
            return
        # 2 calls per second: calls that arrive at 0.0, 0.1 and 0.2 s begin at 0.0, 0.5 and 1.0 s.
        now = asyncio.get_running_loop().time()
        begin = max(now, self._next)
        self._next = begin + self._interval_s
        await asyncio.sleep(begin - now)


def _positive(name: str, config: JsonDict, key: str, *, whole: bool) -> float | None:
    value: Any = config.get(key)
    if value is None:
        return None
    number = None if isinstance(value, bool) else whole_number_of(value) if whole else number_of(value)
    if number is None or not number > 0:
        wanted = "a whole number of at least 1" if whole else "a number above 0"
        raise ConfigError(f"tool '{name}': config.{key}: got {value!r}, wanted {wanted}")
    return float(number)
