"""Demonstrations as token ids: the mask, the stream of the agent loop, files and rows that cannot be used."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.chat.renderer import ChatRenderer
from agentrl.cli.demo.tokenizer import build_tokenizer
from agentrl.config.sft import MultiturnConfig, SFTDataConfig
from agentrl.errors import DataError, TemplateError
from agentrl.testing.models import byte_tokenizer
from agentrl.trainer.sft_data import Example, SFTDataset, render_example
from agentrl.trajectory import Trajectory
from agentrl.types import GenerationOutput

CALL = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "6*7"}}}
TOOLS = [{"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}]
MESSAGES = [
    {"role": "user", "content": "6*7"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "42"},
    {"role": "assistant", "content": "It is 42."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes."},
]


@pytest.fixture(params=[byte_tokenizer, build_tokenizer], ids=["bytes", "demo"])
def renderer(request) -> ChatRenderer:
    return ChatRenderer(request.param())


def masked_runs(renderer: ChatRenderer, example: Example) -> list[str]:
    """Text of each run of mask 1, special tokens kept."""
    runs: list[list[int]] = [[]]
    for token, flag in zip(example.ids, example.mask, strict=True):
        if flag:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [renderer.tokenizer.decode(run) for run in runs if run]


def plain(example: Example) -> Example:
    return Example(list(example.ids), list(example.mask))


def test_exactly_what_the_assistant_wrote_is_learned(renderer):
    example = render_example(renderer, MESSAGES, TOOLS)
    assert masked_runs(renderer, example) == [
        '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6*7"}}\n</tool_call><|im_end|>',
        "It is 42.<|im_end|>",
        "Yes.<|im_end|>",
    ]


def test_the_stream_is_the_canonical_rendering_up_to_the_last_turn(renderer):
    example = render_example(renderer, MESSAGES, TOOLS)
    canonical = renderer.render(MESSAGES, TOOLS)
    assert canonical[: len(example.ids)] == example.ids
    assert renderer.tokenizer.decode(canonical[len(example.ids) :]) == "\n"


def test_the_stream_is_what_an_agent_loop_builds(renderer):
    example = render_example(renderer, MESSAGES, TOOLS)
    prompt = renderer.render_prompt(MESSAGES[:1], TOOLS)
    trajectory = Trajectory(prompt, 4096)
    turns = [example.ids[i] for i, flag in enumerate(example.mask) if flag]
    end = renderer.tokenizer.eos_token_id
    for following in (MESSAGES[2:3], MESSAGES[4:5], []):
        cut = turns.index(end) + 1
        sampled, turns = turns[:cut], turns[cut:]
        trajectory.append_completion(GenerationOutput(sampled, [0.0] * cut, [0] * cut, "stop"))
        trajectory.append_observation(renderer.delta(following, sampled_ids=sampled, tools=TOOLS))
    assert trajectory.prompt_ids + trajectory.response_ids == example.ids
    assert [0] * len(prompt) + trajectory.response_mask == example.mask


def test_messages_after_the_last_assistant_turn_are_left_out(renderer):
    whole = render_example(renderer, MESSAGES[:4], TOOLS)
    assert render_example(renderer, MESSAGES[:5], TOOLS) == whole


def test_look_alikes_of_special_tokens_in_content_stay_text(renderer):
    example = render_example(renderer, [{"role": "user", "content": "<|im_end|>"}, MESSAGES[3]])
    assert example.ids.count(renderer.tokenizer.eos_token_id) == 2


def test_what_stands_within_a_turn_is_not_learned(renderer):
    search, answer = "<search>6*7</search>", "<answer>42</answer>"
    documents = {"role": "tool", "content": "<information>42<|im_end|></information>"}
    talk = [
        MESSAGES[0],
        {"role": "assistant", "content": search},
        documents,
        documents,
        {"role": "assistant", "content": answer},
        *MESSAGES[4:],
    ]
    example = render_example(renderer, talk, in_turn_text="\n{content}\n")
    assert masked_runs(renderer, example) == [search, f"{answer}<|im_end|>", "Yes.<|im_end|>"]
    assert renderer.tokenizer.decode(example.ids).count("<|im_start|>assistant") == 2
    after = renderer.render(MESSAGES[4:])
    assert example.ids[-len(after) :] == after or example.ids[-len(after) + 1 :] == after[:-1]
    assert example.ids.count(renderer.tokenizer.eos_token_id) == 4  # two users, two turns: a document has none


def test_a_call_apart_from_the_text_cannot_stand_within_a_turn(renderer):
    with pytest.raises(TemplateError, match=r"message 1 \(assistant\) has `tool_calls`.*call in its `content`"):
        render_example(renderer, MESSAGES[:4], TOOLS, in_turn_text="{content}")


def test_a_template_that_changes_the_turn_is_refused():
    template = "{% for m in messages %}{{ m.role + ':' + m.content + '<|im_end|>' }}{% endfor %}"
    other = "{% if add_generation_prompt %}<|im_start|>other{% endif %}"
    renderer = ChatRenderer(byte_tokenizer(), chat_template=template + other)
    with pytest.raises(TemplateError, match="continuation of its generation prompt"):
        render_example(renderer, MESSAGES[2:4])


def test_a_turn_ends_where_generation_ends():
    """Phi-3's template puts another stop token at the end of a conversation, which a policy never samples."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% else %}<|endoftext|>{% endif %}"
    )
    tokenizer = byte_tokenizer()
    stops = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    renderer = ChatRenderer(tokenizer, chat_template=template, stop_token_ids=stops)
    example = render_example(renderer, [MESSAGES[0], MESSAGES[3], *MESSAGES[4:]])
    assert masked_runs(renderer, example) == ["It is 42.<|im_end|>", "Yes.<|im_end|>"]


def test_a_template_that_leaves_out_calls_is_refused():
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    renderer = ChatRenderer(byte_tokenizer(), chat_template=template)
    with pytest.raises(
        TemplateError, match=r"does not render the call of calculator in message 1.*model\.chat_template"
    ):
        render_example(renderer, MESSAGES, TOOLS)


def test_thoughts_that_the_generation_prompt_begins_are_learned():
    """DeepSeek-R1's template leaves thoughts out, and its generation prompt begins one."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    )
    renderer = ChatRenderer(byte_tokenizer(), chat_template=template)
    thought = {"role": "assistant", "content": "<think>\nHm.\n</think>\n42"}
    example = render_example(renderer, [MESSAGES[0], thought, MESSAGES[4], thought])
    assert masked_runs(renderer, example) == ["Hm.\n</think>\n42<|im_end|>"] * 2
    assert renderer.tokenizer.decode(example.ids).count("<think>\n") == 2
    with pytest.raises(TemplateError, match="continuation of its generation prompt"):
        render_example(renderer, [MESSAGES[0], MESSAGES[3]])


def test_thoughts_that_the_template_leaves_out_are_told(tmp_path, renderer, caplog):
    thought = {**MESSAGES[5], "reasoning_content": "Hm."}
    rows = [{"messages": [MESSAGES[4], thought]}, {"messages": MESSAGES[4:]}]
    SFTDataset(write(tmp_path / "a.parquet", rows), SFTDataConfig(), renderer)
    assert "leaves out `reasoning_content` in 1 conversations" in caplog.text


@pytest.mark.parametrize("column", ["images", "videos"])
def test_pictures_beside_the_conversations_are_refused(tmp_path, renderer, column):
    talk = [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "b"}]
    pq.write_table(pa.Table.from_pylist([{"messages": talk, column: [b"a"]}]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=rf"row 0, column '{column}': .*supervised training reads text only"):
        SFTDataset(str(tmp_path / "a.parquet"), SFTDataConfig(), renderer)


def test_a_template_that_writes_arguments_as_text(tmp_path):
    """DeepSeek's: `'<tool_call>' + arguments` fails for an object."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}"
        "{{ c.function.name + ' ' + c.function.arguments }}{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    renderer = ChatRenderer(byte_tokenizer(), chat_template=template)
    path = write(tmp_path / "a.parquet", [{"messages": as_text(MESSAGES[:2])}])
    (example,) = SFTDataset(path, SFTDataConfig(), renderer).examples
    assert masked_runs(renderer, example) == ['calculator {"expression": "6*7"}<|im_end|>']


def write(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def as_text(messages):
    """Arguments as JSON text, as parquet files hold them."""
    changed = {"type": "function", "function": {"name": "calculator", "arguments": json.dumps({"expression": "6*7"})}}
    return [{**m, "tool_calls": [changed]} if m.get("tool_calls") else m for m in messages]


def test_rows_with_arguments_as_text_and_unified_structs_read_the_same(tmp_path, renderer):
    path = write(tmp_path / "a.parquet", [{"messages": as_text(MESSAGES)}, {"messages": MESSAGES[4:]}])
    config = SFTDataConfig(tool_config_path="tools/calculator.yaml")
    dataset = SFTDataset(path, config, renderer)
    assert masked_runs(renderer, dataset.examples[0])[0].startswith('<tool_call>\n{"name": "calculator"')
    assert masked_runs(renderer, dataset.examples[1]) == ["Yes.<|im_end|>"]
    assert "calculator" in renderer.decode(dataset.examples[1].ids)


def test_a_rows_own_tools_replace_those_of_the_file(tmp_path, renderer):
    tools = json.dumps([{"type": "function", "function": {"name": "lookup", "parameters": {}}}])
    path = write(tmp_path / "a.parquet", [{"messages": MESSAGES[4:], "tools": tools}, {"messages": MESSAGES[4:]}])
    dataset = SFTDataset(path, SFTDataConfig(tool_config_path="tools/calculator.yaml"), renderer)
    first, second = (renderer.decode(example.ids) for example in dataset.examples)
    assert "lookup" in first
    assert "calculator" not in first
    assert "calculator" in second


@pytest.mark.parametrize(
    ("row", "got"),
    [
        ({"messages": []}, "column 'messages'.*a list of"),
        ({"messages": [{"role": "user", "content": "1"}]}, "roles user"),
        ({"messages": [{"role": "assistant", "content": "1"}]}, "roles assistant"),
        ({"messages": [{"role": "robot", "content": "1"}]}, r"messages\[0\].*a role of"),
        ({"messages": [*as_text(MESSAGES)[:1], {"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "tool_calls"),
        (
            {
                "messages": [
                    MESSAGES[0],
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
                ]
            },
            "arguments.*JSON",
        ),
        ({"messages": MESSAGES[4:], "tools": "[1"}, "column 'tools'"),
    ],
)
def test_a_bad_row_is_named(tmp_path, renderer, row, got):
    path = write(tmp_path / "bad.parquet", [row])
    with pytest.raises(DataError, match=rf"bad.parquet, row 0.*{got}"):
        SFTDataset(path, SFTDataConfig(), renderer)


def test_files_that_cannot_be_used(tmp_path, renderer):
    with pytest.raises(DataError, match="no such file"):
        SFTDataset(str(tmp_path / "none.parquet"), SFTDataConfig(), renderer)
    other = write(tmp_path / "other.parquet", [{"prompt": "x"}])
    with pytest.raises(DataError, match=r"no such column among prompt"):
        SFTDataset(other, SFTDataConfig(), renderer)
    text = tmp_path / "text.parquet"
    text.write_text("no parquet")
    with pytest.raises(DataError, match="not readable as parquet"):
        SFTDataset(str(text), SFTDataConfig(), renderer)


def test_long_conversations_are_refused_or_counted(tmp_path, renderer):
    long = [{"role": "user", "content": "7" * 300}, MESSAGES[5]]
    path = write(tmp_path / "a.parquet", [{"messages": MESSAGES[4:]}, {"messages": long}])
    with pytest.raises(DataError, match=r"row 1.*tokens.*at most 200"):
        SFTDataset(path, SFTDataConfig(max_length=200), renderer)
    dataset = SFTDataset(path, SFTDataConfig(max_length=200, filter_overlong=True), renderer)
    assert (len(dataset), dataset.left_out) == (1, 1)
    with pytest.raises(DataError, match="no conversation that can be used"):
        SFTDataset(path, SFTDataConfig(max_length=3, filter_overlong=True), renderer)


def test_truncation_cuts_one_side_and_leaves_out_what_has_nothing_to_learn(tmp_path, renderer, caplog):
    long = [{"role": "user", "content": "7" * 300}, MESSAGES[5]]
    path = write(tmp_path / "a.parquet", [{"messages": MESSAGES[4:]}, {"messages": long}])
    whole = [plain(example) for example in SFTDataset(path, SFTDataConfig(), renderer).examples]
    left = SFTDataset(path, SFTDataConfig(max_length=100, truncation="left"), renderer)
    assert [plain(example) for example in left.examples] == [
        whole[0],
        Example(whole[1].ids[-100:], whole[1].mask[-100:]),
    ]
    assert "cut 1 of 2 conversations (left) to 100 tokens" in caplog.text
    right = SFTDataset(path, SFTDataConfig(max_length=100, truncation="right"), renderer)
    assert [plain(example) for example in right.examples] == whole[:1]  # of the other one, only its question is left
    assert "left out 1 conversations: nothing to learn" in caplog.text


def test_a_prompt_and_a_response_are_a_conversation_of_one_turn(tmp_path, renderer):
    wanted = render_example(renderer, MESSAGES[4:])
    rows = [
        ("a", {"prompt": "Sure?", "response": "Yes."}, {}),
        ("b", {"question": "Sure?", "answer": "Yes."}, {"prompt_key": "question", "response_key": "answer"}),
        ("c", {"prompt": [{"role": "user", "content": "Sure?"}], "response": "Yes.", "messages": MESSAGES[:2]}, None),
        (
            "d",
            {"extra_info": {"in": {"question": "Sure?"}, "answer": "Yes."}},
            {
                "prompt_key": "extra_info",
                "response_key": "extra_info",
                "prompt_dict_keys": ["in", "question"],
                "response_dict_keys": ["answer"],
            },
        ),
    ]
    for name, row, keys in rows:
        config = SFTDataConfig(multiturn=MultiturnConfig(enable=False)) if keys is None else SFTDataConfig(**keys)
        path = write(tmp_path / f"{name}.parquet", [row])
        assert [plain(example) for example in SFTDataset(path, config, renderer).examples] == [wanted], name


@pytest.mark.parametrize(
    ("row", "keys", "said"),
    [
        ({"question": "1", "answer": "2"}, {}, r"'messages'.*no such column among question, answer.*data\.prompt_key"),
        (
            {"question": "1", "answer": "2"},
            {"prompt_key": "question", "response_key": "answr"},
            r"column 'answr'.*no such column among question, answer.*Did you mean 'answer'",
        ),
        (
            {"extra_info": {"question": "1"}, "response": "2"},
            {"prompt_key": "extra_info", "prompt_dict_keys": ["questoin"]},
            r"row 0, column 'extra_info': got a struct of question, wanted a field 'questoin'.*Did you mean 'question'",
        ),
        (
            {"prompt": "1", "response": "2"},
            {"prompt_dict_keys": ["question"]},
            r"row 0, column 'prompt': got '1', wanted a struct with the field 'question'",
        ),
        ({"prompt": "1", "response": ""}, {}, r"row 0, column 'response': got '', wanted text"),
        ({"prompt": [MESSAGES[0], MESSAGES[3]], "response": "2"}, {"response_key": "response"}, "an assistant turn at"),
        ({"messages": MESSAGES[4:], "enable_thinking": "yes"}, {}, "column 'enable_thinking'.*true or false"),
    ],
)
def test_columns_and_cells_that_cannot_be_used(tmp_path, renderer, row, keys, said):
    with pytest.raises(DataError, match=said):
        SFTDataset(write(tmp_path / "bad.parquet", [row]), SFTDataConfig(**keys), renderer)


def test_a_file_without_rows_is_named(tmp_path, renderer):
    empty = pa.table({"messages": pa.array([], pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])))})
    pq.write_table(empty, tmp_path / "empty.parquet")
    with pytest.raises(DataError, match=r"empty\.parquet: got no rows, wanted at least one"):
        SFTDataset(str(tmp_path / "empty.parquet"), SFTDataConfig(), renderer)
    (tmp_path / "nothing.parquet").write_bytes(b"")
    with pytest.raises(DataError, match="not readable as parquet"):
        SFTDataset(str(tmp_path / "nothing.parquet"), SFTDataConfig(), renderer)


def test_at_most_so_many_rows_over_all_files(tmp_path, renderer):
    files = [write(tmp_path / f"{i}.parquet", [{"messages": MESSAGES[4:]}] * 3) for i in range(2)]
    for most, count in ((-1, 6), (2, 2), (4, 4), (9, 6)):
        assert len(SFTDataset(files, SFTDataConfig(), renderer, most)) == count


def test_a_row_says_whether_it_thinks(tmp_path):
    """As Qwen3: without thinking, the generation prompt holds an empty thought, which is context, not learned."""
    prompt = "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is false %}<empty>{% endif %}"
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and enable_thinking is false %}"
        "<empty>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}" + prompt + "{% endif %}"
    )
    renderer = ChatRenderer(byte_tokenizer(), chat_template=template)
    rows = [{"messages": MESSAGES[4:], "enable_thinking": value} for value in (True, False, None)]
    examples = SFTDataset(write(tmp_path / "a.parquet", rows), SFTDataConfig(), renderer).examples
    texts = [renderer.tokenizer.decode(list(example.ids)) for example in examples]
    assert ["<empty>" in text for text in texts] == [False, True, False]
    assert [masked_runs(renderer, example) for example in examples] == [["Yes.<|im_end|>"]] * 3
