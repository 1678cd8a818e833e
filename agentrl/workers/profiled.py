"""A rank with a model: it can be profiled for a step, and leave its GPU to the engines."""

from __future__ import annotations

from agentrl.config.root import RunConfig
from agentrl.observability.profiler import ProcessProfiler
from agentrl.single_controller import Dispatch, Worker, register
from agentrl.workers.fsdp_model import FSDPModel


class ProfiledWorker(Worker):
    """One rank with a model and a profiler of its own process."""

    config: RunConfig
    role: str
    model: FSDPModel
    _profiler: ProcessProfiler | None = None

    @register(Dispatch.ONE_TO_ALL)
    def start_profile(self, step: int) -> None:
        """Profile this process from now on."""
        trainer = self.config.trainer
        tool = trainer.profile_tool
        assert tool != "spans"  # the driver collects those
        self._profiler = ProcessProfiler(tool, trainer.profile_file(step, f"{self.role}_rank_{self.rank}"))
        self._profiler.start()

    @register(Dispatch.ONE_TO_ALL)
    def keep_on_device(self) -> None:
        """Several uses follow: from the first one on parameters stay on the GPU."""
        self.model.residence.keep()

    @register(Dispatch.ONE_TO_ALL)
    def yield_device(self) -> None:
        """The engines' turn begins: leave them what `fsdp_config.param_offload` and `optimizer_offload` say."""
        self.model.residence.yield_device()

    @register(Dispatch.ONE_TO_ALL)
    def stop_profile(self) -> None:
        """End it, and write what was found."""
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            profiler.stop()
