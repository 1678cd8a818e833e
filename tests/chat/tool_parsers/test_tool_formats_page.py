"""docs/tool_formats.md: every example is read by the parser of its section, every name of the table exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from agentrl.chat.tool_parsers.auto import load_tool_parser
from agentrl.chat.tool_parsers.formats import FORMATS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "tool_formats.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^### (\w+)\n(.*?)(?=^##)", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^(`{3,4})text\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
EXAMPLES = [(name, example) for name, body in SECTION.findall(PAGE) for _, example in EXAMPLE.findall(body)]


def test_the_table_of_the_page_is_the_table_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)`(?: \(default\))? \| (.*?) ?\|", PAGE, re.MULTILINE)
    written = {name: set(re.findall(r"`([\w-]+)`", aliases)) for name, aliases in rows}
    assert written == {row.name: set(row.aliases) for row in FORMATS}
    assert {name for name, _ in EXAMPLES} == set(written)


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_every_example_is_a_call(name: str, example: str) -> None:
    turn = load_tool_parser(name, "", "m", offers_tools=True).parse(example)
    (call,) = turn.tool_calls
    assert (call.name, *call.arguments.values()) in (("calculator", "6 * 7"), ("search", "capital of France"))
    assert not turn.errors


def test_the_parser_of_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = re.search(r"^`my_parser.py`:\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    named = re.search(r"^```yaml\n(format: .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert source is not None
    assert named is not None
    monkeypatch.chdir(tmp_path)
    Path("my_parser.py").write_text(source[1], encoding="utf-8")
    turn = load_tool_parser(yaml.safe_load(named[1])["format"], "", "m", offers_tools=True).parse(
        "So:\n!calculator 6*7"
    )
    assert turn.content == "So:"
    assert turn.tool_calls[0].arguments == {"expression": "6*7"}
