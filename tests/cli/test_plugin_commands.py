"""`agentrl plugins`: everything is listed, broken things with the reason; `check` says which clause is broken."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.plugins import registry as known_plugins
from agentrl.testing.examples import example_arguments

Command = Callable[..., tuple[int, str]]

PLUGINS = """
from agentrl.agent_loops.single_turn_agent import SingleTurnAgent
from agentrl.errors import ToolServiceError
from agentrl.interfaces import BaseInteraction, BaseTool
from agentrl.plugins import register
from agentrl.types import InteractionResponse, StopReason, ToolResponse

@register("leaky")
class Leaky(BaseTool):
    calls = 0

    @classmethod
    def default_schema(cls):
        return {"type": "function", "function": {"name": "leaky", "description": "Leaks.", "parameters": {}}}

    async def execute(self, arguments, **kwargs):
        Leaky.calls += 1
        return ToolResponse("x", reward=float(Leaky.calls))

    async def release(self, **kwargs):
        raise KeyError("never made")

def double(x: int, why: str = "so"):
    '''Double a number.'''
    return 2 * x

class Eager(BaseInteraction):
    async def generate_response(self, messages):
        messages.clear()
        return InteractionResponse(True, "thanks")

class Stopped(SingleTurnAgent):
    async def run(self, sampling_params, **row_fields):
        output = await super().run(sampling_params, **row_fields)
        output.stop_reason = StopReason.COMPLETED
        return output

def grade(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth)}

def grade_wrong(solution_str, ground_truth):
    return None

class Verl:
    def __init__(self, config, tool_schema):
        self.there = {}

    def get_openai_tool_schema(self):
        return {"type": "function", "function": {"name": "v", "description": "V.", "parameters": {}}}

    async def create(self, instance_id=None, **kwargs):
        self.there["one"] = 1
        return "one"

    async def execute(self, instance_id, parameters, **kwargs):
        return "text", 0.0, {}

    async def release(self, instance_id, **kwargs):
        del self.there[instance_id]
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Runs `agentrl plugins` in a folder with plug-ins and a package that is broken; exit code and output."""
    (tmp_path / "mine.py").write_text(PLUGINS)
    info = tmp_path / "broken-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[agentrl.agent_loops]\nbroken_loop = mine_that_is_not_there:Loop\n")

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    registered = {kind: dict(names) for kind, names in known_plugins._registry.items()}
    known_plugins._entry_points.cache_clear()

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["plugins", *arguments], env={"COLUMNS": "200"})
        return done.exit_code, done.output

    yield run
    known_plugins._entry_points.cache_clear()
    known_plugins._registry.update(registered)
    sys.modules.pop("mine", None)


def test_everything_is_listed_with_its_origin_and_what_is_broken_with_the_reason(plugins: Command) -> None:
    code, output = plugins("--import", "mine.py")
    assert code == 0
    assert re.search(r"agent_loops .* tool_agent .* agentrl 0\.1\.0 .*\.tool_agent:ToolAgent", output)
    assert re.search(r"tools .* leaky .* @register .* mine\.py:Leaky", output)
    assert "mine.py" in output
    assert re.search(r"broken_loop .* broken 0\.3 .* cannot be loaded: 'broken_loop': there is no module", output)
    assert "cannot be loaded: broken_loop" in output.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("calculator", ("--example", '{"arguments": {"expression": "6*7"}}')),
        ("calc_gsm8k_reward", ("--example", '{"arguments": {"answer": "4"}, "create_kwargs": {"ground_truth": "4"}}')),
        ("mine.py:double", ("--kind", "tools")),
        ("mine.Verl", ()),
        ("gsm8k", ()),
        ("react_agent", ()),
        ("hermes", ()),
        ("mine.py:grade", ("--kind", "rewards")),
    ],
)
def test_good_plugins_keep_their_contract(plugins: Command, name: str, options: tuple[str, ...]) -> None:
    code, output = plugins("check", name, *options)
    assert code == 0, output
    assert "FAIL" not in output
    held, total = re.findall(r": (\d+) of (\d+) hold", output)[-1]
    assert held == total


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("mine.py:Leaky", (), ["state leaks", "KeyError: 'never made'"]),
        ("mine.py:Eager", (), ["the conversation must not be changed"]),
        ("mine.py:Stopped", (), ["a turn cut by the length limit ends the trajectory"]),
        ("mine.py:grade_wrong", ("--kind", "rewards"), ["unexpected keyword argument|too many|got an unexpected"]),
        (
            "mine.py:double",
            ("--kind", "tools", "--example", '{"arguments": {"x": "two"}}'),
            ["does not fit the schema"],
        ),
    ],
)
def test_broken_plugins_fail_with_the_clause(
    plugins: Command, name: str, options: tuple[str, ...], says: list[str]
) -> None:
    code, output = plugins("check", name, *options)
    assert code == 1, output
    assert "FAIL" in output
    assert "pass" in output or name == "mine.py:grade_wrong"
    for text in says:
        assert re.search(text, output), output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("calculater",), "no plug-in is named 'calculater'. Did you mean 'calculator'?"),
        (("calculator", "--kind", "tool"), "got 'tool'. Did you mean 'tools'?"),
        (("calculator", "--kind", "interactions"), "no interaction is named 'calculator'"),
        (("mine.py:double",), "cannot tell what kind of plug-in it is: give --kind"),
        (("json.decoder", "--kind", "tools"), "is not a tool: a class or a function is wanted"),
        (("json.decoder", "--kind", "tool_parsers"), "is not a tool parser: derive it from"),
        (("broken_loop",), "there is no module 'mine_that_is_not_there'"),
        (("calculator", "--example", "{"), "--example is not JSON"),
        (("calculator", "--example", "[]"), "wanted a JSON object"),
        (("add", "--file", "tools.yaml"), "has no 'add'. Did you mean 'double'?|the file has no 'add'"),
    ],
)
def test_what_cannot_be_checked_is_told(
    plugins: Command, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    (tmp_path / "tools.yaml").write_text("tools:\n- class_name: mine.py:double\n")
    code, output = plugins("check", *arguments)
    assert code == 2, output
    assert "Traceback" not in output
    assert says in output.replace("\n", " ") or re.search(says, output)


def test_a_yaml_configures_what_is_checked(plugins: Command, tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text("tools:\n- class_name: mine.py:double\n")
    code, output = plugins("check", "double", "--file", "tools.yaml")
    assert code == 0, output


def test_example_arguments_fit_their_schema() -> None:
    import jsonschema

    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "minLength": 3},
            "b": {"type": "array", "items": {"type": "integer", "minimum": 5}, "minItems": 2},
            "c": {"enum": ["x", "y"]},
            "d": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "e": {"type": "object", "properties": {"f": {"type": "boolean"}}, "required": ["f"]},
            "g": {"type": ["null", "string"]},
            "h": {},
            "i": {"const": 7},
        },
        "required": list("abcdeghi"),
    }
    jsonschema.validate(json.loads(json.dumps(example_arguments(schema))), schema)
