"""A rank that can be profiled for a step."""

from __future__ import annotations

from agentrl.config.root import RunConfig
from agentrl.observability.profiler import ProcessProfiler
from agentrl.single_controller import Dispatch, Worker, register


class ProfiledWorker(Worker):
    """One rank with a profiler of its own process."""

    config: RunConfig
    role: str
    _profiler: ProcessProfiler | None = None

    @register(Dispatch.ONE_TO_ALL)
    def start_profile(self, step: int) -> None:
        """Profile this process from now on."""
        trainer = self.config.trainer
        self._profiler = ProcessProfiler(
            trainer.profile_tool, trainer.profile_file(step, f"{self.role}_rank_{self.rank}")
        )
        self._profiler.start()

    @register(Dispatch.ONE_TO_ALL)
    def stop_profile(self) -> None:
        """End it, and write what was found."""
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            profiler.stop()
