"""One chat template per shape that model families use, in our own words, and what must follow a sampled turn in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from agentrl.chat.renderer import ChatRenderer
from tests.chat.templates import FAMILIES, Family, family_tokenizer

HERMES = """{%- set own = messages[0].content if messages[0].role == 'system' else 'You are a helpful assistant.' %}
{{- '<|im_start|>system\n' + own }}
{%- if tools %}
{{- '\n\n# Tools\n<tools>' }}{%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}{{- '\n</tools>' }}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant' }}
{%- if message.content %}{{- '\n' + message.content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

THINKING = """{%- set ns = namespace(query=-1) %}
{%- for m in messages %}
{%- if m.role == 'user' and not m.content.startswith('<tool_response>') %}{%- set ns.query = loop.index0 %}{%- endif %}
{%- endfor %}
{%- if tools %}{{- '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{%- endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\n') if '</think>' in m.content else '' %}
{%- set answer = m.content.split('</think>')[-1].lstrip('\n') %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.query and (loop.last or thought) %}{{- '<think>\n' + thought + '\n</think>\n\n' }}{%- endif %}
{{- answer }}
{%- for call in m.tool_calls or [] %}{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}"""

EMPTY_THOUGHTS = """{%- for m in messages %}
{{- '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\n' }}
{%- if m.role == 'assistant' and '</think>' not in m.content %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{{- m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

MISTRAL = """{{- bos_token }}
{%- set ns = namespace(users=0, last=-1) %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
{%- if (m.role == 'user') != (ns.users % 2 == 0) %}
{{- raise_exception('user and assistant messages must take turns') }}
{%- endif %}
{%- set ns.users = ns.users + 1 %}
{%- endif %}
{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools and loop.index0 == ns.last %}
{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{{- '[INST]' + m.content + '[/INST]' }}
{%- elif m.role == 'tool' %}
{%- if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}
{{- raise_exception('tool call ids have nine letters') }}
{%- endif %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '[TOOL_RESULTS][' }}{%- else %}{{- ', ' }}{%- endif %}
{{- '{"content": ' + (m.content | tojson) + ', "call_id": "' + m.tool_call_id + '"}' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '][/TOOL_RESULTS]' }}{%- endif %}
{%- elif m.tool_calls %}
{{- '[TOOL_CALLS][' }}
{%- for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{- raise_exception('tool call ids have nine letters') }}{%- endif %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- ', "id": "' + call.id + '"}' + ('' if loop.last else ', ') }}
{%- endfor %}
{{- ']' + eos_token }}
{%- else %}{{- m.content + eos_token }}{%- endif %}
{%- endfor %}"""

GEMMA = """{{- bos_token }}
{%- if tools %}{{- '<|turn>system\n' }}
{%- for tool in tools %}{{- '<|tool>declaration:' + tool.function.name + '<tool|>' }}{%- endfor %}{{- '<turn|>\n' }}
{%- endif %}
{%- set ns = namespace(kind='') %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- if ns.kind != 'result' %}{{- '<|turn>model\n' }}{%- endif %}
{{- m.content | trim }}
{%- for call in m.tool_calls or [] %}
{{- '<|tool_call>call:' + call.function.name + '{' }}
{%- for key, value in call.function.arguments.items() %}
{{- key + ':' + ('<|"|>' + value + '<|"|>' if value is string else value | string) }}
{%- endfor %}
{{- '}<tool_call|>' }}
{%- endfor %}
{%- set ns.kind = 'call' if m.tool_calls else 'text' %}
{%- if not m.tool_calls %}{{- '<turn|>\n' }}{%- elif loop.last %}{{- '<|tool_response>' }}{%- endif %}
{%- elif m.role == 'tool' %}
{{- '<|tool_response>response:' + m.name + '{value:<|"|>' + m.content + '<|"|>}<tool_response|>' }}
{%- set ns.kind = 'result' %}
{%- else %}
{{- '<|turn>' + m.role + '\n' + m.content | trim + '<turn|>\n' }}
{%- set ns.kind = 'text' %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and ns.kind != 'result' and ns.kind != 'call' %}{{- '<|turn>model\n' }}{%- endif %}"""

ALTERNATING = """{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Roles must alternate: user, assistant, user') }}
{%- endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}"""

CALL_FIRST = """{%- set ns = namespace(ids=[]) %}
{%- for tool in tools or [] %}{{- '<|im_system|>' + (tool | tojson) + '<|im_end|>' }}{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{{- '<|im_assistant|>' + (m.content or '') }}
{%- if m.tool_calls %}
{%- set ns.ids = m.tool_calls | map(attribute='id') | list %}
{{- '<|calls_begin|>' }}
{%- for call in m.tool_calls %}
{{- '<|call_begin|>' + call.function.name + ':' + call.id + '<|args|>' + (call.function.arguments | tojson) }}
{{- '<|call_end|>' }}
{%- endfor %}
{{- '<|calls_end|>' }}
{%- endif %}
{{- '<|im_end|>' }}
{%- elif m.role == 'tool' %}
{%- if m.tool_call_id not in ns.ids %}{{- raise_exception('no call ' ~ m.tool_call_id ~ ' came before') }}{%- endif %}
{{- '<|im_system|>' + m.name + '<|im_middle|>' + m.content + '<|im_end|>' }}
{%- else %}{{- '<|im_' + m.role + '|>' + m.content + '<|im_end|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_assistant|>' }}{%- endif %}"""

SMOLLM2 = """{%- for m in messages %}
{%- if loop.first and m.role != 'system' %}{{- '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{%- endif %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
USER, TOOL, TOOLS = "user", "tool", "tools"
"""What follows: one user message `Sure?`; one tool message `42`; two, `42` and `43`."""
Case = tuple[str, str]
"""The stop id that the turn ends with (empty: none, the turn was cut), and what follows."""


@dataclass(frozen=True)
class Shape:
    """A template, the tokens of its family, and the text that must follow the sampled turn `Hm` in each case."""

    family: Family
    deltas: Mapping[Case, str]
    kwargs: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def renderer(self) -> ChatRenderer:
        """The template with one id per byte."""
        tokenizer = family_tokenizer(self.family)
        stops = [tokenizer.convert_tokens_to_ids(stop) for stop in self.family.stops]
        return ChatRenderer(tokenizer, stop_token_ids=stops, chat_template_kwargs=self.kwargs)


def chatml(template: str, deltas: Mapping[Case, str], **kwargs: Any) -> Shape:
    """A ChatML shape: two stop ids, one of them the template's own."""
    family = Family(template, CHATML, None, ("<|im_end|>", "<|endoftext|>"), "<|im_end|>")
    return Shape(family, deltas, kwargs)


def ends(*ends: str, after: Mapping[str, str]) -> dict[Case, str]:
    """The same text after each of several ends."""
    return {(end, following): text for end in ends for following, text in after.items()}


def cut(end: str, after: Mapping[str, str]) -> dict[Case, str]:
    """A turn without an end gets the template's."""
    return {("", following): end + text for following, text in after.items()}


_ASK = "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
_RESULT = "\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
_RESULTS = _RESULT.replace("<|im_end|>", "\n<tool_response>\n43\n</tool_response><|im_end|>")
_HERMES = {USER: _ASK, TOOL: _RESULT, TOOLS: _RESULTS}
_NO_THOUGHT = {following: text + "<think>\n\n</think>\n\n" for following, text in _HERMES.items()}
_AS_USER = {
    USER: _ASK,
    TOOL: _ASK.replace("Sure?", "42"),
    TOOLS: _ASK.replace("Sure?", "42<|im_end|>\n<|im_start|>user\n43"),
}
_AS_TOOL = {
    following: text if following == USER else text.replace("user", "tool") for following, text in _AS_USER.items()
}
_LLAMA = {
    USER: "<|start_header_id|>user<|end_header_id|>\n\nSure?<|eot_id|>",
    TOOL: "<|start_header_id|>ipython<|end_header_id|>\n\n42<|eot_id|>",
    TOOLS: "<|start_header_id|>ipython<|end_header_id|>\n\n42<|eot_id|>"
    "<|start_header_id|>ipython<|end_header_id|>\n\n43<|eot_id|>",
}
_LLAMA = {key: text + "<|start_header_id|>assistant<|end_header_id|>\n\n" for key, text in _LLAMA.items()}
_MISTRAL = {
    USER: "[INST]Sure?[/INST]",
    TOOL: '[TOOL_RESULTS][{"content": "42", "call_id": "call00000"}][/TOOL_RESULTS]',
    TOOLS: '[TOOL_RESULTS][{"content": "42", "call_id": "call00000"}, '
    '{"content": "43", "call_id": "call00001"}][/TOOL_RESULTS]',
}
_GPT_USER = "<|start|>user<|message|>Sure?<|end|><|start|>assistant"
_GPT_RESULT = '<|start|>functions.calculator to=assistant<|channel|>commentary<|message|>"42"<|end|>'
_GPT = {TOOL: _GPT_RESULT + "<|start|>assistant"}
_GPT[TOOLS] = _GPT_RESULT + _GPT_RESULT.replace("42", "43") + "<|start|>assistant"
_DEEPSEEK = {
    USER: "<|User|>Sure?<|Assistant|>",
    TOOL: "<|tool_output|>42<|tool_output_end|><|Assistant|>",
    TOOLS: "<|tool_output|>42<|tool_output_end|><|tool_output|>43<|tool_output_end|><|Assistant|>",
}
_GLM_RESULT = "\n<tool_response>\n42\n</tool_response>"
_GLM_RESULTS = _GLM_RESULT + _GLM_RESULT.replace("42", "43")
_GEMMA_USER = "\n<|turn>user\nSure?<turn|>\n<|turn>model\n"
_GEMMA_RESULT = 'response:calculator{value:<|"|>42<|"|>}<tool_response|>'
_GEMMA_RESULTS = _GEMMA_RESULT + "<|tool_response>" + _GEMMA_RESULT.replace("42", "43")
_CALL_FIRST = {
    USER: "<|im_user|>Sure?<|im_end|><|im_assistant|>",
    TOOL: "<|im_system|>calculator<|im_middle|>42<|im_end|><|im_assistant|>",
    TOOLS: "<|im_system|>calculator<|im_middle|>42<|im_end|><|im_system|>calculator<|im_middle|>43<|im_end|>"
    "<|im_assistant|>",
}

SHAPES = {
    "hermes": chatml(HERMES, ends("<|im_end|>", "<|endoftext|>", after=_HERMES) | cut("<|im_end|>", _HERMES)),
    "thinking": chatml(THINKING, ends("<|im_end|>", "<|endoftext|>", after=_HERMES) | cut("<|im_end|>", _HERMES)),
    "no_thinking": chatml(
        THINKING,
        ends("<|im_end|>", "<|endoftext|>", after=_NO_THOUGHT) | cut("<|im_end|>", _NO_THOUGHT),
        enable_thinking=False,
    ),
    "empty_thoughts": chatml(
        EMPTY_THOUGHTS, ends("<|im_end|>", "<|endoftext|>", after=_AS_USER) | cut("<|im_end|>", _AS_USER)
    ),
    "smollm2": chatml(SMOLLM2, ends("<|im_end|>", "<|endoftext|>", after=_AS_TOOL) | cut("<|im_end|>", _AS_TOOL)),
    "llama3": Shape(FAMILIES["llama3"], ends("<|eot_id|>", "<|eom_id|>", after=_LLAMA) | cut("<|eot_id|>", _LLAMA)),
    "mistral": Shape(
        Family(
            MISTRAL,
            (
                *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]"),
                *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "<pad>"),
            ),
            "<s>",
            ("</s>", "<pad>"),
            "</s>",
        ),
        ends("</s>", "<pad>", after=_MISTRAL) | cut("</s>", _MISTRAL),
    ),
    "gpt_oss": Shape(
        FAMILIES["gpt_oss"],
        ends("<|return|>", "<|call|>", after={USER: _GPT_USER, **_GPT})
        | {("", USER): "<|end|>" + _GPT_USER}
        | cut("<|call|>", _GPT),
    ),
    "deepseek": Shape(
        FAMILIES["deepseek"], ends("<|end_of_sentence|>", after=_DEEPSEEK) | cut("<|end_of_sentence|>", _DEEPSEEK)
    ),
    "glm": Shape(
        FAMILIES["glm"],
        {
            ("<|user|>", USER): "\nSure?<|assistant|>\n",
            ("<|endoftext|>", USER): "<|user|>\nSure?<|assistant|>\n",
            ("", USER): "<|user|>\nSure?<|assistant|>\n",
            ("<|observation|>", TOOL): _GLM_RESULT + "<|assistant|>\n",
            ("<|observation|>", TOOLS): _GLM_RESULTS + "<|assistant|>\n",
            ("<|user|>", TOOL): "<|observation|>" + _GLM_RESULT + "<|assistant|>\n",
            ("", TOOLS): "<|observation|>" + _GLM_RESULTS + "<|assistant|>\n",
        },
    ),
    "gemma": Shape(
        Family(
            GEMMA,
            (
                *("<bos>", "<eos>", "<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>"),
                *("<|tool_response>", "<tool_response|>", '<|"|>'),
            ),
            "<bos>",
            ("<turn|>", "<|tool_response>", "<eos>"),
            "<|tool_response>",
        ),
        {
            ("<turn|>", USER): _GEMMA_USER,
            ("<eos>", USER): _GEMMA_USER,
            ("", USER): "<turn|>" + _GEMMA_USER,
            ("<|tool_response>", TOOL): _GEMMA_RESULT,
            ("<|tool_response>", TOOLS): _GEMMA_RESULTS,
            ("<turn|>", TOOL): "<|tool_response>" + _GEMMA_RESULT,
            ("", TOOLS): "<|tool_response>" + _GEMMA_RESULTS,
        },
    ),
    "alternating": Shape(
        Family(ALTERNATING, ("<start_of_turn>", "<end_of_turn>", "<eos>"), None, ("<end_of_turn>", "<eos>"), "<eos>"),
        {
            (end, USER): ("" if end else "<end_of_turn>")
            + "\n<start_of_turn>user\nSure?<end_of_turn>\n<start_of_turn>model\n"
            for end in ("<end_of_turn>", "<eos>", "")
        },
    ),
    "call_first": Shape(
        Family(
            CALL_FIRST,
            (
                *("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>", "<|pad|>"),
                *("<|calls_begin|>", "<|call_begin|>", "<|args|>", "<|call_end|>", "<|calls_end|>"),
            ),
            None,
            ("<|im_end|>", "<|pad|>"),
            "<|im_end|>",
        ),
        ends("<|im_end|>", "<|pad|>", after=_CALL_FIRST) | cut("<|im_end|>", _CALL_FIRST),
    ),
}
PRESERVING = ("hermes", "llama3", "deepseek", "glm", "smollm2")
"""Shapes whose longer conversations continue the shorter ones, whoever answers a turn of plain text."""
WITH_CALLS = ("hermes", "thinking", "mistral", "gpt_oss", "gemma", "call_first")
"""Shapes that show the calls of a turn, and keep them when results follow."""
