"""`multi_turn.format`: from a name, or `auto`, to the parser of a run."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from typing import Any

from agentrl.chat.tool_parsers.formats import FORMATS, detect, format_named
from agentrl.errors import PluginError
from agentrl.interfaces import ToolParser
from agentrl.plugins import resolve
from agentrl.types import FUNCTION_CALLING, JsonDict, ParsedTurn

logger = logging.getLogger(__name__)

AUTO = "auto"


def load_tool_parser(name: str, template: str, model: str, *, offers_tools: bool) -> ToolParser:
    """The parser that a run's `multi_turn.format` names.

    Args:
        name: a format, `auto`, or the user's own parser: entry point, dotted path, `file.py:Name`.
        template: the chat template of the run's model.
        model: name of the template's model, for messages.
        offers_tools: False: no call is ever parsed, so the template is not compared with the format.

    Raises:
        PluginError: the name is unknown, it names something that is not a parser, or `auto` cannot tell the format.
    """
    if name in (AUTO, FUNCTION_CALLING):
        return AutoToolParser(template, model)
    parser = _build(resolve("tool_parsers", name), name)
    if offers_tools:
        _compare(name, template, model)
    return parser


class AutoToolParser(ToolParser):
    """The parser of the format that a chat template asks for.

    Args:
        template: the text of the chat template.
        model: whose it is.

    Raises:
        PluginError: the template shows none of the known formats.
    """

    def __init__(self, template: str = "", model: str = "this model") -> None:
        found = detect(template)
        if found is None:
            raise PluginError(
                f"format 'auto': the chat template of {model} shows no tool-call format that agentrl knows. Set "
                f"`actor_rollout_ref.rollout.multi_turn.format` to one of {', '.join(row.name for row in FORMATS)}, "
                "or to a parser of your own (`file.py:Name`)"
            )
        self.format, signs = found
        self._parser = self.format.parser()
        shown = " and ".join(map(repr, signs))
        logger.info("tool calls: format '%s', because the chat template of %s has %s", self.format.name, model, shown)

    def parse(self, text: str, tools: Sequence[JsonDict] | None = None) -> ParsedTurn:
        """Split `text` as the format's own parser does."""
        return self._parser.parse(text, tools)


class _WithoutTools(ToolParser):
    """A user's parser whose `parse` takes the text alone."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser

    def parse(self, text: str, tools: Sequence[JsonDict] | None = None) -> ParsedTurn:
        """Split `text`; this parser takes no schemas."""
        parsed: ParsedTurn = self._parser.parse(text)
        return parsed


def _build(cls: Any, name: str) -> ToolParser:
    """An instance of a parser class, made to take the tools' schemas."""
    if not (isinstance(cls, type) and issubclass(cls, ToolParser)):
        raise PluginError(f"'{name}': {cls!r} is not a tool parser: derive it from agentrl.interfaces.ToolParser")
    try:
        parser = cls()
    except TypeError as error:
        raise PluginError(f"'{name}': {cls!r} cannot be built without arguments: {error}") from error
    return parser if _takes_tools(parser) else _WithoutTools(parser)


def _takes_tools(parser: ToolParser) -> bool:
    try:
        inspect.signature(parser.parse).bind("", None)
    except TypeError:
        return False
    return True


def _compare(name: str, template: str, model: str) -> None:
    """Warn when a template clearly asks for another format than the one that was named."""
    chosen, found = format_named(name), detect(template)
    if chosen is None or found is None or chosen.found_in(template):
        return
    other, signs = found
    logger.warning(
        "tool calls: the format is '%s', but the chat template of %s has %s, which belongs to '%s': the model's calls "
        "may not be recognised. Set `multi_turn.format` to '%s' or 'auto'",
        *(name, model, " and ".join(map(repr, signs)), other.name, other.name),
    )
