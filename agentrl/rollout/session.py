"""The resources of one running trajectory, and the `generate` that its loop calls."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agentrl.chat.vision import SentPictures
from agentrl.errors import EngineTimeout, EngineUnavailable, PictureError, TokenStreamError
from agentrl.interfaces import AgentLoopBase, BaseInteraction, LoopContext
from agentrl.pictures import Picture, pictures_in
from agentrl.rollout.guarded_interaction import GuardedInteraction
from agentrl.rollout.records import Job, StepInfo
from agentrl.rollout.seeds import sampling_seed
from agentrl.rollout.service_gate import ENGINE, ServiceGate
from agentrl.rollout.setup import RolloutSetup
from agentrl.rollout.tools.context import ToolContexts
from agentrl.rollout.tools.shared import WorkerTools
from agentrl.rollout.tools.toolset import RowTools, ToolSet
from agentrl.rollout.turn_params import TurnParams
from agentrl.timeline import Timeline
from agentrl.trajectory import ContextIds, Trajectory
from agentrl.types import GenerationOutput, JsonDict, LoopLimits, Sample

if TYPE_CHECKING:
    from agentrl.inference.router import Router


@dataclass(slots=True)
class Session:
    """One running trajectory: its tools, interaction and tokens, and the resources to release when it ends."""

    job: Job
    step: StepInfo
    setup: RolloutSetup
    router: Router
    trajectory_id: str
    gate: ServiceGate
    tools: ToolSet
    interaction: BaseInteraction | None
    params: TurnParams
    limits: LoopLimits
    """The run's, with those of the row."""
    timeline: Timeline
    loop: AgentLoopBase | None = None
    trajectory: Trajectory | None = None
    turn: int = 0
    """Generations that were asked for."""
    sampled: int = 0
    """Tokens that the engine sampled in them."""
    _unanswered_since: float | None = None
    """When the last turn began, if it was cancelled before the engine answered."""
    _last: Request | None = None

    @classmethod
    def open(
        cls,
        job: Job,
        step: StepInfo,
        setup: RolloutSetup,
        router: Router,
        gate: ServiceGate,
        worker: WorkerTools,
        timeline: Timeline,
    ) -> Session:
        """Build a trajectory's own tools and interaction; nothing has started yet."""
        sample = _own(job.sample)
        job = replace(job, sample=sample)
        spec = setup.interaction_of(sample)
        limits = setup.limits_of(sample)
        tools = ToolSet(
            setup.tools_of(sample),
            limits=limits,
            renderer=setup.renderer,
            row=RowTools(
                timeout_s=sample.tool_config.get("timeout"),
                kwargs=sample.tools_kwargs,
                available=[spec.name for spec in setup.offered_tools(sample)],
                contexts=ToolContexts(sample),
                records=worker.records_of(job, step),
                timeline=timeline,
            ),
            worker=worker,
            sees_pictures=setup.renderer.vision is not None and setup.loop_of(sample).cls.sees_pictures,
        )
        mode = "val" if step.validate else "train"
        trajectory_id = f"{mode}-{step.global_step}-{job.row}-{time.monotonic_ns():x}"
        interaction = None
        if spec is not None:
            own = spec.build()
            own.scope = worker.scope
            interaction = GuardedInteraction(own, spec.name, setup.limits.tool_timeout_s, gate, timeline)
        vision = setup.renderer.vision
        ends = setup.renderer.stop_token_ids | (frozenset() if vision is None else vision.tokens.placeholders)
        params = TurnParams(limits, ends)
        return cls(job, step, setup, router, trajectory_id, gate, tools, interaction, params, limits, timeline)

    def context(self) -> LoopContext:
        """What the agent loop works with."""
        return LoopContext(
            generate=self.generate,
            renderer=self.setup.renderer,
            tool_parser=self.setup.parser_of(self.job.sample),
            tools=self.tools,
            interaction=self.interaction,
            limits=self.limits,
            new_trajectory=self.new_trajectory,
            run_config=self.setup.config,
        )

    def new_trajectory(self, prompt_ids: list[int], pictures: Sequence[Picture] | None = None) -> Trajectory:
        """Start the token stream; kept here so that a failure can report the tokens so far.

        Args:
            prompt_ids: ids of the rendered prompt.
            pictures: those that it shows; None: the row's.
        """
        vision = self.setup.renderer.vision
        self.trajectory = Trajectory(
            prompt_ids,
            self.setup.limits.response_length,
            pictures_in(self.job.sample.prompt) if pictures is None else pictures,
            max_pictures=self.limits.max_images,
            placeholders=() if vision is None else vision.tokens.placeholders,
        )
        self._last = None
        self.params.start(len(prompt_ids))
        return self.trajectory

    async def generate(self, prompt_ids: list[int], sampling_params: JsonDict) -> GenerationOutput:
        """Sample one turn on this trajectory's engine.

        The only place that sets a turn's deadline, its token budget and the ids that end it. Loops give sampling
        parameters and stop strings; the router enforces the deadline.

        Raises:
            TokenStreamError: the request does not continue the last turn's tokens.
            EngineError: as `Router.generate`. Engines that fail or hang are reported to the gate.
        """
        self._check_continues(prompt_ids)
        pictures = self._pictures(prompt_ids)
        request = Request.of(prompt_ids)
        sampling_params = self.params.complete(prompt_ids, sampling_params)
        config = self.setup.config
        if config.trainer.deterministic or self.step.seeded:
            seed = sampling_seed(config.trainer.seed, self.step, self.job, self.turn)
            sampling_params["sampling_seed"] = seed
        rid = f"{self.trajectory_id}-{self.turn}"
        self.turn += 1
        began = time.monotonic()
        self._unanswered_since = None
        try:
            with self.timeline.span("generate", f"turn {self.turn}"):
                output = await self.router.generate(
                    self.trajectory_id,
                    prompt_ids,
                    sampling_params,
                    rid=rid,
                    pictures=pictures,
                    timeout_s=self.setup.limits.turn_timeout_s,
                )
        except (EngineUnavailable, EngineTimeout) as error:
            self.gate.failed(ENGINE, began, str(error))
            raise
        except asyncio.CancelledError:
            self._unanswered_since = began
            raise
        self.gate.succeeded(ENGINE)
        request.sampled = output.token_ids
        self.sampled += len(output.token_ids)
        self._last = request
        return output

    def cut_off(self) -> TimeoutError:
        """The error of a trajectory whose own deadline passed. An engine that it was waiting for is reported.

        With `trajectory_timeout_s` below `turn_timeout_s` no turn ever reaches its own deadline, and the gate would
        never hear of an engine that hangs.
        """
        text = "the trajectory's deadline passed"
        if self._unanswered_since is not None:
            waited_s = time.monotonic() - self._unanswered_since
            engine = self.router.engine_of(self.trajectory_id)
            text += f" while turn {self.turn} waited for {engine} ({waited_s:.1f} s)"
            self.gate.failed(ENGINE, self._unanswered_since, text)
        return TimeoutError(text)

    def _pictures(self, prompt_ids: list[int]) -> SentPictures | None:
        """The pictures of a request, with the tokens that stand for them; None: it has none.

        Raises:
            TokenStreamError: ids and pictures do not belong together.
        """
        vision = self.setup.renderer.vision
        if vision is None:
            return None
        trajectory = self.trajectory
        shown = pictures_in(self.job.sample.prompt) if trajectory is None else trajectory.context_pictures
        try:
            vision.check(prompt_ids, shown)
        except PictureError as error:
            raise TokenStreamError(f"the request of turn {self.turn + 1}: {error}") from error
        return SentPictures(vision.tokens, [vision.shown(picture) for picture in shown]) if shown else None

    def _check_continues(self, prompt_ids: list[int]) -> None:
        """A request must begin with the last request's ids and the ids sampled for it, unchanged."""
        if self._last is not None and not self._last.is_continued_by(prompt_ids):
            end = self._last.length + len(self._last.sampled)
            raise TokenStreamError(
                f"the request of turn {self.turn + 1} does not begin with the {end} ids up to the end of the last "
                "turn: sampled ids must not be decoded and encoded again"
            )


@dataclass(slots=True)
class Request:
    """The part of a request that the next one must continue."""

    owner: Trajectory | None
    """The trajectory whose unchanged context it was; None if the ids came from elsewhere."""
    length: int
    ids: list[int]
    """A copy of the ids; empty if they came from `owner`, which still has them."""
    sampled: list[int]

    @classmethod
    def of(cls, prompt_ids: list[int], sampled: list[int] | None = None) -> Request:
        """A request that is about to be sent; `sampled` is filled in once it is answered.

        Made before the engine is asked: a loop may change its list while it waits, and what counts is what was sent.
        """
        owner = _owner(prompt_ids)
        return cls(owner, len(prompt_ids), [] if owner else list(prompt_ids), sampled or [])

    def is_continued_by(self, prompt_ids: list[int]) -> bool:
        """Whether a later request begins with this one and the ids sampled for it.

        Contexts of one trajectory share their prefix by construction, so only the sampled ids are compared: 50 ids
        instead of 20,000 in a long conversation.
        """
        # Asked [1, 2, 3], sampled [4, 5]: the next request must begin with [1, 2, 3, 4, 5]. So does [1, 2, 3, 4, 5, 6],
        # with an observation of one token. [1, 2, 3, 4, 9, 6] does not: the turn was decoded and encoded again.
        if prompt_ids[self.length : self.length + len(self.sampled)] != self.sampled:
            return False
        if self.owner is None:
            return prompt_ids[: self.length] == self.ids
        # The first three ids are known to be the same where both requests are unchanged contexts of one trajectory,
        # which only grows at its end: a context of 30,000 ids is not compared again at each of 20 turns.
        return self.owner is _owner(prompt_ids) or prompt_ids[: self.length] == self.owner.context_ids[: self.length]


def _own(sample: Sample) -> Sample:
    """The row with copies of the parts that plug-ins get: trajectories of a group share the row but no state."""
    names = ("prompt", "reward_model", "tools_kwargs", "interaction_kwargs", "tool_config", "extra_info")
    return replace(sample, **{name: _copied(getattr(sample, name)) for name in names})


def _copied(value: Any) -> Any:
    """A deep copy, made three times faster than by `copy.deepcopy` where the value is as from JSON: most rows are."""
    kind = type(value)
    if kind in (str, int, float, bool, type(None)):
        return value
    if kind is dict:
        return {key: _copied(item) for key, item in value.items()}
    if kind is list:
        return [_copied(item) for item in value]
    return copy.deepcopy(value)


def _owner(prompt_ids: list[int]) -> Trajectory | None:
    return prompt_ids.owner if isinstance(prompt_ids, ContextIds) else None
