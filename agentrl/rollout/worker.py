"""Runs trajectories, each as one coroutine with a deadline, and scores each as soon as it ends.

This is the trajectory boundary: whatever goes wrong inside one trajectory ends only that one, with its cause. A failure
of infrastructure is never a reward of 0: the trajectory is left out, and repeated if the configuration says so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from agentrl.config.rollout import RolloutConfig
from agentrl.errors import (
    AgentRLError,
    EngineTimeout,
    InfrastructureError,
    RewardError,
    ServiceDownError,
    TokenStreamError,
    UserInputError,
    text_of,
)
from agentrl.inference.clients import client_class
from agentrl.inference.engine_load import EngineLoad, loads_of
from agentrl.inference.router import Router
from agentrl.interfaces import RewardInput, RewardResult
from agentrl.own_time import OwnTimeLimit
from agentrl.plugins.users_code import raised_at
from agentrl.reported import finite_number_of, plain_values
from agentrl.rewards.combine import combine
from agentrl.rewards.judge import Verdict
from agentrl.rollout.gc_pause import seldom_collected
from agentrl.rollout.guarded_call import guarded_call
from agentrl.rollout.loop_output import finite_score, loop_output, packed_tokens, read_facts
from agentrl.rollout.records import ChunkResult, Job, LoopLag, RolloutRow, StepInfo, TokenArrays
from agentrl.rollout.service_gate import JUDGE, ServiceGate, score_service
from agentrl.rollout.session import Session
from agentrl.rollout.setup import RolloutSetup, sampling_params
from agentrl.rollout.shown_pictures import shown_pictures
from agentrl.rollout.tools.shared import WorkerTools
from agentrl.rollout.trained_tokens import sampled_turns
from agentrl.timeline import TRAJECTORY, Timeline
from agentrl.types import AgentLoopOutput, StopReason

logger = logging.getLogger(__name__)

LAG_INTERVAL_S = 0.05


class AgentLoopWorker:
    """Runs trajectories in one event loop. Build it anywhere; call its coroutines in that loop only.

    Args:
        setup: shared by all trajectories.
        addresses: the engines.
        slots: most trajectories that run at the same time here.
        workers: workers of the run, which share the limits of its tools.
    """

    def __init__(self, setup: RolloutSetup, addresses: Sequence[str], slots: int, workers: int = 1) -> None:
        self._setup = setup
        self._addresses = list(addresses)
        self._slots = asyncio.Semaphore(slots)
        self._gate = make_gate(setup.config.actor_rollout_ref.rollout)
        self._tools = WorkerTools(setup.config.actor_rollout_ref.rollout.multi_turn.tool_cache, workers, self._gate)
        self._batch = 0
        self._router: Router | None = None
        self._chunks: set[asyncio.Task[Any]] = set()
        self.finished = 0
        """Trajectories that have ended so far, of all batches."""

    async def run_chunk(self, jobs: Sequence[Job], step: StepInfo) -> ChunkResult:
        """Run trajectories, at most one per slot at the same time; one row per job, in order."""
        self.router.expect_version(step.weight_version)
        if step.batch != self._batch:
            self._batch = step.batch
            self._gate.forget()
        lag = LoopLag()
        watch = asyncio.create_task(_watch_lag(lag))
        tasks = [asyncio.create_task(self.run_job(job, step)) for job in jobs]
        self._chunks.update(tasks)
        try:
            with seldom_collected():
                return ChunkResult(list(await asyncio.gather(*tasks)), lag)
        finally:
            watch.cancel()
            self._chunks.difference_update(tasks)
            for task in tasks:
                task.cancel()

    async def run_job(self, job: Job, step: StepInfo) -> RolloutRow:
        """Run a trajectory; if it fails, repeat it as often as `rollout.refill` allows."""
        rollout = self._setup.config.actor_rollout_ref.rollout
        tries = rollout.max_refills if rollout.refill else 0
        causes: list[str] = []
        timelines: list[Timeline] = []
        while True:
            row = await self.run_one(job, step)
            if row.error is None or row.is_final or len(causes) == tries:
                row.earlier_errors, row.earlier_timelines = causes, timelines
                self.finished += 1
                return row
            causes.append(row.error)
            timelines.append(row.timeline)

    async def run_one(self, job: Job, step: StepInfo) -> RolloutRow:
        """Run and score one trajectory. The only exception that leaves this method is cancellation."""
        services = self._setup.services_of(job.sample)
        try:
            held_s = await self._enter(services, job)
        except ServiceDownError as error:
            return _left_out(job, None, StopReason.ENV_ERROR, error)
        try:
            timeline = Timeline(step.trace, held_s, "a service that was down")
            session: Session | None = None
            deadline = OwnTimeLimit(self._setup.limits.trajectory_timeout_s)
            with timeline.span(TRAJECTORY, f"row {job.row}") as whole:
                try:
                    session = Session.open(job, step, self._setup, self.router, self._gate, self._tools, timeline)
                    async with deadline:
                        output = await self._play(session)
                    row = await self._finish(session, output)
                except (TimeoutError, EngineTimeout) as error:
                    late = session is not None and deadline.expired()
                    row = _left_out(job, session, StopReason.TIMEOUT, session.cut_off() if session and late else error)
                except (Exception, SystemExit, asyncio.CancelledError) as error:  # the trajectory boundary
                    if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                        raise
                    row = _left_out(job, session, StopReason.ENV_ERROR, error)
                finally:
                    if session is not None:
                        await self._release(session)
                whole.error = row.error or ""
            row.timeline = timeline
            row.metrics |= {"seconds": whole.seconds, "held": held_s}
            return row
        finally:
            self._gate.leave(job)
            self._slots.release()

    async def set_addresses(self, addresses: Sequence[str]) -> None:
        """Use these engines from now on."""
        self._addresses = list(addresses)
        if self._router is not None:
            await self._router.set_addresses(addresses)

    async def engine_loads(self) -> dict[str, EngineLoad]:
        """What each engine does for this worker."""
        return {} if self._router is None else loads_of(self._router)

    async def cancel_all(self) -> None:
        """End every running trajectory; each still releases its tools."""
        tasks = list(self._chunks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """End every trajectory and close all connections."""
        await self.cancel_all()
        if self._router is not None:
            await self._router.close()
            self._router = None
        await self._tools.close()
        if self._setup.judge is not None:
            await self._setup.judge.aclose()

    @property
    def router(self) -> Router:
        """The router of this worker, created in its event loop at first use."""
        if self._router is None:
            server = self._setup.config.actor_rollout_ref.rollout.server
            self._router = Router(
                self._addresses,
                vocab_size=self._setup.renderer.vocab_size,
                request_timeout_s=server.request_timeout_s,
                retries=server.retries,
                client=client_class(self._setup.config),
            )
        return self._router

    async def _enter(self, services: Sequence[str], job: Job) -> float:
        """Take a slot once all services are up; returns the seconds that an outage held the trajectory back."""
        # A service may go down while the trajectory waits for a slot: then it gives the slot back and waits again.
        held_s = 0.0
        while True:
            held_s += await self._gate.wait(services)
            await self._slots.acquire()
            if self._gate.enter(services, job):
                return held_s
            self._slots.release()

    async def _play(self, session: Session) -> AgentLoopOutput:
        sample = session.job.sample
        loop = session.loop = self._setup.loop_of(sample).build(session.context())
        await session.tools.start()
        if session.interaction is not None:
            kwargs = {key: value for key, value in sample.interaction_kwargs.items() if key != "name"}
            await session.interaction.start_interaction(**kwargs)
        params = sampling_params(self._setup.config, validate=session.step.validate, greedy=session.job.greedy)
        return await guarded_call(
            f"agent loop '{self._setup.loop_of(sample).name}'",
            loop.run,
            (params, sample),
            timeout_s=None,  # the trajectory's deadline, which also covers its tools and its score, cancels it
            expect=loop_output,
            wrap=False,
        )

    async def _finish(self, session: Session, output: AgentLoopOutput) -> RolloutRow:
        """Check, score and pack the loop's output."""
        loop = self._setup.loop_of(session.job.sample).name
        row = RolloutRow(
            row=session.job.row,
            tokens=packed_tokens(output, loop, self._setup.limits.response_length, self._setup.renderer.vocab_size),
            stop_reason=_stop_reason(session, output),
            num_turns=output.num_turns,
            metrics={
                "generate_sequences": session.timeline.seconds_of("generate"),
                "tool_calls": 0.0,
                **output.metrics,
            },
            facts=read_facts(output, loop),
        )
        row.pictures = await shown_pictures(session, row.tokens)
        if row.stop_reason.is_failure:
            row.error = row.facts.error or output.stop_reason.value
        elif not row.tokens.mask.any() and not _is_empty(session):
            row.error = _nothing_returned(session, loop)
        elif row.tokens.mask.any() and not self._keep_trainable(session, row):
            row.is_untrainable = True
        else:
            with session.timeline.span("score", "outcome") as scoring:
                result = await self._score(session, output, row)
            row.metrics["compute_score"] = scoring.seconds
            verdict = await self._verdict(session, output, row)
            weights = self._setup.config.reward_model.combine
            judged = None if verdict is None else verdict.score
            whole = combine(result, row.facts, output.response_mask, weights, judged)
            row.score, row.reward_extra, row.placed = whole.score, plain_values(whole.extra), whole.placed
            numbers = ((str(name), finite_number_of(value)) for name, value in result.metrics.items())
            row.reward_metrics = {name: number for name, number in numbers if number is not None}
            if verdict is not None:
                row.reward_extra |= verdict.extra
                row.reward_metrics |= verdict.metrics
        return row

    def _keep_trainable(self, session: Session, row: RolloutRow) -> bool:
        """Narrow the loss mask to what the run trains on; False if nothing is left. What is only scored stays whole."""
        if session.step.validate or session.job.greedy or session.loop is None:
            return True
        parser, schemas = session.loop.parser, session.tools.schemas
        parse = None if parser is None else lambda text: parser.parse(text, schemas)
        by_tool = row.stop_reason is StopReason.STOP_TOOL
        decode = self._setup.renderer.decode
        row.tokens = self._setup.training.narrow(row.tokens, decode, parse, answered_by_tool=by_tool)
        return bool(row.tokens.loss_mask.any())

    async def _score(self, session: Session, output: AgentLoopOutput, row: RolloutRow) -> RewardResult:
        if output.reward_score is not None:
            return RewardResult(finite_score(output.reward_score))
        sample = session.job.sample
        if not self._setup.has_outcome(sample):
            return RewardResult(0.0)
        service = score_service(sample.data_source)
        with self._watched(service):
            result = await self._setup.rewards.score(self._reward_input(session, output, row))
        if result.service_used:
            self._gate.succeeded(service)
        return result

    async def _verdict(self, session: Session, output: AgentLoopOutput, row: RolloutRow) -> Verdict | None:
        """What the judge says; None: the run has none."""
        judge = self._setup.judge
        if judge is None:
            return None
        with self._watched(JUDGE), session.timeline.span("score", "judge"):
            verdict = await judge.score(self._reward_input(session, output, row))
        if not verdict.cached:
            self._gate.succeeded(JUDGE)
        return verdict

    @contextmanager
    def _watched(self, service: str) -> Iterator[None]:
        """Tell the gate if the service fails meanwhile."""
        began = time.monotonic()
        try:
            yield
        except InfrastructureError as error:
            self._gate.failed(service, began, str(error))
            raise

    def _reward_input(self, session: Session, output: AgentLoopOutput, row: RolloutRow) -> RewardInput:
        sample = session.job.sample
        known = {**row.facts.as_fields(), "num_turns": row.num_turns, "num_tool_calls": row.num_tool_calls}
        return RewardInput(
            data_source=sample.data_source,
            solution_str=self._assistant_text(output),
            ground_truth=sample.ground_truth,
            extra_info={**sample.extra_info, **known},
            sample=sample,
            output=output,
        )

    def _assistant_text(self, output: AgentLoopOutput) -> str:
        """The assistant's text, turn by turn: exactly the tokens with mask 1."""
        turns = sampled_turns(np.asarray(output.response_mask, np.int8))
        return "\n".join(self._setup.renderer.decode(output.response_ids[start:end]) for start, end in turns)

    async def _release(self, session: Session) -> None:
        """Release the trajectory's resources. A failure here is only logged: its tokens are good."""
        # The loop knows the session, whose `generate` it calls: together they would stay, with all tokens, until the
        # garbage collector looks at old objects, which it does about once in 34,000 trajectories.
        session.loop = None
        session.router.release(session.trajectory_id)
        await session.tools.release()
        if session.interaction is not None:
            await session.interaction.finalize_interaction()


def make_gate(rollout: RolloutConfig) -> ServiceGate:
    """The gate of a worker. The run restarts its own engines after the step has failed, so nobody waits for them."""
    outage = rollout.outage
    engine_wait_s = outage.wait_s if rollout.server.addresses else 0.0
    return ServiceGate(outage.failures, outage.backoff_s, outage.wait_s, engine_wait_s)


def _is_empty(session: Session) -> bool:
    """Whether the engine was asked and sampled nothing: the model's doing, scored as any other answer."""
    return session.turn > 0 and session.sampled == 0


def _stop_reason(session: Session, output: AgentLoopOutput) -> StopReason:
    """The loop's, but a loop need not know what it means that nothing was sampled."""
    return StopReason.EMPTY if _is_empty(session) and not output.stop_reason.is_failure else output.stop_reason


def _nothing_returned(session: Session, loop: str) -> str:
    """The error of a loop whose response holds no sampled token, although there are some, or it asked for none."""
    did = f"returned none of the {session.sampled} tokens that were sampled" if session.turn else "asked for no turn"
    return f"agent loop '{loop}' {did}, wanted a response with a sampled token"


def _left_out(job: Job, session: Session | None, reason: StopReason, error: BaseException) -> RolloutRow:
    """The row of a failed trajectory: its tokens so far for the record, its cause, and no score."""
    if not isinstance(error, RewardError | TimeoutError | EngineTimeout):
        logger.debug("row %d failed", job.row, exc_info=error)
    trajectory = session.trajectory if session is not None else None
    output = AgentLoopOutput(
        prompt_ids=trajectory.prompt_ids if trajectory else [],
        response_ids=trajectory.response_ids if trajectory else [],
        response_mask=trajectory.response_mask if trajectory else [],
        response_logprobs=trajectory.rollout_log_probs if trajectory else [],
        weight_versions=trajectory.weight_versions if trajectory else [],
        num_turns=0,
        stop_reason=reason,
    )
    text = text_of(error)
    if isinstance(error, TimeoutError):
        text = text or "raised by the agent loop"
    if not isinstance(error, AgentRLError) and session is not None and session.loop is not None:
        text += raised_at(error, type(session.loop).run)
    return RolloutRow(
        row=job.row,
        tokens=TokenArrays.of(output),
        stop_reason=reason,
        error=f"{type(error).__name__}: {text}",
        is_final=isinstance(error, UserInputError | TokenStreamError),
        metrics={"generate_sequences": session.timeline.seconds_of("generate") if session is not None else 0.0},
    )


def _is_cancelled() -> bool:
    """Whether somebody is cancelling this task; if not, a `CancelledError` comes from something a plug-in awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _watch_lag(lag: LoopLag) -> None:
    """Sleep repeatedly and record how late each wake-up was."""
    while True:
        due = time.perf_counter() + LAG_INTERVAL_S
        await asyncio.sleep(LAG_INTERVAL_S)
        lag.add(max(time.perf_counter() - due, 0.0))
