"""Whatever a user's tool, interaction, loop or score function does wrong ends its own trajectory with its cause."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rollout_helpers import MakeEngine, batch_of, sample, use_plugins

from agentrl.config.root import RunConfig
from agentrl.rollout import guarded_call
from agentrl.rollout.manager import AgentLoopManager
from agentrl.types import Sample

PLUGINS = """
import asyncio
import sys
import time

import numpy as np

from agentrl.agent_loops.tool_agent import ToolAgent
from agentrl.interactions.gsm8k import Gsm8kInteraction
from agentrl.tools.calculator import Calculator
from agentrl.types import InteractionResponse, ToolResponse


async def cancelled():
    task = asyncio.ensure_future(asyncio.sleep(9))
    task.cancel()
    await task


async def stubborn(seconds=1.2):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            await asyncio.sleep(0.05)
        except:
            pass


class Silent(Exception):
    def __str__(self):
        raise ValueError("no text")

    __repr__ = __str__


class Unnamed(BaseException):
    __str__ = __repr__ = Silent.__str__


async def end_badly(fault):
    match fault:
        case "exits":
            sys.exit(3)
        case "awaits what was cancelled":
            await cancelled()
        case "swallows cancellation":
            await stubborn()
        case "interrupts":
            raise KeyboardInterrupt
        case "raises an error without text":
            raise Silent


class Tool(Calculator):
    async def create(self, fault="", **kwargs):
        self.fault = fault

    async def execute(self, arguments, **kwargs):
        await end_badly(self.fault)
        match self.fault:
            case "gives a number as text":
                return ToolResponse(text=7)
            case "gives nan":
                return ToolResponse(text="7", reward=float("nan"))
            case "gives half a character":
                return ToolResponse(text="7\\ud83d", reward=0.5)
            case "gives text as a reward":
                return ToolResponse(text="7", reward="high")
            case "gives text as a metric":
                return ToolResponse(text="7", metrics={"speed": "high"})
            case "gives what has no repr":
                return Silent()
            case "gives an endless number":
                return ToolResponse(text="7", reward=10**5000)
            case "gives no metrics":
                return ToolResponse(text="7", metrics=None)
            case "gives text as a flag":
                return ToolResponse(text="7", is_error="no")
            case "gives an image":
                return ToolResponse(text="7", image=[b"PNG"])
            case "gives other kinds of numbers":
                return ToolResponse(text="7", reward=np.float32(0.5), metrics={"speed": np.int64(3)})
        return ToolResponse(text="7", reward=0.5)


class Other(Gsm8kInteraction):
    async def start_interaction(self, fault="", **kwargs):
        self.fault = fault

    async def generate_response(self, messages):
        await end_badly(self.fault)
        match self.fault:
            case "gives a tuple":
                return True, "x", 1.0, {}
            case "gives text as a flag":
                return InteractionResponse("no", "again", 1.0)
            case "says nothing":
                return InteractionResponse(False, None)
            case "gives nan":
                return InteractionResponse(True, "", float("nan"))
            case "gives half a character":
                return InteractionResponse(len(messages) > 4, "again \\udc80", 1.0)
        return InteractionResponse(True, None, 1.0)


class Loop(ToolAgent):
    async def run(self, sampling_params, **row):
        if row["extra_info"].get("loop") == "swallows cancellation":
            await stubborn(6.0)
        output = await super().run(sampling_params, **row)
        match row["extra_info"].get("loop"):
            case "exits":
                sys.exit(3)
            case "interrupts":
                raise KeyboardInterrupt
            case "leaves":
                raise GeneratorExit
            case "raises an error without text":
                raise Silent
            case "times out":
                raise TimeoutError
            case "counts in words":
                output.num_turns = "two"
            case "measures in words":
                output.metrics = {"num_tool_calls": "two"}
            case "gives no ids":
                output.response_ids = None
            case "gives no prompt":
                output.prompt_ids = []
            case "gives a prompt of another model":
                output.prompt_ids = [1, 10**6]
            case "gives a negative id":
                output.response_ids = [-1] * len(output.response_ids)
            case "gives endless facts":
                output.extra_fields["turn_scores"] = [10**400]
            case "gives an endless score":
                output.reward_score = 10**400
            case "gives nan":
                output.reward_score = float("nan")
            case "gives a score as text":
                output.reward_score = "high"
            case "gives its reason as text":
                output.stop_reason = "max_turns"
            case "gives a reason of its own":
                output.stop_reason = "max_turn"
            case "gives nothing":
                return None
        return output


def score(data_source, solution_str, ground_truth, extra_info):
    match extra_info.get("score"):
        case "exits":
            sys.exit(3)
        case "runs out":
            return next(iter([]))
        case "interrupts":
            raise KeyboardInterrupt
        case "raises an error without text":
            raise Silent
        case "raises what is no exception":
            raise Unnamed
        case "gives an endless number":
            return 10**400
    return 1.0


async def ascore(**kwargs):
    return score(**kwargs)
"""
TOOL = {
    "": 1.5,
    "exits": "SystemExit: 3",
    "awaits what was cancelled": "CancelledError",
    "swallows cancellation": "tool 'calculator': execute took longer than 0.5 s",
    "gives a number as text": "execute returned ToolResponse(text=7",
    "gives nan": "tool_reward nan",
    "gives half a character": 1.5,
    "gives text as a reward": "tool 'calculator': execute returned reward 'high', wanted a number",
    "gives text as a metric": 1.0,
    "interrupts": "tool 'calculator': execute raised KeyboardInterrupt",
    "raises an error without text": "execute raised Silent: <exception str() failed>",
    "gives what has no repr": "tool 'calculator': execute returned <Silent instance at",
    "gives an endless number": "execute returned reward a whole number of 16610 bits, wanted a number",
    "gives no metrics": "execute returned metrics None, wanted numbers by name",
    "gives text as a flag": "execute returned is_error 'no', wanted true or false",
    "gives an image": "tool 'calculator': execute returned images or videos",
    "gives other kinds of numbers": 1.5,
}
INTERACTION = {
    "": 2.5,
    "exits": "SystemExit: 3",
    "awaits what was cancelled": "CancelledError",
    "swallows cancellation": "interaction 'other': generate_response took longer than 0.5 s",
    "gives a tuple": "interaction 'other': generate_response returned (True, 'x', 1.0, {}), wanted an Inter",
    "interrupts": "interaction 'other': generate_response raised KeyboardInterrupt",
    "gives text as a flag": "generate_response returned should_terminate 'no', wanted true or false",
    "says nothing": "interaction 'other': generate_response returned content None, wanted text",
    "gives nan": "turn_score nan",
    "gives half a character": 4.0,
}
LOOP = {
    "exits": "SystemExit: 3",
    "interrupts": "agent loop 'mine': run raised KeyboardInterrupt",
    "leaves": "agent loop 'mine': run raised GeneratorExit",
    "raises an error without text": "Silent: <exception str() failed>",
    "times out": "TimeoutError: raised by the agent loop",
    "counts in words": "agent loop 'mine': run returned num_turns 'two', wanted a whole number",
    "measures in words": "run returned metrics {'num_tool_calls': 'two'}, wanted numbers by name",
    "gives no ids": "response_mask, response_logprobs, weight_versions: wanted lists of numbers (object of type",
    "gives no prompt": "agent loop 'mine': prompt_ids is empty",
    "gives a prompt of another model": "agent loop 'mine': prompt_ids holds 1000000, wanted ids from 0 to",
    "gives a negative id": "agent loop 'mine': response_ids holds -1, wanted ids from 0 to",
    "gives endless facts": "extra_fields.turn_scores: got",
    "gives an endless score": "reward_score 1000000",
    "gives nan": "reward_score nan, wanted a finite number",
    "gives a score as text": "reward_score 'high', wanted a finite number",
    "gives its reason as text": 1.5,
    "gives a reason of its own": "agent loop 'mine': run returned stop_reason 'max_turn'. Did you mean 'max_turns'?",
    "gives nothing": "agent loop 'mine': run returned None, wanted an AgentLoopOutput",
}
SCORE = {
    "exits": "SystemExit: 3",
    "runs out": "raised",
    "interrupts": "KeyboardInterrupt",
    "raises an error without text": "the score function raised Silent: <exception str() failed>",
    "raises what is no exception": "Unnamed: <exception str() failed>",
    "gives an endless number": "the score function returned 1000000",
}


def rows() -> tuple[list[Sample], list[float | str]]:
    samples: list[Sample] = []
    for fault in TOOL:
        samples.append(sample(len(samples), tools_kwargs={"calculator": {"create_kwargs": {"fault": fault}}}))
    for fault in INTERACTION:
        samples.append(sample(len(samples), interaction_kwargs={"name": "other", "fault": fault}))
    for place, faults in (("loop", LOOP), ("score", SCORE)):
        samples += [sample(len(samples) + i, extra_info={place: fault}) for i, fault in enumerate(faults)]
    return samples, [*TOOL.values(), *INTERACTION.values(), *LOOP.values(), *SCORE.values()]


@pytest.mark.parametrize("score", ["score", "ascore"])
def test_every_fault_ends_one_trajectory_alone(
    score: str,
    config: RunConfig,
    tmp_path: Path,
    make_engine: MakeEngine,
    make_manager: Callable[..., AgentLoopManager],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guarded_call, "GRACE_S", 0.05)
    use_plugins(config, tmp_path, PLUGINS, score=score)
    config.actor_rollout_ref.rollout.max_failure_rate = 0.9
    config.actor_rollout_ref.rollout.multi_turn.tool_timeout_s = 0.5
    config.reward_model.combine.turn = config.reward_model.combine.tool = 1.0
    samples, wanted = rows()
    out = make_manager(make_engine().address).generate_sequences(batch_of(samples))
    scores = dict(zip(out.non_tensor_batch["row"], out.non_tensor_batch["score"], strict=True))
    errors = {failure["row"]: failure["error"] for failure in out.meta_info["failures"]}
    assert len(scores) + len(errors) == len(samples)
    for row, expected in enumerate(wanted):
        if isinstance(expected, str):
            assert expected in errors[row], (row, errors[row])
        else:
            assert scores.get(row) == expected, (row, errors.get(row))
    assert all(map(math.isfinite, scores.values()))
    time.sleep(1.5)  # those that swallowed their cancellation end now


def test_a_loop_that_swallows_its_cancellation_holds_nobody_up(
    config: RunConfig,
    tmp_path: Path,
    make_engine: MakeEngine,
    make_manager: Callable[..., AgentLoopManager],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guarded_call, "LOOP_GRACE_S", 0.05)
    use_plugins(config, tmp_path, PLUGINS)
    config.actor_rollout_ref.rollout.multi_turn.trajectory_timeout_s = 0.5
    manager = make_manager(make_engine().address)
    began = time.monotonic()
    out = manager.generate_sequences(batch_of([sample(0), sample(1, extra_info={"loop": "swallows cancellation"})]))
    assert time.monotonic() - began < 5.5
    assert list(out.non_tensor_batch["row"]) == [0]
    (failure,) = out.meta_info["failures"]
    assert failure["error"] == "TimeoutError: the trajectory's deadline passed"
    time.sleep(max(0.0, began + 6.2 - time.monotonic()))  # it ends now
