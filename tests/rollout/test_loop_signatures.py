"""A loop takes the sample, or the row's fields as keywords; callers may give either to both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollout_helpers import MakeEngine, batch_of, sample

from agentrl.config.root import RunConfig
from agentrl.interfaces import AgentLoopBase
from agentrl.rollout.manager import AgentLoopManager
from agentrl.types import AgentLoopOutput, JsonDict, Sample, StopReason

ROW = Sample(
    index=3,
    prompt=[{"role": "user", "content": "?"}],
    data_source="mine",
    reward_model={"ground_truth": "7"},
    extra_info={"level": 1},
    tools_kwargs={"note": {}},
    interaction_kwargs={"name": "judge"},
    tool_config={"tool_format": "hermes"},
)
FIELDS = {
    "messages": ROW.prompt,
    "data_source": "mine",
    "reward_model": {"ground_truth": "7"},
    "extra_info": {"level": 1},
    "tools_kwargs": {"note": {}},
    "interaction_kwargs": {"name": "judge"},
    "index": 3,
}


def told(**got: Any) -> AgentLoopOutput:
    return AgentLoopOutput([1], [2], [1], [-0.5], 2, StopReason.COMPLETED, extra_fields=got)


class TakesSample(AgentLoopBase):
    async def run(self, sampling_params: JsonDict, sample: Sample) -> AgentLoopOutput:
        return told(params=sampling_params, got=sample)


class TakesAll(AgentLoopBase):
    async def run(self, sampling_params: JsonDict, **row_fields: Any) -> AgentLoopOutput:  # type: ignore[override]
        return told(params=sampling_params, got=row_fields)


class TakesSome(AgentLoopBase):
    async def run(self, sampling_params, messages, extra_info=None, **others):  # type: ignore[no-untyped-def, override]
        return told(params=sampling_params, got=(messages, extra_info, sorted(others)))


class TakesTwo(AgentLoopBase):
    async def run(self, sampling_params, messages, *, index):  # type: ignore[no-untyped-def, override]
        return told(params=sampling_params, got=(messages, index))


class TakesSampleByKeyword(AgentLoopBase):
    async def run(self, sampling_params: JsonDict, *, sample: Sample) -> AgentLoopOutput:  # type: ignore[override]
        return told(params=sampling_params, got=sample)


class TakesSampleByPlace(AgentLoopBase):
    async def run(self, sampling_params: JsonDict, sample: Sample, /) -> AgentLoopOutput:  # type: ignore[override]
        return told(params=sampling_params, got=sample)


class Mixin:
    async def run(self, sampling_params: JsonDict, **row_fields: Any) -> AgentLoopOutput:
        return told(params=sampling_params, got=row_fields)


class Mixed(Mixin, AgentLoopBase):  # type: ignore[misc]
    pass


class OldOverNew(TakesSample):
    async def run(self, sampling_params: JsonDict, **row_fields: Any) -> AgentLoopOutput:  # type: ignore[override]
        return await super().run(sampling_params, **row_fields)  # type: ignore[call-arg]


class NewOverOld(TakesAll):
    async def run(self, sampling_params: JsonDict, sample: Sample) -> AgentLoopOutput:  # type: ignore[override]
        return await super().run(sampling_params, sample)  # type: ignore[arg-type, misc]


class Inherits(TakesSample):
    pass


SOME = ROW.prompt, {"level": 1}, ["data_source", "index", "interaction_kwargs", "reward_model", "tools_kwargs"]
WITHOUT_REST = Sample(**{**{name: value for name, value in FIELDS.items() if name != "messages"}, "prompt": ROW.prompt})


@pytest.mark.parametrize(
    ("cls", "of_sample", "of_fields"),
    [
        (TakesSample, ROW, WITHOUT_REST),
        (Inherits, ROW, WITHOUT_REST),
        (OldOverNew, WITHOUT_REST, WITHOUT_REST),
        (TakesAll, FIELDS, FIELDS),
        (NewOverOld, FIELDS, FIELDS),
        (Mixed, FIELDS, FIELDS),
        (TakesSome, SOME, SOME),
        (TakesTwo, (ROW.prompt, 3), (ROW.prompt, 3)),
        (TakesSampleByKeyword, ROW, WITHOUT_REST),
        (TakesSampleByPlace, ROW, WITHOUT_REST),
    ],
)
def test_either_call_fits_either_loop(cls: Any, of_sample: Any, of_fields: Any) -> None:
    loop, params = cls(context=None), {"temperature": 1.0}
    for output, wanted in (
        (asyncio.run(loop.run(params, ROW)), of_sample),
        (asyncio.run(loop.run(params, sample=ROW)), of_sample),
        (asyncio.run(loop.run(sampling_params=params, **FIELDS)), of_fields),
    ):
        assert output.extra_fields == {"params": params, "got": wanted}


def test_a_keyword_that_no_row_has_is_an_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'mesages'"):
        asyncio.run(TakesTwo(context=None).run({}, messages=[], index=1, mesages=[]))  # type: ignore[arg-type]


def test_a_call_without_the_prompt_says_what_is_missing() -> None:
    with pytest.raises(TypeError, match=r"a row needs `messages`, got \['index'\]"):
        asyncio.run(TakesSample(context=None).run({}, index=1))  # type: ignore[arg-type, call-arg]


def test_the_signature_stays_the_users_own_and_run_stays_needed() -> None:
    assert list(inspect.signature(TakesSome.run).parameters) == [
        "self",
        "sampling_params",
        "messages",
        "extra_info",
        "others",
    ]
    assert inspect.iscoroutinefunction(TakesSome.run)

    class Unfinished(AgentLoopBase):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Unfinished(context=None)  # type: ignore[abstract, arg-type]


LOOPS = """
from agentrl.agent_loops.conversation import Conversation
from agentrl.interfaces import AgentLoopBase


class Old(AgentLoopBase):
    uses_tools = False

    async def run(self, sampling_params, **row):
        messages = row["messages"]
        messages[0]["content"] += "!"
        row["extra_info"]["seen"] = sorted(row)
        talk = Conversation(self.context, messages, sampling_params, index=row.get("index"))
        await talk.generate()
        return await talk.finish(seen=row["extra_info"]["seen"])


class New(AgentLoopBase):
    uses_tools = False

    async def run(self, sampling_params, sample):
        sample.prompt[0]["content"] += "!"
        sample.tool_config["mine"] = True
        talk = Conversation(self.context, sample.prompt, sampling_params, index=sample.index)
        await talk.generate()
        return await talk.finish(seen=[sample.index, sample.data_source, sample.ground_truth])
"""


def test_both_run_and_neither_changes_the_row_of_another_trajectory(
    config: RunConfig,
    tmp_path: Path,
    make_engine: MakeEngine,
    make_manager: Callable[..., AgentLoopManager],
    play: Callable[..., Any],
) -> None:
    (tmp_path / "mine.py").write_text(LOOPS)
    (tmp_path / "loops.yaml").write_text("- {name: old, _target_: mine.py:Old}\n- {name: new, _target_: mine.py:New}\n")
    rollout = config.actor_rollout_ref.rollout
    rollout.agent.agent_loop_config_path, rollout.multi_turn.tool_config_path = str(tmp_path / "loops.yaml"), None
    rows = [sample(0, agent_name="old"), sample(1, agent_name="new")]
    out = make_manager(make_engine(play("It is #### 7")).address).generate_sequences(batch_of(rows, n=2))
    assert [messages[0]["content"] for messages in out.non_tensor_batch["messages"]] == ["3+4!"] * 4
    assert [row.tool_config for row in rows] == [{}, {}]
    seen = [fields["seen"] for fields in out.non_tensor_batch["extra_fields"]]
    assert seen[0] == seen[1] == sorted(FIELDS)
    assert seen[2] == seen[3] == [1, "openai/gsm8k", "7"]
    assert list(out.non_tensor_batch["score"]) == [1.0] * 4
