"""Templates of published models (TRL ships copies): nothing is lost between turns, nothing appears twice."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentrl.chat.probe import probe_template
from agentrl.chat.renderer import ChatRenderer

SPECIAL = re.compile(r"<[|｜][^<>'\"{}\s]{1,40}[|｜]>|<start_of_turn>|<end_of_turn>|\[gMASK\]|<sop>")
ENDS = {
    "qwen2_5": ["<|im_end|>"],
    "qwen3": ["<|im_end|>"],
    "qwen3_instruct_2507": ["<|im_end|>"],
    "llama3": ["<|eot_id|>"],
    "llama3_1": ["<|eot_id|>", "<|eom_id|>"],
    "deepseekv3": ["<｜end▁of▁sentence｜>"],
    "gemma3": ["<end_of_turn>"],
    "phi3": ["<|endoftext|>", "<|end|>"],
    "glm4moe": ["<|user|>", "<|observation|>", "<|endoftext|>"],
    "gptoss": ["<|return|>", "<|call|>"],
    "cohere2": ["<|END_OF_TURN_TOKEN|>"],
}
NO_TOOL_MESSAGES = ("gemma3", "phi3", "cohere2")
REWRITES_AFTER_USER = ("qwen3", "deepseekv3", "glm4moe")
TOOL = {"role": "tool", "name": "calc", "content": "The 42.", "tool_call_id": "call00000"}
USER = {"role": "user", "content": "Are you sure?"}


def load(name: str) -> ChatRenderer:
    found = find_spec("trl")
    file = Path(str(found.origin)).parent / "chat_templates" / f"{name}.jinja" if found else Path("missing")
    if not file.is_file():
        pytest.skip("needs the templates that come with TRL (the dev extra)")
    template = file.read_text(encoding="utf-8")
    specials = sorted({*SPECIAL.findall(template), *ENDS[name], "<BOS>"})
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=ENDS[name][0], bos_token="<BOS>")
    tokenizer.chat_template = template
    return ChatRenderer(tokenizer, stop_token_ids=[tokenizer.convert_tokens_to_ids(end) for end in ENDS[name]])


@pytest.mark.parametrize("name", ENDS)
def test_a_user_message_follows(name: str) -> None:
    renderer = load(name)
    for end in ENDS[name]:
        sampled = [*renderer.encode_text("It is 42."), renderer.encoder.special_ids[end]]
        text = renderer.encoder.decode([*sampled, *renderer.delta([USER], sampled_ids=sampled)])
        assert text.count(USER["content"]) == 1
        assert text.count(end) == 1 + text.partition(USER["content"])[2].count(end)
        assert "BOS" not in text


@pytest.mark.parametrize("name", ENDS)
def test_a_tool_message_follows_or_is_refused_at_the_start(name: str) -> None:
    renderer = load(name)
    report = probe_template(renderer)
    assert bool(report.refused) == (name in NO_TOOL_MESSAGES)
    if not report.refused:
        sampled = [*renderer.encode_text("I call."), renderer.encoder.special_ids[ENDS[name][-1]]]
        assert "The 42." in renderer.encoder.decode(renderer.delta([TOOL], sampled_ids=sampled))


@pytest.mark.parametrize("name", ENDS)
def test_templates_that_rewrite_history_are_found(name: str) -> None:
    report = probe_template(load(name), after=["user"])
    assert report.prefix_preserving == (name not in REWRITES_AFTER_USER), report.message
    assert report.warnings == ()
