"""Chat templates in the shapes of known model families, written for these tests, and tokenizers for them."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
{%- set role = 'ipython' if message.role == 'tool' else message.role %}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""

DEEPSEEK = """{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'user' %}{{- '<|User|>' + message.content }}
{%- elif message.role == 'assistant' %}{{- '<|Assistant|>' + message.content + '<|end_of_sentence|>' }}
{%- else %}{{- '<|tool_output|>' + message.content + '<|tool_output_end|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|Assistant|>' }}{%- endif %}"""

GLM = """{{- '[gMASK]<sop>' }}
{%- for message in messages %}
{%- if message.role == 'user' %}{{- '<|user|>\n' + message.content }}
{%- elif message.role == 'assistant' %}{{- '<|assistant|>\n' + message.content }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{%- endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\n' }}{%- endif %}"""

GPT_OSS = """{%- set ns = namespace(last=none) %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- if message.tool_calls %}
{%- set ns.last = message.tool_calls[0].function.name %}
{{- '<|start|>assistant to=functions.' + ns.last + '<|channel|>commentary json<|message|>' }}
{{- message.tool_calls[0].function.arguments | tojson + '<|call|>' }}
{%- elif loop.last and not add_generation_prompt %}
{{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|return|>' }}
{%- else %}
{{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
{%- endif %}
{%- elif message.role == 'tool' %}
{%- if ns.last is none %}{{- raise_exception('a tool message needs a tool call before it') }}{%- endif %}
{{- '<|start|>functions.' + ns.last + ' to=assistant<|channel|>commentary<|message|>' }}
{{- message.content | tojson + '<|end|>' }}
{%- else %}
{{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"""

QWEN3 = """{%- set ns = namespace(last_query=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{%- set ns.last_query = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- set answer = message.content.split('</think>')[-1].lstrip('\n') %}
{%- if loop.index0 > ns.last_query %}
{%- set parts = message.content.split('</think>') %}
{%- set thought = parts[0].split('<think>')[-1].strip('\n') if parts | length > 1 else '' %}
{{- '<|im_start|>assistant\n<think>\n' + thought + '\n</think>\n\n' + answer + '<|im_end|>\n' }}
{%- else %}
{{- '<|im_start|>assistant\n' + answer + '<|im_end|>\n' }}
{%- endif %}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

PLAIN = """{%- for message in messages %}{{- message.role + ': ' + message.content + '\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- 'assistant: ' }}{%- endif %}"""


@dataclass(frozen=True)
class Family:
    """A template, its special tokens, and which of them a model of that family samples to end a turn."""

    template: str
    specials: tuple[str, ...]
    bos: str | None
    stops: tuple[str, ...]
    """The first one ends a turn before a user message."""
    before_tool: str
    """What the model samples to end a turn that calls a tool."""


FAMILIES = {
    "llama3": Family(
        LLAMA3,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
        "<|begin_of_text|>",
        ("<|eot_id|>", "<|eom_id|>"),
        "<|eom_id|>",
    ),
    "deepseek": Family(
        DEEPSEEK,
        ("<|begin|>", "<|User|>", "<|Assistant|>", "<|end_of_sentence|>", "<|tool_output|>", "<|tool_output_end|>"),
        "<|begin|>",
        ("<|end_of_sentence|>",),
        "<|end_of_sentence|>",
    ),
    "glm": Family(
        GLM,
        ("[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"),
        None,
        ("<|user|>", "<|observation|>", "<|endoftext|>"),
        "<|observation|>",
    ),
    "gpt_oss": Family(
        GPT_OSS,
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>"),
        None,
        ("<|return|>", "<|call|>"),
        "<|call|>",
    ),
    "plain": Family(PLAIN, ("<|endoftext|>",), None, ("<|endoftext|>",), "<|endoftext|>"),
}


def family_tokenizer(family: Family) -> PreTrainedTokenizerFast:
    """One id per byte and one per special token of the family."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in family.specials])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=family.stops[0], bos_token=family.bos)
    tokenizer.chat_template = family.template
    return tokenizer
