"""Contract tests for plug-ins: agentrl's own tools, interactions and loops pass them, and so should yours.

::

    async def test_my_tool():
        (spec,) = load_tools("my_tools.yaml")
        await check_tool(spec, arguments={"text": "hello"}, create_kwargs={})
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agentrl.chat.renderer import ChatRenderer
from agentrl.chat.tool_parsers.hermes import HermesToolParser
from agentrl.errors import EngineUnavailable
from agentrl.plugin_config import InteractionSpec, LoopSpec, ToolSpec
from agentrl.rollout.toolset import ToolSet
from agentrl.testing.loops import WIDE, ScriptedReplies, make_context, sampled
from agentrl.testing.models import byte_tokenizer
from agentrl.types import AgentLoopOutput, InteractionResponse, JsonDict, Message, StopReason, ToolCall

NEEDED_FIELDS = ("messages", "turn_scores", "tool_rewards", "num_tool_calls")
NEEDED_METRICS = ("generate_sequences", "tool_calls", "num_tool_calls", "num_tool_errors")


async def check_tool(spec: ToolSpec, arguments: JsonDict, **row_kwargs: JsonDict) -> None:
    """A tool keeps the contract.

    Args:
        spec: from `load_tools`.
        arguments: of a call that works.
        **row_kwargs: `create_kwargs`, `execute_kwargs`, `calc_reward_kwargs`, `release_kwargs` of a row.

    Raises:
        AssertionError: with the clause that is broken.
    """
    assert json.loads(json.dumps(spec.schema)) == spec.schema, "the schema must be plain JSON"
    assert spec.schema["function"].get("description"), "a model cannot choose a tool without a description"
    problem = spec.check_arguments(arguments)
    assert problem is None, f"the example call does not fit the schema: {problem}"
    assert spec.build() is not spec.build(), "one instance per trajectory"
    renderer = ChatRenderer(byte_tokenizer())

    def toolset() -> ToolSet:
        return ToolSet([spec], limits=WIDE, renderer=renderer, tools_kwargs={spec.name: dict(row_kwargs)})

    first, second, unused = toolset(), toolset(), toolset()
    call = ToolCall(spec.name, arguments)
    await first.start()
    (response,) = await first.execute([call])
    assert not response.is_error, f"the example call is answered with a mistake: {response.text}"
    assert isinstance(response.text, str), f"`text` is {type(response.text).__name__}, wanted str"
    assert isinstance(response.reward, float | int | None), f"`reward` is {response.reward!r}, wanted a number or None"
    await first.execute([call])
    await second.start()
    (again,) = await second.execute([call])
    assert again.reward == response.reward, "another trajectory's calls changed the reward: state leaks"
    rewards = await second.calc_rewards()
    assert isinstance(rewards[spec.name], float)
    for used in (first, second):
        await used.release()
    await unused.release()


async def check_interaction(
    spec: InteractionSpec, interaction_kwargs: JsonDict, messages: Sequence[Message]
) -> InteractionResponse:
    """An interaction keeps the contract.

    Args:
        spec: from `load_interactions`.
        interaction_kwargs: of a row, without `name`.
        messages: a conversation that ends with an assistant message.

    Returns:
        What it answered.

    Raises:
        AssertionError: with the clause that is broken.
    """
    assert spec.build() is not spec.build(), "one instance per trajectory"
    interaction = spec.build()
    await interaction.start_interaction(**interaction_kwargs)
    before = json.dumps(list(messages))
    response = await interaction.generate_response([dict(message) for message in messages])
    assert isinstance(response, InteractionResponse), f"got {type(response).__name__}, wanted InteractionResponse"
    assert isinstance(response.should_terminate, bool)
    assert isinstance(response.content, str)
    assert response.score is None or isinstance(response.score, float | int)
    assert json.dumps(list(messages)) == before, "the conversation must not be changed"
    assert isinstance(await interaction.calculate_score(), float | int)
    await interaction.finalize_interaction()
    unused = spec.build()
    await unused.finalize_interaction()
    return response


async def check_agent_loop(spec: LoopSpec, final_answer: str = "42", **row_fields: Any) -> AgentLoopOutput:
    """An agent loop keeps the token rules and the contract.

    Args:
        spec: from `load_agent_loops`.
        final_answer: a turn that ends the conversation.
        **row_fields: what `run` gets besides `messages`.

    Returns:
        The trajectory of a conversation of one turn.

    Raises:
        AssertionError: with the clause that is broken.
    """
    renderer = ChatRenderer(byte_tokenizer())
    turn = [*renderer.encode_text(final_answer), *renderer.turn_end_ids[-1:]]

    async def play(*replies: Any) -> AgentLoopOutput:
        engine = ScriptedReplies(list(replies))
        context = make_context(renderer, engine, tool_parser=HermesToolParser())
        messages = [{"role": "user", "content": "What is 6 * 7?"}]
        output = await spec.build(context).run({"temperature": 1.0}, messages=messages, **row_fields)
        assert output.prompt_ids == engine.requests[0][0], "`prompt_ids` must be what the engine was asked first"
        check_output(output)
        return output

    cut = await play(sampled(turn[:2], "length"))
    assert cut.stop_reason is StopReason.LENGTH, "a turn that was cut ends the trajectory (R7)"
    empty = await play([])
    assert (empty.response_ids, empty.stop_reason) == ([], StopReason.EMPTY), "nothing sampled, nothing to train on"
    aborted = await play(sampled(turn[:2], "abort"))
    assert aborted.stop_reason is StopReason.ABORTED
    await _check_engine_failure(spec, renderer, row_fields)
    output = await play(turn)
    assert output.response_ids == turn, "the response must be what was sampled, id for id"
    assert output.response_mask == [1] * len(turn)
    assert output.num_turns == 2
    return output


def check_output(output: AgentLoopOutput) -> None:
    """The lists of a trajectory keep rules R1, R2 and R5, and its fields are there.

    Raises:
        AssertionError: with the clause that is broken.
    """
    lengths = {
        "response_ids": len(output.response_ids),
        "response_mask": len(output.response_mask),
        "response_logprobs": len(output.response_logprobs),
        "weight_versions": len(output.weight_versions),
    }
    assert len(set(lengths.values())) == 1, f"unequal lengths (R2): {lengths}"
    assert set(output.response_mask) <= {0, 1}, "the mask holds 0 and 1"
    for mask, log_prob in zip(output.response_mask, output.response_logprobs, strict=True):
        assert mask or log_prob == 0.0, "tokens with mask 0 carry log-prob 0.0 (R1)"
    assert not output.response_mask or output.response_mask[-1] == 1, "the last token must be a sampled one (R5)"
    missing = [name for name in NEEDED_FIELDS if name not in output.extra_fields]
    missing += [name for name in NEEDED_METRICS if name not in output.metrics]
    assert not missing, f"missing in `extra_fields` or `metrics`: {missing}"


async def _check_engine_failure(spec: LoopSpec, renderer: ChatRenderer, row_fields: JsonDict) -> None:
    async def down(prompt_ids: list[int], sampling_params: JsonDict) -> Any:
        raise EngineUnavailable("down")

    context = make_context(renderer, down, tool_parser=HermesToolParser())
    try:
        await spec.build(context).run({}, messages=[{"role": "user", "content": "?"}], **row_fields)
    except EngineUnavailable:
        return
    raise AssertionError("the loop hid a failure of the engine: it must not catch EngineError (R9)")
