"""`@agentrl.tool`: a function gets a name and a schema, and stays a function."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.errors import PluginError
from agentrl.plugins import load_tools, registered_name, registry, resolve


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registry", {kind: dict(known) for kind, known in registry._registry.items()})


def loaded(folder: Path, name: str) -> registry.Any:
    (folder / "tools.yaml").write_text(f"tools: [{{class_name: {name}}}]")
    return load_tools(folder / "tools.yaml")[0]


def test_a_function_is_a_tool_under_its_name(tmp_path: Path) -> None:
    @agentrl.tool
    def times(a: int, b: int = 2) -> int:
        """Multiply.

        Args:
            a: one factor.
        """
        return a * b

    assert times(3, 4) == 12
    assert resolve("tools", "times") is times
    spec = loaded(tmp_path, "times")
    assert spec.schema["function"] == {
        "name": "times",
        "description": "Multiply.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "one factor."},
                "b": {"type": "integer", "default": 2},
            },
            "required": ["a"],
            "additionalProperties": False,
        },
    }
    assert asyncio.run(spec.build().execute({"a": 5})).text == "10"


def test_another_name_is_what_yaml_and_the_model_call_it(tmp_path: Path) -> None:
    @agentrl.tool(name="shout")
    async def in_capitals(text: str) -> str:
        """Shout."""
        return text.upper()

    spec = loaded(tmp_path, "shout")
    assert (spec.name, registered_name("tools", in_capitals)) == ("shout", "shout")
    assert asyncio.run(spec.build().execute({"text": "a"})).text == "A"
    with pytest.raises(PluginError, match="no tool is named 'in_capitals'"):
        resolve("tools", "in_capitals")


def test_what_cannot_be_a_tool_is_refused_where_it_is_written() -> None:
    with pytest.raises(PluginError, match="wanted a function; register a class with @register"):
        agentrl.tool(Path)  # type: ignore[type-var]
    with pytest.raises(PluginError, match="parameter 'a' cannot be given by name"):

        @agentrl.tool
        def positional(a: int, /) -> int:
            return a


def test_a_name_is_taken_once() -> None:
    @agentrl.tool(name="once")
    def first() -> str:
        return ""

    with pytest.raises(PluginError, match="two plug-ins register the tool 'once'"):

        @agentrl.tool(name="once")
        def second() -> str:
            return ""


def test_a_script_that_is_a_plugin_file_too_registers_the_same_tool(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("import agentrl\n\n@agentrl.tool\ndef twice_read() -> str:\n    return ''\n")
    registry.load_registrations([str(file)])
    first = resolve("tools", "twice_read")
    registry.sys.modules.pop(first.__module__)
    registry.load_registrations([str(file)])
    assert resolve("tools", "twice_read") is not first


class Desk:
    def look(self, word: str) -> str:
        return word

    def __call__(self, word: str) -> str:
        return word


def counts(word: str) -> Iterator[str]:
    yield word


async def counts_slowly(word: str) -> AsyncIterator[str]:
    yield word


@pytest.mark.parametrize(
    ("plugin", "name", "says"),
    [
        (Desk().look, None, "which can carry no name; wanted a function"),
        (Desk(), None, "got the name '', wanted letters"),
        (lambda word: word, None, "got the name '<lambda>', wanted letters"),
        (lambda word: word, "two words", "got the name 'two words', wanted letters"),
        (lambda word: word, "", "got the name '', wanted letters"),
        (lambda word: word, 3, "got the name 3, wanted letters"),
        (counts, None, "counts yields"),
        (counts_slowly, None, "counts_slowly yields"),
    ],
)
def test_a_function_without_a_usable_name_or_result_is_refused(plugin: Any, name: Any, says: str) -> None:
    before = dict(registry._registry["tools"])
    with pytest.raises(PluginError, match=re.escape(says)):
        agentrl.tool(name=name)(plugin)
    assert registry._registry["tools"] == before
