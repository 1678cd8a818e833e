"""Names, entry points, dotted paths and files; the nearest name where there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl import plugins
from agentrl.errors import PluginError
from agentrl.interfaces import BaseTool
from agentrl.plugins import known, register, resolve
from agentrl.types import JsonDict, ToolResponse


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    before = {kind: dict(names) for kind, names in plugins._registry.items()}
    yield
    for kind, names in before.items():
        plugins._registry[kind] = names


class Echo(BaseTool):
    async def execute(self, arguments: JsonDict, **execute_kwargs: object) -> ToolResponse:
        return ToolResponse(text=str(arguments))


def test_register_sees_the_kind() -> None:
    register("echo")(Echo)
    assert resolve("tools", "echo") is Echo
    assert "echo" in known("tools")


def test_register_of_a_function_needs_the_kind() -> None:
    with pytest.raises(PluginError, match=r'@register\("f", kind="tools"\)|say what it is'):
        register("f")(lambda: None)
    with pytest.raises(PluginError, match="Did you mean 'tools'"):
        register("f", kind="tool")(lambda: None)  # type: ignore[arg-type]


def test_a_name_belongs_to_one_plugin() -> None:
    register("echo")(Echo)
    register("echo")(Echo)

    class Other(Echo):
        pass

    with pytest.raises(PluginError, match="two plug-ins register the tool 'echo'"):
        register("echo")(Other)


def test_every_builtin_entry_point_can_be_imported() -> None:
    for kind, names in {
        "agent_loops": ["react_agent", "single_turn_agent", "tool_agent"],
        "tools": ["calc_gsm8k_reward", "calculator", "search"],
        "interactions": ["gsm8k"],
        "tool_parsers": ["hermes"],
    }.items():
        assert set(names) <= set(known(kind))  # type: ignore[arg-type]
        for name in names:
            assert isinstance(resolve(kind, name), type)  # type: ignore[arg-type]


def test_a_dotted_path_and_a_file(tmp_path: Path) -> None:
    assert resolve("tools", "agentrl.tools.calculator.Calculator").__name__ == "Calculator"
    assert resolve("tools", "agentrl.tools.calculator:Calculator").__name__ == "Calculator"
    file = tmp_path / "mine.py"
    file.write_text("class Outer:\n    class Inner:\n        pass\n")
    first = resolve("tools", f"{file}:Outer.Inner")
    assert first is resolve("tools", f"{file}:Outer.Inner")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("calcluator", "no tool is named 'calcluator'. Did you mean 'calculator'?"),
        ("nowhere.module.Tool", "there is no module 'nowhere'"),
        ("agentrl.tools.calculater.Calculator", "there is no module 'agentrl.tools.calculater'"),
        ("agentrl.tools.calculator.Calculater", "Did you mean 'Calculator'?"),
        ("missing.py:Tool", "plug-in file missing.py does not exist"),
    ],
)
def test_what_cannot_be_found(name: str, message: str) -> None:
    with pytest.raises(PluginError) as caught:
        resolve("tools", name)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [("import not_installed_here\n", "No module named"), ("def f(:\n", "SyntaxError"), ("x = 1 / 'a'\n", "TypeError")],
)
def test_a_file_that_cannot_be_imported(tmp_path: Path, source: str, message: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(source)
    before = set(sys.modules)
    with pytest.raises(PluginError, match=message):
        resolve("tools", f"{file}:Tool")
    assert not [name for name in set(sys.modules) - before if "broken" in name]
