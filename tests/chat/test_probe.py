"""R11: a template that rewrites earlier turns is found before the run."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from agentrl.chat.probe import probe_template
from agentrl.chat.renderer import ChatRenderer
from tests.chat.templates import FAMILIES, QWEN3, family_tokenizer

MOVING_TOOLS = """{%- for message in messages %}
{%- if loop.last and tools %}{{- '[TOOLS]' + (tools | tojson) + '[/TOOLS]' }}{%- endif %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
SCHEMA = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}


def test_chatml_preserves_prefixes(tokenizer: PreTrainedTokenizerFast) -> None:
    report = probe_template(ChatRenderer(tokenizer), [SCHEMA])
    assert report.prefix_preserving
    assert (report.message, report.refused) == ("", ())


@pytest.mark.parametrize("name", ["llama3", "deepseek", "glm", "gpt_oss"])
def test_families_preserve_prefixes_after_a_user_message(name: str) -> None:
    family = FAMILIES[name]
    tokenizer = family_tokenizer(family)
    stops = [tokenizer.convert_tokens_to_ids(stop) for stop in family.stops]
    report = probe_template(ChatRenderer(tokenizer, stop_token_ids=stops))
    assert not [diff for diff in report.differences if diff.after == "user"]


def test_stripped_thinking_is_found(tokenizer: PreTrainedTokenizerFast) -> None:
    report = probe_template(ChatRenderer(tokenizer, chat_template=QWEN3))
    assert not report.prefix_preserving
    (after_user,) = [diff for diff in report.differences if diff.after == "user" and diff.thinking]
    assert (after_user.stream_token, after_user.canonical_token) == ("<", "I")
    assert "does not preserve prefixes: when a user message follows an assistant turn with thinking" in report.message
    assert f"token {after_user.position} is 'I'" in report.message
    assert "agentrl never rewrites what was sampled" in report.message


def test_tools_that_move_are_found(tokenizer: PreTrainedTokenizerFast) -> None:
    renderer = ChatRenderer(tokenizer, chat_template=MOVING_TOOLS)
    assert probe_template(renderer).prefix_preserving
    assert not probe_template(renderer, [SCHEMA]).prefix_preserving


def test_an_end_of_turn_that_is_no_stop_id_is_named() -> None:
    family = FAMILIES["llama3"]
    tokenizer = family_tokenizer(family)
    tokenizer.eos_token = "<|begin_of_text|>"
    report = probe_template(ChatRenderer(tokenizer))
    assert "ends a turn with '<|eot_id|>'" in report.message
    assert "rollout.stop_token_ids" in report.message


def test_a_template_without_tool_messages_is_reported(tokenizer: PreTrainedTokenizerFast) -> None:
    strict = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    strict += "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    strict += "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    report = probe_template(ChatRenderer(tokenizer, chat_template=strict))
    assert report.prefix_preserving
    assert len(report.refused) == 1
    assert "no tools here" in report.refused[0]
