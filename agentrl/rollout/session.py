"""What one trajectory holds while it runs, and the `generate` that its loop calls."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.errors import TokenStreamError
from agentrl.interfaces import BaseInteraction, LoopContext
from agentrl.rollout.records import Job, StepInfo
from agentrl.rollout.seeds import sampling_seed
from agentrl.rollout.setup import RolloutSetup
from agentrl.rollout.toolset import ToolSet
from agentrl.trajectory import Trajectory
from agentrl.types import GenerationOutput, JsonDict

if TYPE_CHECKING:
    from agentrl.inference.router import Router


@dataclass(slots=True)
class Session:
    """One trajectory under way: its tools, interaction and tokens, and what must be given back when it ends."""

    job: Job
    step: StepInfo
    setup: RolloutSetup
    router: Router
    trajectory_id: str
    tools: ToolSet
    interaction: BaseInteraction | None
    trajectory: Trajectory | None = None
    turn: int = 0
    generate_s: float = 0.0
    _context_ids: list[int] | None = None

    @classmethod
    def open(cls, job: Job, step: StepInfo, setup: RolloutSetup, router: Router) -> Session:
        """Build a trajectory's own tools and interaction; nothing has started yet."""
        sample = job.sample
        spec = setup.interaction_of(sample)
        offered = sample.tool_config.get("available_tools") if setup.loop_of(sample).cls.uses_tools else []
        tools = ToolSet(
            setup.tools,
            limits=setup.limits,
            renderer=setup.renderer,
            tools_kwargs=sample.tools_kwargs,
            available=offered,
        )
        mode = "val" if step.validate else "train"
        trajectory_id = f"{mode}-{step.global_step}-{job.row}-{time.monotonic_ns():x}"
        return cls(job, step, setup, router, trajectory_id, tools, spec.build() if spec else None)

    def context(self) -> LoopContext:
        """What the agent loop works with."""
        return LoopContext(
            generate=self.generate,
            renderer=self.setup.renderer,
            tool_parser=self.setup.parser,
            tools=self.tools,
            interaction=self.interaction,
            limits=self.setup.limits,
            new_trajectory=self.new_trajectory,
        )

    def new_trajectory(self, prompt_ids: list[int]) -> Trajectory:
        """Start the token stream; kept here so that a failure can report how far it came."""
        self.trajectory = Trajectory(prompt_ids, self.setup.limits.response_length)
        self._context_ids = None
        return self.trajectory

    async def generate(self, prompt_ids: list[int], sampling_params: JsonDict) -> GenerationOutput:
        """One turn on this trajectory's engine.

        Raises:
            TokenStreamError: the request does not continue the last turn's tokens (R3).
            EngineError: as `Router.generate`.
        """
        before = self._context_ids
        if before is not None and prompt_ids[: len(before)] != before:
            raise TokenStreamError(
                f"turn {self.turn + 1} does not begin with the {len(before)} tokens up to the last turn's end (R3)"
            )
        config = self.setup.config
        if config.trainer.deterministic:
            seed = sampling_seed(config.trainer.seed, self.step, self.job, self.turn)
            sampling_params = {**sampling_params, "sampling_seed": seed}
        rid = f"{self.trajectory_id}-{self.turn}"
        self.turn += 1
        started = time.perf_counter()
        try:
            output = await self.router.generate(
                self.trajectory_id,
                prompt_ids,
                sampling_params,
                rid=rid,
                timeout_s=self.setup.limits.turn_timeout_s,
            )
        finally:
            self.generate_s += time.perf_counter() - started
        self._context_ids = prompt_ids + output.token_ids
        return output
