"""The table of tool-call formats: a format's name, its parser, and the texts by which a chat template shows it.

Each name is an entry point of the group `agentrl.tool_parsers` as well (pyproject.toml), where other packages add
theirs; the table adds what `format: auto` needs to know.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentrl.chat.tool_parsers.deepseek import DeepSeekToolParser
from agentrl.chat.tool_parsers.glm import GlmToolParser
from agentrl.chat.tool_parsers.gpt_oss import GptOssToolParser
from agentrl.chat.tool_parsers.hermes import HermesToolParser
from agentrl.chat.tool_parsers.kimi_k2 import KimiK2ToolParser
from agentrl.chat.tool_parsers.mistral import MistralToolParser
from agentrl.chat.tool_parsers.plain_json import JsonToolParser, Llama3JsonToolParser
from agentrl.chat.tool_parsers.pythonic import PythonicToolParser
from agentrl.chat.tool_parsers.qwen3_coder import Qwen3CoderToolParser
from agentrl.chat.tool_parsers.react import ReactToolParser
from agentrl.chat.tool_parsers.search_r1 import SearchR1ToolParser
from agentrl.interfaces import ToolParser

_QUOTE = r"\\?[\"']"
"""A quote of JSON inside a Jinja string."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One format."""

    name: str
    parser: type[ToolParser]
    signs: tuple[str, ...]
    """Regular expressions; a template in which all are found asks for this format."""
    aliases: tuple[str, ...] = ()
    """Other names, as verl, SGLang and vLLM write them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of the format."""
        return (self.name, *self.aliases)

    def found_in(self, template: str) -> list[str]:
        """The texts in a template that match the signs of the format; empty if one is missing."""
        matches = [re.search(sign, template) for sign in self.signs]
        return [match[0] for match in matches if match is not None] if all(matches) else []


FORMATS: tuple[ToolFormat, ...] = (
    ToolFormat("gpt_oss", GptOssToolParser, (r"<\|channel\|>", r"functions\."), ("gpt-oss", "openai")),
    ToolFormat("kimi_k2", KimiK2ToolParser, (r"<\|tool_call_argument_begin\|>",)),
    ToolFormat(
        "deepseek",
        DeepSeekToolParser,
        ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
        ("deepseek_v3", "deepseek_v31", "deepseekv3", "deepseekv31"),
    ),
    ToolFormat("mistral", MistralToolParser, (r"\[TOOL_CALLS\]",)),
    ToolFormat("glm", GlmToolParser, ("<arg_key>", "<arg_value>"), ("glm45", "glm47")),
    ToolFormat("qwen3_coder", Qwen3CoderToolParser, ("<function=", "<parameter="), ("qwen3_xml", "qwen3-coder")),
    ToolFormat("hermes", HermesToolParser, ("<tool_call>", f"{_QUOTE}name{_QUOTE}"), ("qwen", "qwen25")),
    ToolFormat(
        "pythonic",
        PythonicToolParser,
        (r"\[\w*func\w*\([^)]*=|<\|tool_call_start\|>",),
        ("llama4_pythonic",),
    ),
    ToolFormat(
        "llama3_json",
        Llama3JsonToolParser,
        (
            r"<\|python_tag\|>|<\|start_header_id\|>|<\|header_start\|>",
            f"{_QUOTE}name{_QUOTE}",
            f"{_QUOTE}parameters{_QUOTE}:",
        ),
        ("llama3", "llama4_json"),
    ),
    ToolFormat("react", ReactToolParser, ("Action:", "Action Input:")),
    ToolFormat("search_r1", SearchR1ToolParser, ("<search>", "<answer>")),
    ToolFormat(
        "json",
        JsonToolParser,
        (rf"\{{{_QUOTE}name{_QUOTE}:", rf"{_QUOTE}(?:arguments|parameters){_QUOTE}:"),
        ("plain_json",),
    ),
)
"""In the order in which `auto` tries them, the most specific signs first: `json` would match a hermes template too."""


def detect(template: str) -> tuple[ToolFormat, list[str]] | None:
    """The first format whose signs a chat template shows, and these signs."""
    for row in FORMATS:
        signs = row.found_in(template)
        if signs:
            return row, signs
    return None


def format_named(name: str) -> ToolFormat | None:
    """The row of a name or alias."""
    return next((row for row in FORMATS if name in row.names), None)
