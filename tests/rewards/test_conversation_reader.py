"""What a reward model reads of a conversation, with chat templates that show everything, or little."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.chat.renderer import ChatRenderer
from agentrl.errors import RewardError
from agentrl.rewards.conversation_reader import ConversationReader, cut
from agentrl.testing.models import byte_tokenizer

PLAIN = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role not in ('user', 'assistant') or (loop.index0 % 2 == 0) != (m.role == 'user') %}"
    "{{ raise_exception('roles must alternate user and assistant') }}{% endif %}"
    "[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
"""As Gemma's: no system message, no tools, users and assistants in turn."""
SILENT = (
    "{% for m in messages %}{% if m.role in ('user', 'assistant') %}<{{ m.role }}>{{ m.content }}</>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""Leaves out what it does not know, without a word."""
ONE_CALL = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% if m.tool_calls %}"
    "{% if m.tool_calls | length > 1 %}{{ MANY }}{% endif %}{{ m.tool_calls[0].function.arguments | tojson }}"
    "{% endif %}\n{% endfor %}"
)
"""Has a place for one call in a message."""
OTHER = {"id": "abcdefghk", "type": "function", "function": {"name": "times", "arguments": {"n": 4}}}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "times", "arguments": {"n": 3}}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "3 and 4, times 7?"},
    {"role": "assistant", "content": "I ask.", "tool_calls": [CALL]},
    {"role": "tool", "name": "times", "tool_call_id": "abcdefghi", "content": "21"},
    {"role": "tool", "name": "times", "tool_call_id": "abcdefghj", "content": "28"},
    {"role": "assistant", "content": "21 and 28"},
]


def reader(template: str | None = None) -> ConversationReader:
    return ConversationReader(ChatRenderer(byte_tokenizer(template)))


def text(template: str | None, messages: list[dict[str, Any]]) -> str:
    decoded: str = byte_tokenizer().decode(reader(template).read(messages))
    return decoded


def test_a_template_that_shows_everything_is_followed() -> None:
    tokenizer = byte_tokenizer()
    assert reader().as_text == []
    rendered = tokenizer.apply_chat_template(TALK, tokenize=False)
    assert reader().read(TALK) == tokenizer(rendered, add_special_tokens=False).input_ids
    assert '{"name": "times", "arguments": {"n": 3}}' in rendered
    assert "<tool_response>\n21\n</tool_response>" in rendered


def test_what_a_template_refuses_is_shown_as_text() -> None:
    assert reader(PLAIN).as_text == ["system messages", "tool calls", "tool results"]
    assert text(PLAIN, TALK) == (
        "[user] Be brief.\n\n3 and 4, times 7?\n"
        '[assistant] I ask.\n<tool_call>\n{"name": "times", "arguments": {"n": 3}}\n</tool_call>\n'
        "[user] <tool_response>\n21\n</tool_response>\n<tool_response>\n28\n</tool_response>\n"
        "[assistant] 21 and 28\n"
    )


def test_a_template_with_a_place_for_one_call_gets_several_as_text() -> None:
    """Llama's refuses a second call; others leave it out."""
    both = [TALK[1], {"role": "assistant", "content": "", "tool_calls": [CALL, OTHER]}, *TALK[3:]]
    for many in ("raise_exception('single tool-calls only')", "''"):
        template = ONE_CALL.replace("MANY", many)
        assert reader(template).as_text == []
        assert text(template, [TALK[1], {"role": "assistant", "content": "", "tool_calls": [CALL]}]).endswith(
            '[assistant] {"n": 3}'
        )
        assert '[assistant] <tool_call>\n{"name": "times", "arguments": {"n": 3}}\n</tool_call>\n<tool_call>\n' in text(
            template, both
        )
        assert '{"n": 4}' in text(template, both)


def test_what_a_template_would_leave_out_is_shown_as_text() -> None:
    assert reader(SILENT).as_text == ["system messages", "tool calls", "tool results"]
    shown = text(SILENT, TALK)
    for part in ("Be brief.", '"arguments": {"n": 3}', "\n21\n", "\n28\n"):
        assert part in shown


def test_calls_that_stand_in_the_text_of_a_turn_stay_there() -> None:
    """As agentrl's own loops record them: the turn is what the policy wrote."""
    turn = '<tool_call>\n{"name": "times", "arguments": {"n": 3}}\n</tool_call>'
    talk = [TALK[1], {"role": "assistant", "content": turn}, TALK[3], TALK[5]]
    for template in (None, PLAIN):
        assert text(template, talk).count("<tool_call>") == 1
        assert turn in text(template, talk)


def test_text_that_looks_like_a_special_token_stays_text() -> None:
    ids = reader().read([{"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "no"}])
    assert ids.count(byte_tokenizer().eos_token_id) == 2


def test_parts_of_a_message() -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "2 + 2?"}]
    assert "What is 2 + 2?" in text(None, [{"role": "user", "content": parts}, TALK[5]])
    assert "None" not in text(None, [TALK[1], {"role": "assistant", "content": None}])
    with pytest.raises(
        RewardError, match=r"reads text only, but a message of the role user holds \{'image': 'x.png', 'type'"
    ):
        reader().read([{"role": "user", "content": [*parts, {"type": "image", "image": "x.png"}]}])


def test_a_conversation_that_the_template_refuses_names_the_roles() -> None:
    with pytest.raises(RewardError, match=r"\(user, user\): roles must alternate"):
        reader(PLAIN).read([TALK[1], TALK[1]])


@pytest.mark.parametrize(
    ("most", "side", "kept"),
    [
        (None, "left", [1, 5, 6, 7]),
        (4, "left", [1, 5, 6, 7]),
        (3, "left", [1, 6, 7]),
        (1, "left", [7]),
        (3, "right", [1, 5, 6]),
    ],
)
def test_a_long_conversation_is_cut(most: int | None, side: Any, kept: list[int]) -> None:
    assert cut([1, 5, 6, 7], most, side, bos_id=1) == kept


def test_without_a_first_token_the_end_alone_stays() -> None:
    assert cut([1, 5, 6, 7], 2, "left") == [6, 7]
    assert cut([9, 5, 6, 7], 2, "left", bos_id=1) == [6, 7]
