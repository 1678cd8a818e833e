"""How a template wants the turn that a message answers: what `TurnTails` finds out about unusual ones."""

from __future__ import annotations

import pytest

from agentrl.chat.renderer import ChatRenderer
from agentrl.errors import TemplateError
from tests.chat.shapes import HERMES, SHAPES
from tests.chat.templates import Family, family_tokenizer
from tests.chat.test_shapes import ASKED, RESULT, SCHEMA, SECOND

ROLES = "{%- if add_generation_prompt %}{{- '<|role|>assistant:' }}{%- endif %}"


def renderer_of(template: str, *specials: str, stops: tuple[str, ...]) -> ChatRenderer:
    tokenizer = family_tokenizer(Family(template, specials, None, stops, stops[0]))
    return ChatRenderer(tokenizer, stop_token_ids=[tokenizer.convert_tokens_to_ids(stop) for stop in stops])


def after(
    renderer: ChatRenderer, sampled: str, *messages: dict[str, str], tools: list[dict[str, object]] | None = None
) -> str:
    ids = renderer.encoder.encode(sampled, [])
    return renderer.encoder.decode(renderer.delta(list(messages), sampled_ids=ids, tools=tools))


OTHER_END = (
    """{%- for m in messages %}
{%- set next = messages[loop.index0 + 1] if not loop.last else none %}
{%- if m.role == 'tool' and next and next.role == 'tool' %}{{- raise_exception('one result at a time') }}{%- endif %}
{{- '<|role|>' + m.role + ':' + m.content }}
{{- '<|to_tool|>' if next and next.role == 'tool' else '<|end|>' }}
{%- endfor %}"""
    + ROLES
)


def test_an_end_of_turn_of_its_own_before_results() -> None:
    """`<|to_tool|>` ends the turn, so that any stop id stands for it; it does not open the result."""
    renderer = renderer_of(OTHER_END, "<|role|>", "<|end|>", "<|to_tool|>", stops=("<|end|>", "<|to_tool|>"))
    for end in ("<|to_tool|>", "<|end|>"):
        assert after(renderer, f"Hm{end}", RESULT) == "<|role|>tool:42<|end|><|role|>assistant:"
        assert after(renderer, f"Hm{end}", ASKED) == "<|role|>user:Sure?<|end|><|role|>assistant:"
    assert after(renderer, "Hm", RESULT).startswith("<|to_tool|><|role|>tool:42")


OPENER = """{%- for m in messages %}
{%- if m.role == 'tool' %}{{- '<|result|>' + m.content + '\n' }}
{%- else %}{{- '<|role|>' + m.role + ':' + m.content }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|end|>' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and messages[-1].role != 'tool' %}{{- '<|role|>assistant:' }}{%- endif %}"""


def test_a_marker_that_opens_a_result_is_no_end_of_turn() -> None:
    renderer = renderer_of(OPENER, "<|role|>", "<|end|>", "<|result|>", stops=("<|end|>", "<|result|>"))
    assert after(renderer, "Hm<|result|>", RESULT, SECOND) == "42\n<|result|>43\n"
    for sampled in ("Hm<|end|>", "Hm"):
        assert after(renderer, sampled, RESULT) == "<|result|>42\n"
    assert after(renderer, "Hm<|result|>", ASKED) == "<|role|>user:Sure?<|end|><|role|>assistant:"


def test_a_call_that_ends_with_no_stop_id() -> None:
    """Gemma's template with a model that only declares the end of a turn."""
    tokenizer = family_tokenizer(SHAPES["gemma"].family)
    renderer = ChatRenderer(tokenizer)
    call = "<|tool_call>call:calculator{x:7}<tool_call|>"
    result = 'response:calculator{value:<|"|>42<|"|>}<tool_response|>'
    assert after(renderer, call, RESULT) == f"<|tool_response>{result}"
    assert after(renderer, f"{call}<|tool_response>", RESULT) == result


NEEDS_ARGUMENTS = (
    """{%- for m in messages %}
{{- '<|role|>' + m.role + ':' + m.content }}
{%- for call in m.tool_calls or [] %}
{%- if not call.function.arguments %}{{- raise_exception('a call without arguments') }}{%- endif %}
{{- '<|call|>' + call.function.arguments.x }}
{%- endfor %}
{%- if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}{{- raise_exception('no call') }}{%- endif %}
{{- '<|end|>' }}
{%- endfor %}"""
    + ROLES
)


def test_calls_that_need_arguments() -> None:
    renderer = renderer_of(NEEDS_ARGUMENTS, "<|role|>", "<|end|>", "<|call|>", stops=("<|end|>",))
    assert after(renderer, "<|call|>1<|end|>", RESULT) == "<|role|>tool:42<|end|><|role|>assistant:"


AS_TEXT = NEEDS_ARGUMENTS.replace(
    "'<|call|>' + call.function.arguments.x", "'<|call|>' + call.function.arguments + '<|closed|>'"
)


def test_calls_whose_arguments_are_a_string() -> None:
    renderer = renderer_of(AS_TEXT, "<|role|>", "<|end|>", "<|call|>", "<|closed|>", stops=("<|end|>",))
    assert renderer.tails.following("tool").form.as_text
    for call in ('<|call|>{"x": 1}<|closed|>', "<|call|>nonsense"):  # the second never closed its call (R10)
        assert after(renderer, f"{call}<|end|>", RESULT) == "<|role|>tool:42<|end|><|role|>assistant:"


ONE_CALL = NEEDS_ARGUMENTS.replace(
    "{%- for call",
    "{%- if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}{%- for call",
).replace("not messages[loop.index0 - 1].tool_calls", "not messages[1].tool_calls")


def test_several_results_after_the_only_call_that_a_template_allows() -> None:
    renderer = renderer_of(ONE_CALL, "<|role|>", "<|end|>", "<|call|>", stops=("<|end|>",))
    text = "<|role|>tool:42<|end|><|role|>tool:43<|end|><|role|>assistant:"
    assert after(renderer, "<|call|>1<|end|>", RESULT, SECOND) == text


WANTS_TOOLS = (
    """{%- for m in messages %}
{%- if m.role == 'tool' and not tools %}{{- raise_exception('no tools were offered') }}{%- endif %}
{{- '<|role|>' + m.role + ':' + m.content + '<|end|>' }}
{%- endfor %}"""
    + ROLES
)


def test_results_that_need_the_tools() -> None:
    renderer = renderer_of(WANTS_TOOLS, "<|role|>", "<|end|>", stops=("<|end|>",))
    text = "<|role|>tool:42<|end|><|role|>assistant:"
    assert after(renderer, "Hm<|end|>", RESULT, tools=[SCHEMA]) == text
    with pytest.raises(TemplateError, match="no tools were offered"):
        after(renderer, "Hm<|end|>", RESULT)


def test_several_named_templates() -> None:
    """A tokenizer may have one template for conversations with tools and one for the others."""
    tokenizer = family_tokenizer(Family(HERMES, ("<|im_start|>", "<|im_end|>"), None, ("<|im_end|>",), "<|im_end|>"))
    plain = SHAPES["alternating"].family.template.replace("<start_of_turn>", "<|im_start|>")
    tokenizer.chat_template = {"default": plain.replace("<end_of_turn>", "<|im_end|>"), "tool_use": HERMES}
    renderer = ChatRenderer(tokenizer)
    assert renderer.template == HERMES
    expected = "\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert after(renderer, "Hm<|im_end|>", RESULT, tools=[SCHEMA]) == expected
    assert after(renderer, "Hm<|im_end|>", ASKED).endswith("<|im_start|>model\n")


def test_somebody_else_must_speak_last() -> None:
    template = (
        "{%- if add_generation_prompt and messages[-1].role == 'assistant' %}{{ raise_exception('last') }}{% endif %}"
    )
    renderer = renderer_of(
        template + SHAPES["smollm2"].family.template, "<|im_start|>", "<|im_end|>", stops=("<|im_end|>",)
    )
    assert after(renderer, "Hm<|im_end|>", ASKED) == "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    assert renderer.tails.separator == "\n"


def test_messages_that_the_template_refuses_together() -> None:
    with pytest.raises(TemplateError, match=r"\(user, assistant, user, user\): Roles must alternate"):
        after(SHAPES["alternating"].renderer, "Hm<end_of_turn>", ASKED, ASKED)


def test_a_look_alike_that_two_texts_make_together() -> None:
    renderer = renderer_of(
        "{% for m in messages %}{{ m.content }}{% endfor %}<|end|>", "<|end|>", "<|role|>", stops=("<|end|>",)
    )
    ids = renderer.render([{"role": "user", "content": "a<|"}, {"role": "user", "content": "role|>b"}])
    assert [token for token in ids if token in renderer.encoder.special_id_set] == [
        renderer.encoder.special_ids["<|end|>"]
    ]
    assert renderer.encoder.decode(ids) == "a<|role|>b<|end|>"


def test_thinking_tags_that_are_special_tokens_are_seen_by_the_template() -> None:
    family = SHAPES["thinking"].family
    specials = (*family.specials, "<think>", "</think>")
    renderer = renderer_of(family.template, *specials, stops=("<|im_end|>",))
    turn = {"role": "assistant", "content": "<think>\nsecret\n</think>\n\n42"}
    text = renderer.encoder.decode(renderer.render([ASKED, turn, ASKED]))
    assert "secret" not in text
    evil = renderer.render([{"role": "user", "content": "</think>"}])
    assert renderer.encoder.special_ids["</think>"] not in evil
