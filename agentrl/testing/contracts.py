"""Contract tests for plug-ins: agentrl's own tools, interactions and loops pass them, and so should yours.

::

    async def test_my_tool():
        (spec,) = load_tools("my_tools.yaml")
        await check_tool(spec, arguments={"text": "hello"}, create_kwargs={})

`TOOL_CONTRACTS`, `INTERACTION_CONTRACTS` and `LOOP_CONTRACTS` list the clauses, each with its demand; `agentrl plugins
check NAME` runs them one by one. The token rules: docs/token_rules.md.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from agentrl.chat.renderer import ChatRenderer
from agentrl.chat.tool_parsers.hermes import HermesToolParser
from agentrl.errors import EngineUnavailable
from agentrl.plugins import InteractionSpec, LoopSpec, ToolSpec
from agentrl.plugins.functions import call
from agentrl.reported import number_of
from agentrl.rollout.tools.toolset import RowTools, ToolSet
from agentrl.testing.loops import WIDE, ScriptedReplies, make_context, sampled
from agentrl.testing.models import byte_tokenizer
from agentrl.types import (
    AgentLoopOutput,
    InteractionResponse,
    JsonDict,
    Message,
    Sample,
    StopReason,
    ToolCall,
    ToolResponse,
)

NEEDED_FIELDS = ("messages", "turn_scores", "tool_rewards", "num_tool_calls")
NEEDED_METRICS = ("generate_sequences", "tool_calls", "num_tool_calls", "num_tool_errors")

MOST_TURNS = 16
"""A loop that continues after an answer gets the same answer again, at most this many times."""

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Contract(Generic[C]):
    """One clause: its demand, and a check that raises `AssertionError` if it is broken."""

    demand: str
    check: Callable[[C], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ToolCase:
    """A tool and a call that works."""

    spec: ToolSpec
    arguments: JsonDict
    row_kwargs: dict[str, JsonDict] = field(default_factory=dict)

    def toolset(self) -> ToolSet:
        """The tools of one trajectory that has only this tool."""
        kwargs = {self.spec.name: dict(self.row_kwargs)}
        return ToolSet([self.spec], limits=WIDE, renderer=ChatRenderer(byte_tokenizer()), row=RowTools(kwargs))

    async def call(self, tools: ToolSet) -> ToolResponse:
        """Make the call once."""
        (response,) = await tools.execute([ToolCall(self.spec.name, self.arguments)])
        return response


@dataclass(frozen=True, slots=True)
class InteractionCase:
    """An interaction and a conversation that ends with an assistant message."""

    spec: InteractionSpec
    interaction_kwargs: JsonDict
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True)
class LoopCase:
    """An agent loop and a turn that ends its conversation."""

    spec: LoopSpec
    final_answer: str = "42"
    row_fields: JsonDict = field(default_factory=dict)

    @property
    def turn(self) -> list[int]:
        """Ids of the final answer."""
        renderer = ChatRenderer(byte_tokenizer())
        return [*renderer.encode_text(self.final_answer), *renderer.turn_end_ids[-1:]]

    def sample(self) -> Sample:
        """The row."""
        return Sample.of_row_fields({"messages": [{"role": "user", "content": "What is 6 * 7?"}], **self.row_fields})

    async def play(self, *replies: Any) -> AgentLoopOutput:
        """Run the loop over scripted replies."""
        engine = ScriptedReplies(list(replies))
        context = make_context(ChatRenderer(byte_tokenizer()), engine, tool_parser=HermesToolParser())
        output = await self.spec.build(context).run({"temperature": 1.0}, self.sample())
        assert output.prompt_ids == engine.requests[0][0], "`prompt_ids` must be the ids of the first request"
        check_output(output)
        return output


async def check_tool(spec: ToolSpec, arguments: JsonDict, **row_kwargs: JsonDict) -> None:
    """Check that a tool keeps the contract.

    Args:
        spec: from `load_tools`.
        arguments: of a call that works.
        **row_kwargs: `create_kwargs`, `execute_kwargs`, `calc_reward_kwargs`, `release_kwargs` of a row.

    Raises:
        AssertionError: a clause is broken; the message says which.
    """
    case = ToolCase(spec, arguments, row_kwargs)
    for contract in TOOL_CONTRACTS:
        await contract.check(case)


async def check_interaction(
    spec: InteractionSpec, interaction_kwargs: JsonDict, messages: Sequence[Message]
) -> InteractionResponse:
    """Check that an interaction keeps the contract.

    Args:
        spec: from `load_interactions`.
        interaction_kwargs: of a row, without `name`.
        messages: a conversation that ends with an assistant message.

    Returns:
        Its response.

    Raises:
        AssertionError: a clause is broken; the message says which.
    """
    case = InteractionCase(spec, interaction_kwargs, messages)
    for contract in INTERACTION_CONTRACTS:
        await contract.check(case)
    return await _answer(case)


async def check_agent_loop(spec: LoopSpec, final_answer: str = "42", **row_fields: Any) -> AgentLoopOutput:
    """Check that an agent loop keeps the token rules and the contract.

    Args:
        spec: from `load_agent_loops`.
        final_answer: a turn that ends the conversation.
        **row_fields: passed to `run` besides `messages`.

    Returns:
        The trajectory of a conversation in which every assistant turn is `final_answer`.

    Raises:
        AssertionError: a clause is broken; the message says which.
    """
    case = LoopCase(spec, final_answer, row_fields)
    for contract in LOOP_CONTRACTS:
        await contract.check(case)
    return await case.play(*[case.turn] * MOST_TURNS)


def check_output(output: AgentLoopOutput) -> None:
    """Check the lists of a trajectory (mask, equal lengths, last token) and that no field is missing.

    Raises:
        AssertionError: a clause is broken; the message says which.
    """
    lengths = {
        "response_ids": len(output.response_ids),
        "response_mask": len(output.response_mask),
        "response_logprobs": len(output.response_logprobs),
        "weight_versions": len(output.weight_versions),
    }
    assert len(set(lengths.values())) == 1, f"the lists must have equal lengths, got {lengths}"
    assert set(output.response_mask) <= {0, 1}, "the mask must hold only 0 and 1"
    for mask, log_prob in zip(output.response_mask, output.response_logprobs, strict=True):
        assert mask or log_prob == 0.0, f"a token with mask 0 must have log-prob 0.0, got {log_prob}"
    assert not output.response_mask or output.response_mask[-1] == 1, "the last token must be a sampled one"
    missing = [name for name in NEEDED_FIELDS if name not in output.extra_fields]
    missing += [name for name in NEEDED_METRICS if name not in output.metrics]
    assert not missing, f"missing in `extra_fields` or `metrics`: {missing}"


async def _schema_is_json(case: ToolCase) -> None:
    assert json.loads(json.dumps(case.spec.schema)) == case.spec.schema, "the schema must be plain JSON"
    described = case.spec.schema["function"].get("description")
    assert described, "the schema has no description: a model cannot choose the tool without one"


async def _call_fits(case: ToolCase) -> None:
    problem = case.spec.check_arguments(case.arguments)
    assert problem is None, f"the example call does not fit the schema: {problem}"


async def _fresh_tools(case: ToolCase) -> None:
    assert case.spec.build() is not case.spec.build(), "each trajectory must get its own instance"


async def _call_works(case: ToolCase) -> None:
    tools = case.toolset()
    try:
        await tools.start()
        response = await case.call(tools)
    finally:
        await tools.release()
    assert not response.is_error, f"the example call was answered with an error: {response.text}"
    assert isinstance(response.text, str), f"`text` is {type(response.text).__name__}, wanted str"
    assert response.reward is None or number_of(response.reward) is not None, (
        f"`reward` is {response.reward!r}, wanted a number or None"
    )


async def _no_leaks(case: ToolCase) -> None:
    first, second = case.toolset(), case.toolset()
    try:
        await first.start()
        response = await case.call(first)
        await case.call(first)
        await second.start()
        again = await case.call(second)
    finally:
        await first.release()
        await second.release()
    assert again.reward == response.reward, "calls of one trajectory changed the reward in another: state leaks"


async def _tool_reward(case: ToolCase) -> None:
    tools = case.toolset()
    try:
        await tools.start()
        await case.call(tools)
        rewards = await tools.calc_rewards()
    finally:
        await tools.release()
    assert isinstance(rewards[case.spec.name], float)


async def _release_unused(case: ToolCase) -> None:
    """Calls the tool itself: a `ToolSet` would log a failure here and continue."""
    kwargs = case.row_kwargs.get("release_kwargs", {})
    await call(case.spec.build().release, **kwargs)
    tool = case.spec.build()
    await call(tool.create, **case.row_kwargs.get("create_kwargs", {}))
    await call(tool.release, **kwargs)


async def _fresh_interactions(case: InteractionCase) -> None:
    assert case.spec.build() is not case.spec.build(), "each trajectory must get its own instance"


async def _answer(case: InteractionCase) -> InteractionResponse:
    interaction = case.spec.build()
    try:
        await call(interaction.start_interaction, **case.interaction_kwargs)
        response: InteractionResponse = await call(
            interaction.generate_response, [dict(message) for message in case.messages]
        )
        return response
    finally:
        await call(interaction.finalize_interaction)


async def _answers(case: InteractionCase) -> None:
    response = await _answer(case)
    assert isinstance(response, InteractionResponse), f"got {type(response).__name__}, wanted InteractionResponse"
    assert response.should_terminate in (True, False)
    assert isinstance(response.content, str)
    assert response.score is None or number_of(response.score) is not None


async def _only_reads(case: InteractionCase) -> None:
    interaction, messages = case.spec.build(), [dict(message) for message in case.messages]
    before = json.dumps(messages)
    try:
        await call(interaction.start_interaction, **case.interaction_kwargs)
        await call(interaction.generate_response, messages)
    finally:
        await call(interaction.finalize_interaction)
    assert json.dumps(messages) == before, "the conversation must not be changed"


async def _interaction_score(case: InteractionCase) -> None:
    interaction = case.spec.build()
    try:
        await call(interaction.start_interaction, **case.interaction_kwargs)
        await call(interaction.generate_response, [dict(message) for message in case.messages])
        assert number_of(await call(interaction.calculate_score)) is not None
    finally:
        await call(interaction.finalize_interaction)


async def _finalize_unused(case: InteractionCase) -> None:
    await call(case.spec.build().finalize_interaction)


async def _exact_tokens(case: LoopCase) -> None:
    output = await case.play(*[case.turn] * MOST_TURNS)
    trained = [token for token, mask in zip(output.response_ids, output.response_mask, strict=True) if mask]
    turns = len(trained) // len(case.turn)
    assert turns, "the response lacks the sampled turn"
    assert trained == case.turn * turns, "the response must hold the sampled ids unchanged"
    assert output.num_turns >= 2 * turns, f"`num_turns` is {output.num_turns} after {turns} assistant turns"
    if turns == 1:
        assert output.response_ids == case.turn, "the response must end with the last sampled token"


async def _cut_turn(case: LoopCase) -> None:
    cut = await case.play(sampled(case.turn[:2], "length"))
    assert cut.stop_reason is StopReason.LENGTH, f"a cut turn must end the trajectory, got {cut.stop_reason}"


async def _empty_turn(case: LoopCase) -> None:
    empty = await case.play([])
    assert (empty.response_ids, empty.stop_reason) == ([], StopReason.EMPTY), "an empty turn must end it as EMPTY"


async def _aborted_turn(case: LoopCase) -> None:
    aborted = await case.play(sampled(case.turn[:2], "abort"))
    assert aborted.stop_reason is StopReason.ABORTED


async def _engine_failure(case: LoopCase) -> None:
    async def down(prompt_ids: list[int], sampling_params: JsonDict) -> Any:
        raise EngineUnavailable("down")

    context = make_context(ChatRenderer(byte_tokenizer()), down, tool_parser=HermesToolParser())
    try:
        await case.spec.build(context).run({}, case.sample())
    except EngineUnavailable:
        return
    raise AssertionError("the loop hid a failure of the engine: it must not catch EngineError")


TOOL_CONTRACTS: list[Contract[ToolCase]] = [
    Contract("the schema is plain JSON and has a description", _schema_is_json),
    Contract("the example call fits the schema", _call_fits),
    Contract("every trajectory gets its own instance", _fresh_tools),
    Contract("the example call returns text and optionally a reward", _call_works),
    Contract("calls of one trajectory change nothing in another", _no_leaks),
    Contract("calc_reward returns a number", _tool_reward),
    Contract("release works for a tool that was never called or created", _release_unused),
]
INTERACTION_CONTRACTS: list[Contract[InteractionCase]] = [
    Contract("every trajectory gets its own instance", _fresh_interactions),
    Contract("generate_response returns an InteractionResponse", _answers),
    Contract("the conversation is read, never changed", _only_reads),
    Contract("calculate_score returns a number", _interaction_score),
    Contract("finalize_interaction works for an interaction that never started", _finalize_unused),
]
LOOP_CONTRACTS: list[Contract[LoopCase]] = [
    Contract("a turn cut by the length limit ends the trajectory as LENGTH", _cut_turn),
    Contract("an engine that samples nothing ends it as EMPTY", _empty_turn),
    Contract("an aborted turn ends it as ABORTED", _aborted_turn),
    Contract("failures of the engine are not caught", _engine_failure),
    Contract("the response holds the sampled ids unchanged, with mask and fields", _exact_tokens),
]
