"""Filters, order and pages: the index answers as a filter in plain Python over the dumps does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_dumps import record, write_dump
from pydantic import ValidationError

from agentrl.observability.viewer.index import STEP_BITS, DumpIndex
from agentrl.observability.viewer.search import (
    Filter,
    Page,
    facets_of,
    groups_of,
    neighbours_of,
    page_of,
    rows_of_prompt,
)

WORDS = ("alpha", "Beta", "ß", "É", "42", "x", "\u0130", "<|end|>", "%_", "")
text = st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join)
records = st.fixed_dictionaries(
    {
        "input": text,
        "output": text,
        "score": st.sampled_from([0.0, 0.5, 1.0, -1.0, None, "n"]),
        "uid": st.sampled_from(["1-0", "1-1", "o'x"]),
        "data_source": st.sampled_from(["a", "b"]),
        "stop_reason": st.sampled_from(["completed", "length"]),
        "num_turns": st.sampled_from([2, 4, None]),
        "num_tool_calls": st.integers(0, 2),
        "response_ids": st.lists(st.integers(0, 9), max_size=3),
        "messages": st.lists(
            st.sampled_from(["calculator", "search"]).map(lambda name: {"role": "tool", "name": name}), max_size=2
        ),
    }
)
filters = st.fixed_dictionaries(
    {},
    optional={
        "step": st.integers(1, 3),
        "step_min": st.integers(1, 3),
        "step_max": st.integers(1, 3),
        "data_source": st.sampled_from(["a", "b", "c"]),
        "reward_min": st.sampled_from([-1.0, 0.0, 0.5]),
        "reward_max": st.sampled_from([0.0, 0.5, 1.0]),
        "stop_reason": st.sampled_from(["completed", "length", "x"]),
        "tool": st.sampled_from(["calculator", "search", "other"]),
        "turns_min": st.integers(2, 4),
        "turns_max": st.integers(2, 4),
        "tokens_min": st.integers(0, 3),
        "tokens_max": st.integers(0, 3),
        "text": st.sampled_from([*WORDS, "A", "a b", "BETA", "ss", "a\xfe", "alpha beta"]),
        "uid": st.sampled_from(["1-0", "o'x", "2-0"]),
    },
)
orders = st.fixed_dictionaries(
    {},
    optional={
        "sort": st.sampled_from(["step", "reward", "advantage", "turns", "tokens", "tool_calls"]),
        "order": st.sampled_from(["asc", "desc"]),
        "offset": st.integers(0, 4),
        "limit": st.integers(0, 5),
    },
)


def fits(item: dict[str, Any], step: int, wanted: dict[str, Any]) -> bool:
    """The filter in plain Python."""
    reward = item["score"] if isinstance(item["score"], float) else None
    numbers = {"step": step, "reward": reward, "turns": item["num_turns"], "tokens": len(item["response_ids"])}
    for name, number in numbers.items():
        low, high = wanted.get(f"{name}_min"), wanted.get(f"{name}_max")
        if (low is not None or high is not None) and number is None:
            return False
        if (low is not None and number < low) or (high is not None and number > high):
            return False
    equal = {"step": step, **{name: item[name] for name in ("data_source", "stop_reason", "uid")}}
    if any(name in wanted and wanted[name] != value for name, value in equal.items()):
        return False
    if "tool" in wanted and wanted["tool"] not in [message["name"] for message in item["messages"]]:
        return False
    needle = wanted.get("text", "").casefold()
    return needle in item["input"].casefold() or needle in item["output"].casefold()


@settings(max_examples=30)
@given(
    dumps=st.lists(st.lists(records, max_size=6), min_size=1, max_size=3),
    queries=st.lists(st.tuples(filters, orders), min_size=1, max_size=6),
)
def test_the_index_answers_as_plain_python_does(
    tmp_path_factory: pytest.TempPathFactory,
    dumps: list[list[dict[str, Any]]],
    queries: list[tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    folder = tmp_path_factory.mktemp("dumps")
    every = [(step, place, item) for step, items in enumerate(dumps, 1) for place, item in enumerate(items)]
    for step, items in enumerate(dumps, 1):
        write_dump(folder, step, [record(0, step, **item) for item in items])
    index = DumpIndex(folder)
    index.refresh()
    for wanted, order in queries:
        found = [(step << STEP_BITS | place, item) for step, place, item in every if fits(item, step, wanted)]
        total, rows = page_of(index, Page(**wanted, **order))
        assert total == len(found)
        reverse = order.get("order") == "desc"
        sort = order.get("sort", "step")
        values = {
            number: {
                "step": number,
                "reward": item["score"] if isinstance(item["score"], float) else None,
                "advantage": None,
                "turns": item["num_turns"],
                "tokens": len(item["response_ids"]),
                "tool_calls": item["num_tool_calls"],
            }[sort]
            for number, item in found
        }
        known = sorted((number for number in values if values[number] is not None), key=values.get, reverse=reverse)
        if reverse and sort != "step":  # equal ones stay in the order of the dumps
            known = sorted((n for n in values if values[n] is not None), key=lambda n: (-values[n], n))
        ids = known + [number for number in values if values[number] is None]
        offset, limit = order.get("offset", 0), order.get("limit", 100)
        assert [row["id"] for row in rows] == ids[offset : offset + limit]
    index.close()


@pytest.fixture
def index(tmp_path: Path) -> DumpIndex:
    for step in (1, 2, 3):
        write_dump(tmp_path, step, [record(number, step) for number in range(4)])
    made = DumpIndex(tmp_path)
    made.refresh()
    return made


def test_groups_of_a_step(index: DumpIndex) -> None:
    total, groups = groups_of(index, Filter(step=2), 0, 10)
    assert total == 2
    assert [(group["uid"], group["mean"], group["spread"]) for group in groups] == [
        ("2-0", 0.5, 0.5),
        ("2-1", 0.5, 0.5),
    ]
    assert [row["reward"] for row in groups[1]["rows"]] == [0.0, 1.0]
    assert groups_of(index, Filter(step=2), 1, 1)[1] == groups[1:]
    assert groups_of(index, Filter(uid="3-1"), 0, 10)[0] == 1
    assert groups_of(index, Filter(), 0, 2)[0] == 6


def test_a_group_without_any_reward(tmp_path: Path) -> None:
    write_dump(tmp_path, 1, [record(0, score=None)])
    made = DumpIndex(tmp_path)
    made.refresh()
    (group,) = groups_of(made, Filter(), 0, 1)[1]
    assert (group["mean"], group["spread"]) == (None, None)


def test_the_same_prompt_over_the_steps(index: DumpIndex) -> None:
    key = page_of(index, Page(step=1, limit=1))[1][0]["prompt_key"]
    assert [(row["step"], row["question"]) for row in rows_of_prompt(index, key)] == [
        (step, "What is 0 + 1?") for step in (1, 2, 3)
    ]
    assert rows_of_prompt(index, "none") == []


def test_neighbours_cross_the_steps(index: DumpIndex) -> None:
    ids = [row["id"] for row in page_of(index, Page())[1]]
    assert [neighbours_of(index, number) for number in ids] == list(
        zip([None, *ids[:-1]], [*ids[1:], None], strict=True)
    )


def test_facets(index: DumpIndex, tmp_path: Path) -> None:
    write_dump(tmp_path, 7, [record(0, 7, data_source="other", stop_reason="length", messages=None)])
    index.refresh()
    assert facets_of(index) == {
        "steps": [1, 7],
        "step_list": [1, 2, 3, 7],
        "data_sources": ["agentrl/arithmetic", "other"],
        "stop_reasons": ["completed", "length"],
        "tools": ["calculator"],
        "failed": 0,
    }


def test_a_search_sees_what_was_added_since(index: DumpIndex, tmp_path: Path) -> None:
    assert page_of(index, Page(text="NEEDLE"))[0] == 0
    write_dump(tmp_path, 4, [record(0, 4, output="a needle")])
    index.refresh()
    assert page_of(index, Page(text="NEEDLE"))[0] == 1
    assert page_of(index, Page(text="NEEDLE", step_max=3))[0] == 0


def test_a_search_does_not_run_over_from_a_prompt_into_its_answer(tmp_path: Path) -> None:
    write_dump(tmp_path, 1, [record(0, input="one", output="two"), record(1, input="three", output="four")])
    made = DumpIndex(tmp_path)
    made.refresh()
    for part in ("onetwo", "twothree", "one\ufffetwo"):
        assert page_of(made, Page(text=part))[0] == 0
    assert page_of(made, Page(text="E"))[0] == 2


@pytest.mark.parametrize(
    "given",
    [{"reward_min": float("nan")}, {"limit": 1001}, {"offset": -1}, {"sort": "x"}, {"order": "up"}, {"other": 1}],
)
def test_what_is_no_filter_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Page(**given)
