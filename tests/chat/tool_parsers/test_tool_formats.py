"""From `multi_turn.format` to a parser: names, `auto`, parsers of the user's, warnings; and special tokens."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path

import pytest
from syntaxes import SYNTAXES, TOOLS, Syntax
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentrl.chat.renderer import ChatRenderer
from agentrl.chat.tool_parsers.auto import AutoToolParser, load_tool_parser
from agentrl.chat.tool_parsers.formats import FORMATS, detect, format_named
from agentrl.chat.tool_parsers.hermes import HermesToolParser
from agentrl.chat.tool_parsers.plain_json import Llama3JsonToolParser
from agentrl.errors import PluginError
from agentrl.testing.models import byte_tokenizer
from agentrl.types import ParsedTurn

ROOT = Path(__file__).resolve().parents[3]
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"

TEMPLATES = {
    "hermes": """{{ '<tools>' }}{{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}""",
    "qwen3_coder": "{{- '<tool_call>\\n<function=example>\\n<parameter=key>\\nvalue\\n</parameter>' }}",
    "glm": "{{ '<tool_call>' + tc.name }}{% for k, v in a %}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>",
    "kimi_k2": "<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>{{ arguments }}<|tool_call_end|>",
    "deepseek": "{{'<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + name + '\\n```json'}}",
    "mistral": "{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}",
    "gpt_oss": "{{- '<|start|>assistant to=' }}{{- 'functions.' + name + '<|channel|>commentary json<|message|>' }}",
    "llama3_json": """{{- '<|start_header_id|>ipython' }}Respond as {"name": function name, "parameters": {...}}.""",
    "pythonic": "Write [func_name1(params_name1=params_value1, params_name2=...), func_name2(params)].",
    "react": "Action: the tool\\nAction Input: its input",
    "search_r1": "Search with <search> query </search>, answer with <answer> text </answer>.",
    "json": """Answer with {"name": "tool", "parameters": {}}""",
}


def test_the_table_names_every_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    points = project["project"]["entry-points"]["agentrl.tool_parsers"]
    table = {name: f"{row.parser.__module__}:{row.parser.__name__}" for row in FORMATS for name in row.names}
    assert points == {**table, "auto": f"{AutoToolParser.__module__}:AutoToolParser"}


@pytest.mark.parametrize("name", [name for row in FORMATS for name in row.names])
def test_every_name_gives_its_parser(name: str) -> None:
    row = format_named(name)
    assert row is not None
    assert type(load_tool_parser(name, "", "m", offers_tools=True)) is row.parser


def test_every_format_has_a_template() -> None:
    assert set(TEMPLATES) == {row.name for row in FORMATS}


@pytest.mark.parametrize("name", TEMPLATES)
def test_auto_tells_the_format_and_says_why(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agentrl")
    parser = load_tool_parser("auto", CHATML + TEMPLATES[name], "the-model", offers_tools=True)
    assert isinstance(parser, AutoToolParser)
    assert parser.format.name == name
    (line,) = caplog.messages
    assert line.startswith(f"tool calls: format '{name}', because the chat template of the-model has '")
    syntax = next(s for s in SYNTAXES if format_named(s.format) is parser.format)
    (call,) = parser.parse(syntax.calls([syntax.example()]), TOOLS).tool_calls
    assert (call.name, call.arguments) == syntax.example()


def test_auto_knows_the_template_of_the_built_in_tokenizer() -> None:
    found = detect(ChatRenderer(byte_tokenizer()).template)
    assert found is not None
    assert found[0].name == "hermes"


def test_auto_takes_llama_4_for_json() -> None:
    """Its template writes the text of a turn between tags that Python lists of calls may have as well."""
    found = detect(f"{{{{- '<|header_start|>assistant<|python_start|>' + content }}}}{TEMPLATES['llama3_json']}")
    assert found is not None
    assert found[0].name == "llama3_json"


def test_auto_refuses_a_template_without_tools() -> None:
    with pytest.raises(PluginError) as caught:
        load_tool_parser("auto", CHATML, "the-model", offers_tools=True)
    message = str(caught.value)
    assert "the chat template of the-model shows no tool-call format" in message
    assert all(row.name in message for row in FORMATS)


def test_a_format_that_the_template_contradicts_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    load_tool_parser("hermes", TEMPLATES["mistral"], "the-model", offers_tools=True)
    (line,) = caplog.messages
    assert "the format is 'hermes', but the chat template of the-model has '[TOOL_CALLS]'" in line
    assert "to 'mistral' or 'auto'" in line


@pytest.mark.parametrize(
    ("name", "template", "offers_tools"),
    [
        ("hermes", TEMPLATES["mistral"], False),
        ("hermes", CHATML, True),
        ("qwen", TEMPLATES["hermes"], True),
        ("llama3_json", TEMPLATES["llama3_json"], True),
        ("pythonic", TEMPLATES["pythonic"] + TEMPLATES["llama3_json"], True),
        ("llama3_json", TEMPLATES["pythonic"] + TEMPLATES["llama3_json"], True),
        (f"{__name__}.Shouting", TEMPLATES["mistral"], True),
    ],
)
def test_nothing_is_said_where_the_template_agrees_or_is_silent(
    name: str, template: str, offers_tools: bool, caplog: pytest.LogCaptureFixture
) -> None:
    load_tool_parser(name, template, "m", offers_tools=offers_tools)
    assert not caplog.messages


class Shouting(HermesToolParser):
    """A user's parser."""


def test_parsers_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from agentrl.interfaces import ToolParser\n"
        "from agentrl.types import ParsedTurn, ToolCall\n"
        "class Bang(ToolParser):\n"
        "    def parse(self, text):\n"
        "        return ParsedTurn('', [ToolCall(text.rstrip('!'), {})] if text.endswith('!') else [])\n"
        "class Needy(Bang):\n"
        "    def __init__(self, tokenizer):\n"
        "        pass\n"
        "def function(text):\n"
        "    return None\n"
    )
    parser = load_tool_parser(f"{file}:Bang", CHATML, "m", offers_tools=True)
    turn = parser.parse("calc!", TOOLS)
    assert isinstance(turn, ParsedTurn)
    assert turn.tool_calls[0].name == "calc"
    assert type(load_tool_parser(f"{__name__}.Shouting", CHATML, "m", offers_tools=True)) is Shouting
    with pytest.raises(PluginError, match="cannot be built without arguments"):
        load_tool_parser(f"{file}:Needy", CHATML, "m", offers_tools=True)
    with pytest.raises(PluginError, match="is not a tool parser"):
        load_tool_parser(f"{file}:function", CHATML, "m", offers_tools=True)
    with pytest.raises(PluginError, match="Did you mean 'hermes'"):
        load_tool_parser("hermess", CHATML, "m", offers_tools=True)


SPECIAL = [
    *("<|python_tag|>", "<|python_start|>", "<|python_end|>", "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    *("<|tool_calls_section_end|>", "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>"),
    *("<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"),
]


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    """One id per byte and per special token of any format."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    tokenizer.chat_template = CHATML + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    return ChatRenderer(tokenizer, stop_token_ids=[tokenizer.convert_tokens_to_ids("<|call|>")])


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)
def test_calls_survive_the_way_through_the_tokenizer(syntax: Syntax, renderer: ChatRenderer) -> None:
    """A model samples special tokens; the renderer keeps them in the text, but for the stop id at the end."""
    written = syntax.turn(syntax.think("é"), syntax.calls([syntax.example(1)]), syntax.calls([syntax.example(2)]))
    ids = renderer.tokenizer(written, add_special_tokens=False).input_ids
    if not written.endswith("<|call|>"):
        ids.append(renderer.tokenizer.eos_token_id)
    assert len(ids) < len(written.encode()) or syntax.name in ("react", "json fence")
    text = renderer.decode(ids)
    assert text == written.removesuffix("<|call|>")
    turn = syntax.parser.parse(text, TOOLS)
    assert [(call.name, call.arguments) for call in turn.tool_calls] == [syntax.example(1), syntax.example(2)]
    assert not turn.errors


def test_llama_calls_after_its_tag() -> None:
    first, second = '{"name": "a", "parameters": {}}', '{"name": "b", "parameters": {}}'
    for text in (f"<|python_tag|>{first}\n{second}", f"<|python_start|>Hm.<|python_end|>{first}{second}"):
        turn = Llama3JsonToolParser().parse(text)
        assert [call.name for call in turn.tool_calls] == ["a", "b"]
        assert turn.content == ("Hm." if "Hm." in text else "")
