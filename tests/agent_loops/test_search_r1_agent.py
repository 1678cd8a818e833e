"""Search-R1: tags, documents with mask 0, corrections, and one last generation after the searches."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.agent_loops.search_r1_agent import SearchR1Agent, SearchR1Turns
from agentrl.errors import PluginError
from agentrl.plugins.adapt import schema_of
from agentrl.trainer.sft_data import render_example
from agentrl.types import LoopLimits, StopReason
from tests.agent_loops.exactness import check_exact
from tests.agent_loops.player import Player

SEARCH = "<think>Who?</think>\n<search>capital of France</search>"
ANSWER = "<think>I know.</think>\n<answer>Paris</answer>"


async def search(query_list: list[str]) -> str:
    """Find documents."""
    return f"Doc 1 about {query_list[0]}\n"


async def play(player: Player, *texts: str, tools: Any = (search,), end: bool = False, **kwargs: Any) -> Any:
    replies = [player.reply(text, end=end) for text in texts]
    output = await player.play(replies, agent="search_r1_agent", tools=tools, **kwargs)
    check_exact(player.engine, output)
    return output


async def test_a_search_and_an_answer(player: Player) -> None:
    output = await play(player, SEARCH, ANSWER, stop=["###"])
    assert player.engine.requests[0][1]["stop"] == ["###", "</search>", "</answer>"]
    assert player.renderer.decode(output.response_ids) == (
        f"{SEARCH}\n\n<information>Doc 1 about capital of France</information>\n\n{ANSWER}"
    )
    documents = len(output.response_ids) - len(player.reply(SEARCH + ANSWER, end=False))
    assert output.response_mask == [1] * len(SEARCH) + [0] * documents + [1] * len(ANSWER)
    assert output.stop_reason is StopReason.COMPLETED
    assert output.extra_fields["num_tool_calls"] == output.extra_fields["num_searches"] == 1
    assert output.num_turns == 4


async def test_demonstrations_are_rendered_as_the_loop_builds_them(player: Player) -> None:
    output = await play(player, SEARCH, SEARCH, ANSWER)
    shown = render_example(player.renderer, output.extra_fields["messages"], in_turn_text="\n\n{content}\n\n")
    end = player.renderer.turn_end_ids  # the loop stops at `</answer>`, before the model would end its turn
    assert shown.ids == output.prompt_ids + output.response_ids + end
    assert shown.mask == [0] * len(output.prompt_ids) + output.response_mask + [1] * len(end)


async def test_the_prompt_is_the_rows_alone(player: Player) -> None:
    output = await play(player, ANSWER)
    assert output.prompt_ids == player.renderer.render_prompt([{"role": "user", "content": "What is 6 * 7?"}])


async def test_what_is_neither_is_corrected(player: Player) -> None:
    output = await play(player, "It is Paris.", "<search> </search>", ANSWER)
    corrections = [m["content"] for m in output.extra_fields["messages"][2:-1:2]]
    assert len(corrections) == 2
    assert all("neither a search nor an answer" in text for text in corrections)
    assert output.metrics["num_tool_errors"] == 2
    assert output.extra_fields["num_searches"] == 0
    assert output.stop_reason is StopReason.COMPLETED


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_after_the_searches_one_last_generation(player: Player, turns: int) -> None:
    output = await play(player, *[SEARCH] * (turns + 1), options={"max_turns": turns})
    assert len(player.engine.requests) == turns + 1
    assert output.extra_fields["num_searches"] == output.extra_fields["num_tool_calls"] == turns
    assert output.stop_reason is StopReason.MAX_TURNS
    output = await play(player, *[SEARCH] * turns, ANSWER, options={"max_turns": turns})
    assert output.stop_reason is StopReason.COMPLETED


async def test_corrections_use_up_no_search_and_do_not_go_on_for_ever(player: Player) -> None:
    output = await play(player, "Hm.", SEARCH, ANSWER, options={"max_turns": 1})
    assert (output.extra_fields["num_searches"], output.stop_reason) == (1, StopReason.COMPLETED)
    output = await play(player, *["Hm."] * 3, options={"max_turns": 2})
    assert output.stop_reason is StopReason.MAX_TURNS


async def test_the_runs_own_limits_count_too(player: Player) -> None:
    limits = LoopLimits(prompt_length=4096, response_length=4096, max_assistant_turns=1)
    assert (await play(player, SEARCH, limits=limits)).stop_reason is StopReason.MAX_TURNS
    short = LoopLimits(prompt_length=4096, response_length=len(SEARCH) + 20)
    assert (await play(player, SEARCH, limits=short)).stop_reason is StopReason.LENGTH


async def test_a_turn_that_the_model_ended_is_answered_by_a_user_message(player: Player) -> None:
    output = await play(player, "It is Paris.", ANSWER, end=True)
    tail = player.renderer.decode(output.response_ids)
    assert "<|im_end|>\n<|im_start|>user\nThat was neither" in tail


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (SEARCH, ["capital of France"]),
        (SEARCH + ">\n\nand", ["capital of France"]),
        ("<think>so <search>q</search>", ["q"]),
        ("<search>a <search>b</search>", ["b"]),
        ("<answer>x <search>q</search>", ["q"]),
        ("<search>q</search><answer>x</answer>", ["q"]),
        ("<answer>x</answer><search>q</search>", []),
        ("<search>q", None),
        ("q</search>", None),
        ("x</answer>", None),
        ("<search></search>", None),
        ("", None),
    ],
)
def test_the_first_of_the_two_decides(text: str, calls: list[str] | None) -> None:
    turn = SearchR1Turns().parse(text, [schema_of(search, {})])
    if calls is None:
        assert turn.errors
        assert not turn.tool_calls
        return
    assert not turn.errors
    assert [call.arguments for call in turn.tool_calls] == [{"query_list": [query]} for query in calls]
    for call, query in zip(turn.tool_calls, calls, strict=True):
        assert call.arguments_span is not None
        assert text[slice(*call.arguments_span)] == query


async def test_a_tool_that_takes_one_query(player: Player) -> None:
    async def find(query: str) -> str:
        """Find."""
        return query.upper()

    find.__name__ = "search"
    output = await play(player, SEARCH, ANSWER, tools=[find])
    assert "<information>CAPITAL OF FRANCE</information>" in player.renderer.decode(output.response_ids)


def test_what_cannot_work_is_refused_at_the_start(player: Player) -> None:
    question = [{"role": "user", "content": "?"}]
    with pytest.raises(PluginError, match="needs a tool named 'search'"):
        SearchR1Agent.render_prompt(player.renderer, question, [])
    with pytest.raises(PluginError, match="`max_turns`: got -1, wanted a whole number of at least 0"):
        SearchR1Agent.render_prompt(player.renderer, question, [schema_of(search, {})], max_turns=-1)
