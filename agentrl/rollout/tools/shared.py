"""Shared by the tools and interactions of one agent-loop worker: connections, servers, limits, recorded results."""

from __future__ import annotations

from agentrl.clients import WorkerScope
from agentrl.config.rollout import ToolCacheConfig
from agentrl.plugins import ToolSpec
from agentrl.rollout.records import Job, StepInfo
from agentrl.rollout.service_gate import ServiceGate
from agentrl.rollout.tools.limits import CallLimits, Limiter
from agentrl.rollout.tools.recording import NO_RECORDS, CallRecords, ToolCache


class WorkerTools:
    """One per worker; used in its event loop only.

    Args:
        cache: `multi_turn.tool_cache`.
        workers: agent-loop workers of the run, which share each tool's limits.
        gate: is told which tools' services answer and which fail.

    Raises:
        ConfigError: nothing was recorded to replay.
    """

    def __init__(self, cache: ToolCacheConfig | None = None, workers: int = 1, gate: ServiceGate | None = None) -> None:
        self.gate = gate
        self.scope = WorkerScope()
        self._cache = open_cache(cache) if cache is not None else None
        self._workers = workers
        self._limiters: dict[tuple[str, str], Limiter] = {}
        self._by_spec: dict[int, Limiter] = {}

    def limiter(self, spec: ToolSpec) -> Limiter:
        """The limiter of one tool; the same tool in two tool sets has one."""
        found = self._by_spec.get(id(spec))
        if found is None:
            key = spec.name, repr(sorted(spec.config.items()))
            if key not in self._limiters:
                self._limiters[key] = Limiter(CallLimits.of(spec.name, spec.config).share(self._workers))
            found = self._by_spec[id(spec)] = self._limiters[key]
        return found

    def records_of(self, job: Job, step: StepInfo) -> CallRecords:
        """The recorded results of one trajectory."""
        if self._cache is None:
            return NO_RECORDS
        split = "val" if step.validate else "train"
        row = f"{job.sample.data_source}/{job.sample.index}/{job.rollout}"
        return self._cache.trajectory(f"{split}/{step.global_step}/{row}")

    async def close(self) -> None:
        """Close everything that is open."""
        await self.scope.close()
        if self._cache is not None:
            self._cache.close()


def open_cache(config: ToolCacheConfig) -> ToolCache | None:
    """The cache of a run; None if it is off.

    Raises:
        ConfigError: nothing was recorded to replay.
    """
    return None if config.mode == "off" else ToolCache(config.mode, config.path or "")
