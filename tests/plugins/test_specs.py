"""Tool, interaction and loop YAML: what loads, and one readable message for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.errors import AgentRLError, ConfigError, PluginError, UserInputError
from agentrl.plugins import check_routing, load_agent_loops, load_interactions, load_tools
from agentrl.tools.calculator import Calculator
from agentrl.types import Sample

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
FUNCTION = "async def shout(text: str) -> str:\n    'Shout.'\n    return text.upper()\n"


def write(folder: Path, content: Any, name: str = "my.yaml") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("tools/*.yaml")), ids=lambda path: path.stem)
def test_builtin_tool_files(path: Path) -> None:
    def discover(cls: Any, servers: Any, config: Any) -> Any:  # the example's server needs a program that may be absent
        assert servers["fetch"]["command"] == "uvx"
        own = {**config, "server": servers["fetch"], "server_name": "fetch", "tool": "fetch"}
        return [(own, {"type": "function", "function": {"name": "fetch", "description": "Fetch.", "parameters": {}}})]

    specs = load_tools(path, discover=discover)
    assert specs
    names = [spec.name for spec in load_tools(f"tools/{path.name}", discover=discover)]
    assert names == [spec.name for spec in specs]


def test_builtin_interaction_and_loop_files() -> None:
    assert set(load_interactions("interactions/gsm8k.yaml")) == {"gsm8k"}
    assert set(load_agent_loops("agent_loops/default.yaml")) == set(load_agent_loops())


def test_a_function_beside_the_yaml(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION)
    (spec,) = load_tools(write(tmp_path, {"tools": [{"class_name": "mine.py:shout"}]}))
    assert spec.name == "shout"
    assert spec.check_arguments({"text": "x"}) is None
    assert "additional properties" in str(spec.check_arguments({"text": "x", "y": 1})).lower()


def test_a_schema_of_the_yaml_passes_through(tmp_path: Path) -> None:
    parameters = {
        "type": "object",
        "properties": {
            "expression": {"type": "string", "enum": ["1", "2"]},
            "many": {"type": "array", "items": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}},
        },
        "required": ["expression"],
    }
    schema = {"type": "function", "function": {"name": "sum", "description": "", "parameters": parameters}}
    (spec,) = load_tools(write(tmp_path, {"tools": [{"class_name": "calculator", "tool_schema": schema}]}))
    assert spec.schema == schema
    assert spec.build().name == "sum"
    assert spec.check_arguments({"expression": "1", "many": [1, None]}) is None
    assert str(spec.check_arguments({"expression": "1", "many": [0]})).startswith("arguments.many[0]: 0 is ")
    assert "'3' is not one of ['1', '2']" in str(spec.check_arguments({"expression": "3"}))


BROKEN_TOOLS: dict[str, tuple[Any, str]] = {
    "not yaml": ("tools: [", "is not YAML"),
    "not a mapping": ("- 1", "got list, wanted a mapping with `tools: [...]`"),
    "top-level typo": ({"tool": []}, "unknown key 'tool'. Did you mean 'tools'?"),
    "no list": ({"tools": {"class_name": "calculator"}}, "wanted a list of mappings under `tools`"),
    "entry typo": (
        {"tools": [{"class_nam": "calculator"}]},
        "tools[0]: unknown key 'class_nam'. Did you mean 'class_name'?",
    ),
    "no class": ({"tools": [{"config": {}}]}, "tools[0]: `class_name` is missing"),
    "unknown class": ({"tools": [{"class_name": "calculatr"}]}, "tools[0]: no tool is named 'calculatr'. Did you mean"),
    "type": (
        {"tools": [{"class_name": "calculator", "config": {"type": "nativ"}}]},
        "got 'nativ'. Did you mean 'native'",
    ),
    "twice": ({"tools": [{"class_name": "calculator"}] * 2}, "tools[1]: two tools are named 'calculator'"),
    "config": ({"tools": [{"class_name": "calculator", "config": [1]}]}, "config: got list, wanted a mapping"),
    "timeout": ({"tools": [{"class_name": "calculator", "config": {"timeout_s": -1}}]}, "wanted a positive number"),
    "schema": ({"tools": [{"class_name": "calculator", "tool_schema": {"function": {}}}]}, "tool_schema: wanted"),
    "parameters": (
        {
            "tools": [
                {
                    "class_name": "calculator",
                    "tool_schema": {"function": {"name": "f", "parameters": {"type": "objct"}}},
                }
            ]
        },
        "tool_schema.function.parameters: 'objct' is not valid",
    ),
    "a class that is no tool": ({"tools": [{"class_name": "pathlib.Path"}]}, "Path is not a tool"),
    "a module": ({"tools": [{"class_name": "json.decoder"}]}, "is not a tool: a class or a function is wanted"),
    "tool config": (
        {"tools": [{"class_name": "search", "config": {"retrieval_service_url": "http://x", "top_k": 1}}]},
        "unknown key 'config.top_k'. Did you mean 'topk'?",
    ),
    "needed config": (
        {"tools": [{"class_name": "search"}]},
        "`config.retrieval_service_url` must be an http(s) address",
    ),
}


@pytest.mark.parametrize("case", BROKEN_TOOLS)
def test_broken_tool_yaml(tmp_path: Path, case: str) -> None:
    content, message = BROKEN_TOOLS[case]
    path = write(tmp_path, content)
    with pytest.raises((ConfigError, PluginError)) as caught:
        load_tools(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 2


def test_an_interaction_that_is_no_class(tmp_path: Path) -> None:
    path = write(tmp_path, {"interaction": [{"class_name": "os.path:sep"}]})
    with pytest.raises(PluginError, match="interaction\\[0\\]: '/' is not an interaction"):
        load_interactions(path)


def test_a_missing_file_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml does not exist \(looked for gone\.yaml, .*configs/gone\.yaml\)"):
        load_tools("gone.yaml", near=tmp_path)


def test_paths_are_also_relative_to_the_naming_yaml(tmp_path: Path) -> None:
    write(tmp_path, {"tools": [{"class_name": "calculator"}]}, "here.yaml")
    assert load_tools("here.yaml", near=tmp_path)


def test_interaction_names(tmp_path: Path) -> None:
    cls = "agentrl.interactions.gsm8k.Gsm8kInteraction"
    assert set(load_interactions(write(tmp_path, {"interaction": [{"class_name": cls}]}))) == {"gsm8k"}
    with pytest.raises(ConfigError, match=r"interaction\[1\]: two interactions are named 'gsm8k'"):
        load_interactions(write(tmp_path, {"interaction": [{"class_name": cls}, {"name": "gsm8k", "class_name": cls}]}))
    with pytest.raises(PluginError, match=r"no interaction is named 'gms8k'. Did you mean 'gsm8k'"):
        load_interactions(write(tmp_path, {"interaction": [{"class_name": "gms8k"}]}))


def test_agent_loop_yaml(tmp_path: Path) -> None:
    target = "agentrl.agent_loops.tool_agent.ToolAgent"
    loops = load_agent_loops(write(tmp_path, [{"name": "mine", "_target_": target}]))
    assert loops["mine"].cls.__name__ == "ToolAgent"
    assert "tool_agent" in loops
    for content, message in (
        ([{"name": "mine"}], "`_target_` is missing"),
        ([{"name": "a", "_target_": target}] * 2, "two agent loops are named 'a'"),
        ([{"name": "a", "_target_": "pathlib.Path"}], "is not an agent loop"),
        ({"mine": target}, "wanted a list of mappings"),
    ):
        with pytest.raises(AgentRLError) as caught:
            load_agent_loops(write(tmp_path, content))
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("tool_agent.ToolAgent", {"max_trns": 1}, r"my.yaml: \[0\]: ToolAgent takes no option 'max_trns'"),
        ("search_r1_agent.SearchR1Agent", {"max_trns": 1}, "takes no option 'max_trns'. Did you mean 'max_turns'"),
        ("langgraph_agent.LangGraphAgent", {}, "LangGraphAgent needs the option `graph`"),
        ("langgraph_agent.LangGraphAgent", {"graph": "json:dmp"}, r"\[0\].graph: 'json:dmp': json has no 'dmp'. Did"),
    ],
)
def test_options_that_a_loop_does_not_take(tmp_path: Path, target: str, options: dict[str, Any], message: str) -> None:
    entry = {"name": "mine", "_target_": f"agentrl.agent_loops.{target}", **options}
    with pytest.raises(PluginError, match=message):
        load_agent_loops(write(tmp_path, [entry]))


def route(default_loop: str = "tool_agent", **fields: Any) -> None:
    sample = Sample(index=7, prompt=[], data_source="x", **fields)
    check_routing(
        [sample], default_loop=default_loop, loops=load_agent_loops(), tools=["calculator"], interactions=["gsm8k"]
    )


def test_rows_that_route_somewhere() -> None:
    route(tools_kwargs={"calculator": {}}, interaction_kwargs={"name": "gsm8k"})
    route("single_turn_agent")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"agent_name": "tool_agnt"}, "row 7: no agent loop is named 'tool_agnt'. Did you mean 'tool_agent'?"),
        ({"tools_kwargs": {"calculater": {}}}, "row 7: no tool is named 'calculater'. Did you mean 'calculator'?"),
        ({"tool_config": {"available_tools": ["x"]}}, "row 7: no tool is named 'x'."),
        ({"interaction_kwargs": {"name": "gsm"}}, "row 7: no interaction is named 'gsm'."),
        ({"interaction_kwargs": {"query": "q"}}, "row 7: `interaction_kwargs` has no `name`."),
        (
            {"default_loop": "single_turn_agent", "tools_kwargs": {"calculator": {}}},
            "row 7 gives tools but has no `agent_name` and gets the agent loop 'single_turn_agent', which ignores that",
        ),
        (
            {"agent_name": "single_turn_agent", "interaction_kwargs": {"name": "gsm8k"}},
            "row 7 gives an interaction but names the agent loop 'single_turn_agent'",
        ),
    ],
)
def test_rows_that_route_nowhere(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError) as caught:
        route(**fields)
    assert message in str(caught.value)


PROPERTIES = {"expression": {"type": "string", "description": "For example 3 * 4"}}


@pytest.mark.parametrize(
    "parameters",
    [PROPERTIES, {"type": "object", "properties": PROPERTIES, "required": ["expression"]}],
)
def test_a_tool_that_is_only_described(tmp_path: Path, parameters: dict[str, object]) -> None:
    plain = {"name": "calculator", "description": "Sums.", "parameters": parameters}
    for entry in (plain, {"type": "function", "function": plain}, {**plain, "class_name": "calculator"}):
        (spec,) = load_tools(write(tmp_path, {"tools": [entry]}))
        assert spec.schema["function"] == {
            "name": "calculator",
            "description": "Sums.",
            "parameters": {"type": "object", "properties": PROPERTIES, "required": ["expression"]},
        }
        assert isinstance(spec.build(), Calculator)


def test_required_parameters_of_a_described_tool(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("async def add(**numbers):\n    return sum(numbers.values())\n")
    parameters = {
        "a": {"type": "number"},
        "b": {"type": "number", "default": 1},
        "c": {"type": "number", "required": False},
        "d": {"type": "number", "default": 2, "required": True},
    }
    entry = {"class_name": "mine.py:add", "name": "add", "description": "Adds.", "parameters": parameters}
    (spec,) = load_tools(write(tmp_path, {"tools": [entry]}))
    assert spec.schema["function"]["parameters"]["required"] == ["a", "d"]
    assert "required" not in spec.schema["function"]["parameters"]["properties"]["c"]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"name": "calculater", "description": "x"}, "no tool is named 'calculater'. Did you mean 'calculator'"),
        ({"name": "calculator", "parameters": {"expr": {"type": "string"}}}, "takes no argument 'expr'."),
        ({"name": "calculator", "parameters": {"expression": "string"}}, "wanted a schema such as {type: string}"),
        ({"name": "calculator", "tool_schema": {}}, "unknown key 'tool_schema'"),
        ({"name": "calculator", "descriptoin": "x"}, "unknown key 'descriptoin'. Did you mean 'description'"),
    ],
)
def test_a_wrong_description_names_the_nearest(tmp_path: Path, entry: dict[str, object], words: str) -> None:
    with pytest.raises(UserInputError) as caught:
        load_tools(write(tmp_path, {"tools": [entry]}))
    assert words in str(caught.value)


def test_a_described_tool_has_the_config_that_agentrl_ships(tmp_path: Path) -> None:
    (spec,) = load_tools(write(tmp_path, {"tools": [{"name": "python", "description": "Run Python code."}]}))
    assert spec.config["sandbox_url"] == "http://127.0.0.1:8080"
