"""Search-R1's tags (Jin et al., 2025, arXiv:2503.09516): a query to the tool `search`, or the answer.

<search>capital of France</search>

<answer>Paris</answer>
"""

from __future__ import annotations

import re

from agentrl.chat.tool_parsers.scan import Block, ScanningParser, Source
from agentrl.chat.tool_parsers.typed_text import accepted_types, parameters_of, typed
from agentrl.types import JsonDict, ToolCall

_TOOL = "search"
_BOUNDARY = re.compile("(?P<close></search>)|<search>|<answer>")


class SearchR1ToolParser(ScanningParser):
    """Reads queries up to the first answer; after an answer nothing is a query."""

    opener = "<search>|<answer>"

    def read(self, source: Source, opener: re.Match[str]) -> Block:
        """One query; an answer ends the turn."""
        if opener[0] == "<answer>":
            return Block(opener.end(), cut=False, last=True)
        boundary = source.search(_BOUNDARY, opener.end())
        end = source.end_of_broken(_BOUNDARY, opener.end())
        if boundary is None or not boundary["close"]:
            return Block(end, ["it has no closing </search>: expected <search>QUERY</search>"])
        span = (opener.end(), boundary.start())
        query = source.text[slice(*span)].strip()
        if not query:
            return Block(end, ["its query is empty: expected <search>QUERY</search>"])
        return Block(end, [ToolCall(_TOOL, _arguments(query, source), arguments_span=span)])


def _arguments(query: str, source: Source) -> JsonDict:
    """The query as the tool's `query` or else its first argument, in a list if that takes a list."""
    schema = parameters_of(_TOOL, source.tools)
    properties = schema.get("properties") or {"query": {"type": "string"}}
    key = "query" if "query" in properties else next(iter(properties))
    types = accepted_types(properties[key], schema)
    if "array" in types and "string" not in types:
        return {key: [query]}
    return {key: typed(query, types or frozenset(["string"]))}
