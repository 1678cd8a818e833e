"""The demo's tokenizer: round trips, isolated digits, whole scaffold, short episodes."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from agentrl.chat.probe import probe_template
from agentrl.chat.renderer import ChatRenderer
from agentrl.chat.tool_parsers.hermes import HermesToolParser
from agentrl.cli.demo.model import build_model
from agentrl.cli.demo.tokenizer import CALL_HEAD, SPECIAL_TOKENS, VOCAB_SIZE, WHOLE_PIECES, build_tokenizer
from agentrl.plugins import load_tools

TOKENIZER = build_tokenizer()
PIECES = [
    *WHOLE_PIECES,
    *SPECIAL_TOKENS,
    "calculator",
    "Error: division by zero",
    "12*(3+4)",
    "1.5/0.25",
    "user",
    " \n\n",
]
TOOLS = [spec.schema for spec in load_tools("tools/calculator.yaml")]


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(TOKENIZER)


def episode(expression: str, result: str):
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": expression}}}
    return [
        {"role": "user", "content": expression},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": result},
        {"role": "assistant", "content": f"The answer is {result}"},
    ]


def test_every_build_gives_the_same_512_ids():
    assert len(TOKENIZER) == VOCAB_SIZE
    assert build_tokenizer().backend_tokenizer.to_str() == TOKENIZER.backend_tokenizer.to_str()


@given(st.text(max_size=60))
def test_any_text_comes_back(text: str):
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.decode(ids) == unicodedata.normalize("NFC", text)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """The tokenizer as `AutoTokenizer` gives it to whoever loads the model's folder."""
    return AutoTokenizer.from_pretrained(build_model(tmp_path_factory.mktemp("model"), seed=1))


@given(text=st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=8).map("".join)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_loading_the_model_folder_changes_no_id(loaded, text: str):
    assert loaded.encode(text, add_special_tokens=False) == TOKENIZER.encode(text, add_special_tokens=False)


@given(st.text(alphabet="0123456789+-*/().", min_size=1, max_size=30))
def test_an_expression_has_one_id_per_character_wherever_it_stands(expression: str):
    alone = TOKENIZER.encode(expression, add_special_tokens=False)
    inside = TOKENIZER.encode(f'{CALL_HEAD}calculator{expression}"}}}}', add_special_tokens=False)
    assert len(alone) == len(expression)
    assert inside[2 : 2 + len(alone)] == alone


@pytest.mark.parametrize("piece", [*WHOLE_PIECES, "calculator", "expression"])
def test_scaffold_pieces_are_one_id(piece: str):
    assert len(TOKENIZER.encode(piece, add_special_tokens=False)) == 1


def test_a_typical_episode_is_short(renderer: ChatRenderer):
    assert 40 <= len(renderer.render(episode("48/2", "24"), TOOLS)) <= 48
    assert len(renderer.render(episode("12*(3+45)", "576"), TOOLS)) <= 60


def test_the_prompt_names_every_offered_tool(renderer: ChatRenderer):
    other = {"type": "function", "function": {"name": "search", "parameters": {}}}
    text = renderer.decode(renderer.render_prompt([{"role": "user", "content": "1+1"}], [*TOOLS, other]))
    assert "calculator" in text
    assert "search" in text
    assert "calculator" not in renderer.decode(renderer.render_prompt([{"role": "user", "content": "1+1"}]))


def test_the_template_preserves_prefixes(renderer: ChatRenderer):
    report = probe_template(renderer, TOOLS)
    assert report.prefix_preserving


def test_the_hermes_parser_reads_a_rendered_call(renderer: ChatRenderer):
    messages = episode("12*(3+45)", "576")
    prompt = renderer.render_prompt(messages[:1], TOOLS)
    turn = renderer.decode(renderer.render(messages[:2], TOOLS)[len(prompt) :])
    parsed = HermesToolParser().parse(turn)
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("calculator", {"expression": "12*(3+45)"})]
    assert not parsed.errors
