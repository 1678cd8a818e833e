"""Rows become samples, and what cannot be used is refused by file, row and column."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dataset_rows import row

from agentrl.config.data import DataConfig
from agentrl.data.dataset import RLHFDataset
from agentrl.data.preprocess.writing import write_parquet
from agentrl.errors import DataError, UserInputError
from agentrl.types import Sample

Parquet = Callable[..., str]


def read(file: str | list[str], **config: Any) -> RLHFDataset:
    return RLHFDataset(file, DataConfig(**config))


def test_a_row_becomes_a_sample(parquet: Parquet) -> None:
    file = parquet(
        row(
            7,
            ability="math",
            agent_name="tool_agent",
            extra_info={
                "index": 7,
                "tools_kwargs": {"calc": {"create_kwargs": {"ground_truth": "7"}, "release_kwargs": {"n": 1}}},
                "interaction_kwargs": {"name": "gsm8k", "query": "q"},
            },
            tool_config={"available_tools": ["calc"], "tool_format": "hermes"},
        )
    )
    assert read(file)[0] == Sample(
        index=0,
        prompt=[{"role": "user", "content": "question 7"}],
        data_source="openai/gsm8k",
        ability="math",
        reward_model={"style": "rule", "ground_truth": "7"},
        agent_name="tool_agent",
        tools_kwargs={"calc": {"create_kwargs": {"ground_truth": "7"}, "release_kwargs": {"n": 1}}},
        interaction_kwargs={"name": "gsm8k", "query": "q"},
        tool_config={"available_tools": ["calc"], "tool_format": "hermes"},
        extra_info={
            "index": 7,
            "tools_kwargs": {"calc": {"create_kwargs": {"ground_truth": "7"}, "release_kwargs": {"n": 1}}},
            "interaction_kwargs": {"name": "gsm8k", "query": "q"},
        },
    )


def test_fields_that_parquet_fills_in_with_none_are_not_given(parquet: Parquet) -> None:
    file = parquet(
        row(0, extra_info={"tools_kwargs": {"search": {"create_kwargs": {"url": "x"}}}}),
        row(1, extra_info={"tools_kwargs": {"code": {"execute_kwargs": {"lang": "py"}}}}, agent_name="react_agent"),
        row(2),
    )
    first, second, third = (read(file)[i] for i in range(3))
    assert first.tools_kwargs == {"search": {"create_kwargs": {"url": "x"}}}
    assert second.tools_kwargs == {"code": {"execute_kwargs": {"lang": "py"}}}
    assert (third.tools_kwargs, third.extra_info, third.agent_name) == ({}, {}, None)


def test_kwargs_are_accepted_at_the_top_level(parquet: Parquet) -> None:
    file = parquet(row(tools_kwargs={"calc": {"create_kwargs": {"a": 1}}}, interaction_kwargs={"name": "gsm8k"}))
    sample = read(file)[0]
    assert sample.tools_kwargs == {"calc": {"create_kwargs": {"a": 1}}}
    assert sample.interaction_kwargs == {"name": "gsm8k"}


@pytest.mark.parametrize(
    ("prompt", "messages"),
    [
        ("hello", [{"role": "user", "content": "hello"}]),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], None),
    ],
)
def test_prompts_as_text_and_as_text_parts(parquet: Parquet, prompt: Any, messages: Any) -> None:
    expected = messages or [{"role": "user", "content": "ab"}]
    assert read(parquet(row(prompt=prompt)))[0].prompt == expected


SPOKEN = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2 in \u00bd?"}]


@pytest.mark.parametrize(
    ("prompt", "messages"),
    [
        (json.dumps(SPOKEN), SPOKEN),
        ("\n " + json.dumps(SPOKEN, indent=2, ensure_ascii=False), SPOKEN),
        (json.dumps(SPOKEN[1]), SPOKEN[1:]),
        (json.dumps([{**SPOKEN[1], "name": None}]), SPOKEN[1:]),
        ("[1, 2, 3]", None),
        ("[]", None),
        ("{x}", None),
        ('{"city": "Rome"}', None),
        ('"hello"', None),
    ],
)
def test_a_prompt_that_is_json_text_of_messages_holds_them(parquet: Parquet, prompt: str, messages: Any) -> None:
    assert read(parquet(row(prompt=prompt)))[0].prompt == (messages or [{"role": "user", "content": prompt}])


def test_messages_in_json_text_are_checked_like_any(parquet: Parquet) -> None:
    with pytest.raises(DataError, match=r"column 'prompt\[0\].role': got 'robot'"):
        read(parquet(row(prompt='[{"role": "robot", "content": "x"}]')))[0]


def test_samples_hold_plain_python_values(parquet: Parquet) -> None:
    sample = read(parquet(row(reward_model={"style": "rule", "ground_truth": {"target": ["a", "b"], "n": 2.5}})))[0]
    assert sample.ground_truth == {"target": ["a", "b"], "n": 2.5}
    assert type(sample.ground_truth["target"]) is list
    assert pickle.loads(pickle.dumps(sample)) == sample


@pytest.mark.parametrize(
    ("changes", "column", "wanted"),
    [
        ({"prompt": []}, "prompt", "a list of {role, content}, or text"),
        ({"prompt": None}, "prompt", "a list of {role, content}, or text"),
        ({"prompt": [{"role": "robot", "content": "x"}]}, "prompt[0].role", "one of system, developer"),
        ({"prompt": [{"role": "user", "content": 5}]}, "prompt[0].content", "text"),
        ({"prompt": [{"role": "user", "content": [{"type": "image", "text": "x"}]}]}, "prompt[0].content", "text"),
        ({"data_source": None}, "data_source", "text"),
        ({"data_source": ""}, "data_source", "text"),
        ({"data_source": 3}, "data_source", "text"),
        ({"agent_name": 3}, "agent_name", "text"),
        ({"reward_model": "72"}, "reward_model", "a struct"),
        ({"reward_model": {"style": "vibes"}}, "reward_model.style", "one of rule, model, short"),
        ({"reward_model": {"style": "shrt"}}, "reward_model.style", "Did you mean 'short'"),
        ({"style": "model"}, "style", "the same as reward_model.style ('rule')"),
        ({"tools": [{"description": "x"}]}, "tools[0]", "a tool name, or {name, description, parameters}"),
        ({"tools": ["a"], "tool_config": {"available_tools": ["a"]}}, "tools", "the two say the same"),
        ({"tool_config": {"max_tool_calls": 0}}, "tool_config.max_tool_calls", "a whole number above 0"),
        ({"tool_config": {"timeout": -1.5}}, "tool_config.timeout", "a positive number of seconds"),
        ({"tool_config": {"max_calls": 1}}, "tool_config.max_calls", "Did you mean 'max_tool_calls'"),
        ({"extra_info": "x"}, "extra_info", "a struct"),
        ({"extra_info": {"tools_kwargs": "x"}}, "extra_info.tools_kwargs", "a struct"),
        ({"tools_kwargs": {"c": {"create_kwarg": {"a": 1}}}}, "tools_kwargs.c.create_kwarg", "mean 'create_kwargs'"),
        ({"tools_kwargs": {"calc": {"create_kwargs": "a"}}}, "tools_kwargs.calc.create_kwargs", "a struct"),
        ({"tools_kwargs": {"calc": "a"}}, "tools_kwargs.calc", "a struct of create_kwargs"),
        ({"interaction_kwargs": {"query": "x"}}, "interaction_kwargs.name", "the name of an interaction"),
        ({"tool_config": {"available_tool": ["a"]}}, "tool_config.available_tool", "Did you mean 'available_tools'"),
        ({"tool_config": {"available_tools": "a"}}, "tool_config.available_tools", "a list of tool names"),
        ({"extra_info": {"need_tools_kwargs": True}}, "extra_info.need_tools_kwargs", "false, or"),
        (
            {"interaction_kwargs": {"name": "a"}, "extra_info": {"interaction_kwargs": {"name": "b"}}},
            "interaction_kwargs",
            "the same as extra_info.interaction_kwargs",
        ),
    ],
)
def test_bad_cells_are_named(parquet: Parquet, changes: dict[str, Any], column: str, wanted: str) -> None:
    bad = row(1, **changes)
    file = parquet(bad)
    with pytest.raises(DataError) as caught:
        read(file)[0]
    assert (caught.value.file, caught.value.row, caught.value.column) == (file, 0, column)
    assert wanted in caught.value.wanted
    assert file in str(caught.value)


def test_the_row_number_is_that_of_its_file(parquet: Parquet) -> None:
    good = parquet(row(0), row(1), name="a.parquet")
    bad = parquet(row(2), row(3, agent_name="x", data_source=""), name="b.parquet")
    dataset = read([good, bad])
    assert dataset[2].index == 2
    with pytest.raises(DataError, match=r"b\.parquet, row 1, column 'data_source'"):
        dataset[3]


def test_missing_file() -> None:
    with pytest.raises(DataError, match=r"nowhere\.parquet: got no such file"):
        read("nowhere.parquet")


@pytest.mark.parametrize(("left_out", "others"), [("prompt", "data_source"), ("data_source", "prompt")])
def test_parquet_without_a_column_names_those_it_has(parquet: Parquet, left_out: str, others: str) -> None:
    bad = row()
    del bad[left_out]
    with pytest.raises(DataError, match=rf"column '{left_out}': got only the columns {others}"):
        read(parquet(bad))


def test_a_folder_says_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"got a folder without a parquet file, wanted a parquet file, or a glob such"):
        read(str(tmp_path))
    write_parquet([row()], tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"got a folder with train\.parquet, wanted a parquet file, or a glob such as"):
        read(str(tmp_path))


def test_demonstrations_are_told_to_be_of_another_command(tmp_path: Path) -> None:
    write_parquet([{"messages": [{"role": "user", "content": "a"}]}], tmp_path / "chats.parquet")
    with pytest.raises(DataError, match=r"wanted this column; conversations \(`messages`\) are demonstrations for"):
        read(str(tmp_path / "chats.parquet"))


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_text('{"prompt": "x"}')
    with pytest.raises(DataError, match="not readable as parquet"):
        read(str(tmp_path / "rows.parquet"))


def test_prompt_key_names_the_column(parquet: Parquet) -> None:
    changed = row()
    changed["question"] = changed.pop("prompt")
    assert read(parquet(changed), prompt_key="question")[0].prompt[0]["content"] == "question 0"


def test_unread_columns_are_said(parquet: Parquet, caplog: pytest.LogCaptureFixture) -> None:
    read(parquet(row(level="hard")))
    assert "agentrl does not read the columns level" in caplog.text


@pytest.mark.parametrize("cell", [["x"], [{"bytes": b"PNG", "path": None}], "photo.png", {"path": "a.mp4"}])
@pytest.mark.parametrize("column", ["images", "image", "videos", "audio", "Images", "image_urls", "multi_modal_data"])
def test_what_the_model_would_have_to_see_is_refused(parquet: Parquet, column: str, cell: Any) -> None:
    with pytest.raises(DataError) as caught:
        read(parquet(row(0, **{column: None}), row(1, **{column: cell})))
    assert (caught.value.row, caught.value.column) == (1, column)
    assert "the model reads text only" in caught.value.wanted


@pytest.mark.parametrize("cell", [None, [], "", [{"bytes": None, "path": None}]])
def test_an_empty_column_of_images_says_nothing(parquet: Parquet, cell: Any) -> None:
    assert len(read(parquet(row(images=cell), row(images=cell)))) == 2


def test_lists_and_globs(parquet: Parquet, tmp_path: Path) -> None:
    second = parquet(row(2), name="part-2.parquet")
    first = parquet(row(0), row(1), name="part-1.parquet")
    dataset = read(str(tmp_path / "part-*.parquet"))
    assert dataset.files == [first, second]
    assert [dataset[i].ground_truth for i in range(3)] == ["0", "1", "2"]
    assert [dataset[i].index for i in range(3)] == [0, 1, 2]
    with pytest.raises(DataError, match="no file that matches"):
        read(str(tmp_path / "nothing-*.parquet"))
    with pytest.raises(DataError, match="an empty list"):
        read([])


def test_max_samples(parquet: Parquet) -> None:
    file = parquet(*map(row, range(5)))
    assert len(RLHFDataset(file, DataConfig(), max_samples=3)) == 3
    assert len(RLHFDataset(file, DataConfig(), max_samples=30)) == 5
    with pytest.raises(DataError, match="no rows"):
        RLHFDataset(file, DataConfig(), max_samples=0)


def test_long_prompts_are_dropped_and_counted_or_an_error(parquet: Parquet) -> None:
    file = parquet(row(1), row(100000), row(2))

    def count(sample: Sample) -> int:
        return len(sample.prompt[0]["content"])

    dataset = read(file)
    with pytest.raises(DataError, match=r"row 1, column 'prompt': got 15 tokens, wanted at most 10 .*filter_overlong"):
        dataset.filter_overlong(count, 10, drop=False)
    assert dataset.filter_overlong(count, 10, drop=True) == 1
    assert [dataset[i].ground_truth for i in range(len(dataset))] == ["1", "2"]
    assert [dataset[i].index for i in range(len(dataset))] == [0, 2]
    with pytest.raises(DataError, match="only prompts over 1 tokens"):
        dataset.filter_overlong(count, 1, drop=True)


def test_files_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    target = write_parquet([row(1)], tmp_path / "rows.parquet")
    before = target.read_bytes()

    def full_disk(table: Any, path: Path) -> None:
        path.write_bytes(before[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full_disk)
    with pytest.raises(UserInputError, match=r"cannot write .*rows\.parquet: No space left on device"):
        write_parquet([row(2)], target)
    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]


def test_rows_that_do_not_fit_parquet(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="cannot be written as parquet"):
        write_parquet([row(1), row(2, ability={"a": 1}), row(3, ability="x")], tmp_path / "rows.parquet")
    with pytest.raises(UserInputError, match="no rows to write"):
        write_parquet([], tmp_path / "rows.parquet")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserInputError, match="cannot write"):
        write_parquet([row(1)], tmp_path / "file" / "rows.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "prompt",
    [
        '[{"role": "user"',
        '[{"role": "user", "content": "2+2"}',
        "[{'role': 'user', 'content': '2+2'}]",
        '[{"from": "human", "value": "2+2"}]',
        '{"messages": [{"role": "user", "content": "2+2"}]}',
        "",
        "  \n",
    ],
)
def test_a_text_that_was_meant_as_messages_is_not_a_question(parquet: Parquet, prompt: str) -> None:
    with pytest.raises(DataError, match=r"wanted a list of \{role, content\}, or text that is not empty"):
        read(parquet(row(prompt=prompt)))[0]


def test_messages_behind_a_byte_order_mark(parquet: Parquet) -> None:
    (sample,) = read(parquet(row(prompt='\ufeff[{"role": "user", "content": "2+2"}]')))
    assert sample.prompt == [{"role": "user", "content": "2+2"}]


def test_images_within_a_message_are_refused(parquet: Parquet) -> None:
    with pytest.raises(DataError, match=r"images.*the model reads text only"):
        read(parquet(row(prompt=[{"role": "user", "content": "q", "images": ["a.png"]}])))[0]


def test_tools_are_names_or_descriptions(parquet: Parquet) -> None:
    plain = {"name": "calc", "description": "Sums.", "parameters": {"expression": {"type": "string"}}}
    openai = {"type": "function", "function": plain}
    for given in (
        {"tools": [plain]},
        {"tools": [openai]},
        {"tools": json.dumps([plain])},
        {"tool_config": {"available_tools": [{**plain, "parameters": json.dumps(plain["parameters"])}]}},
    ):
        sample = read(parquet(row(**given)))[0]
        assert sample.tool_config == {"available_tools": ["calc"], "tools": {"calc": plain}}
    assert read(parquet(row(tools=["calc", "other"])))[0].tool_config == {"available_tools": ["calc", "other"]}


def test_a_short_answer_has_the_style_of_its_row(parquet: Parquet) -> None:
    inside = read(parquet(row(reward_model={"style": "short", "ground_truth": "7"})))[0]
    beside = read(parquet(row(style="short", reward_model={"ground_truth": "7"})))[0]
    assert inside.reward_model == beside.reward_model == {"style": "short", "ground_truth": "7"}


def test_function_calling_is_the_format_of_the_run(parquet: Parquet) -> None:
    config = {"tool_format": "function_calling", "max_tool_calls": 3, "timeout": 30}
    sample = read(parquet(row(tool_config=config)))[0]
    assert (sample.tool_format, sample.tool_config) == (None, config)
