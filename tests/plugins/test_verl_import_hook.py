"""verl's names in a plug-in on a machine without verl; whatever else it imports of verl's is told."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.errors import PluginError
from agentrl.plugins import load_agent_loops, load_file, load_interactions, load_tools, resolve
from agentrl.plugins.adapt import as_interaction, as_tool, schema_of
from agentrl.plugins.verl.adapters import VerlTool
from agentrl.plugins.verl.import_hook import BUILT_INS

SCHEMA = {"type": "function", "function": {"name": "t", "description": "T.", "parameters": {"type": "object"}}}
FILE = """
from verl.interactions.base import BaseInteraction
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.reward_score import default_compute_score, gsm8k
from verl.utils.rollout_trace import rollout_trace_op

class Tool(BaseTool):
    def get_openai_tool_schema(self):
        return OpenAIFunctionToolSchema.model_validate(%r)

    @rollout_trace_op
    async def execute(self, instance_id, parameters, **kwargs):
        return ToolResponse(text=self.tool_schema.function.name + self.name), 0.5, {}

class Talk(BaseInteraction):
    async def generate_response(self, instance_id, messages, **kwargs):
        return True, self.name, gsm8k.compute_score("#### 7", "7"), {}
"""


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "verl"]:
        del sys.modules[name]


@pytest.mark.parametrize("imported", [False, True])
def test_a_folder_of_that_name_without_code_is_not_verl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imported: bool
) -> None:
    (tmp_path / "place" / "verl" / "tools").mkdir(parents=True)  # of its YAML
    monkeypatch.syspath_prepend(tmp_path / "place")
    if imported:
        importlib.import_module("verl")
    (tmp_path / "ported.py").write_text(FILE % SCHEMA)
    assert load_file(tmp_path / "ported.py").Tool.__name__ == "Tool"
    (tmp_path / "more.py").write_text("import verl.trainer")
    with pytest.raises(PluginError, match="verl is not installed"):
        load_file(tmp_path / "more.py")


async def test_base_classes_that_do_nothing_are_enough(tmp_path: Path) -> None:
    (tmp_path / "ported.py").write_text(FILE % SCHEMA)
    module = load_file(tmp_path / "ported.py")
    assert schema_of(module.Tool, {}) == SCHEMA
    tool = as_tool(module.Tool, {}, SCHEMA)
    await tool.release()
    await tool.create(a=1)
    assert (await tool.execute({})).text == "tt"
    assert await tool.calc_reward() == 0.0
    await tool.release()
    talk = as_interaction(module.Talk, {"name": "talk"})
    await talk.start_interaction()
    response = await talk.generate_response([])
    assert (response.content, response.score) == ("talk", 1.0)
    assert await talk.calculate_score() == 0.0
    await talk.finalize_interaction()


@pytest.mark.parametrize(
    "line",
    ["from verl.utils.dataset import RLHFDataset", "from verl.tools.schemas import Other", "import verl.trainer"],
)
def test_other_imports_from_verl_say_what_to_do(tmp_path: Path, line: str) -> None:
    (tmp_path / "more.py").write_text(line + "\n")
    with pytest.raises(PluginError, match=r"verl is not installed; .*verl\.tools\.base_tool.*port_from_verl") as caught:
        load_file(tmp_path / "more.py")
    assert line.split()[1].split(".")[-1] in str(caught.value)


def test_a_schema_reads_as_verls_models_do(tmp_path: Path) -> None:
    (tmp_path / "ported.py").write_text(
        "from verl.tools.base_tool import BaseTool, OpenAIFunctionToolSchema\n"
        "from verl.utils.reward_score.math_reward import compute_score\n\n"
        "class Tool(BaseTool):\n"
        "    def __init__(self, config, tool_schema: OpenAIFunctionToolSchema):\n"
        "        super().__init__(config, tool_schema)\n"
        "        self.seen = [(name, one.type, one.enum) for name, one in\n"
        "                     tool_schema.function.parameters.properties.items()]\n"
        "        self.strict = tool_schema.function.strict\n"
        "        self.plain = tool_schema.model_dump(exclude_unset=True)\n\n"
        "    async def execute(self, instance_id, parameters, **kwargs):\n"
        "        return f'{self.seen} {self.strict}', 0.0, {}\n"
    )
    properties = {"a": {"type": "string"}, "b": {"type": "integer", "enum": [1, 2]}}
    schema = {"function": {"name": "t", "parameters": {"type": "object", "properties": properties}}}
    tool = as_tool(load_file(tmp_path / "ported.py").Tool, {}, schema)
    assert isinstance(tool, VerlTool)
    assert tool._tool.plain == schema
    assert tool._tool.seen == [("a", "string", None), ("b", "integer", [1, 2])]
    assert tool._tool.strict is False
    assert not hasattr(tool._tool.tool_schema, "other")


def test_verls_own_plugins_are_agentrls_where_verl_is_missing(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text(
        "tools:\n"
        "- {class_name: verl.tools.gsm8k_tool.Gsm8kTool, config: {type: native}}\n"
        "- {class_name: verl.tools.search_tool.SearchTool, config: {retrieval_service_url: 'http://x/retrieve'}}\n"
        "- {class_name: verl.tools.sandbox_fusion_tools.SandboxFusionTool, config: {sandbox_fusion_url: 'http://x'}}\n"
    )
    (tmp_path / "other.yaml").write_text(
        "interaction: [{class_name: verl.interactions.gsm8k_interaction.Gsm8kInteraction, config: {}}]"
    )
    (tmp_path / "loops.yaml").write_text(
        "- {name: mine, _target_: verl.experimental.agent_loop.tool_agent_loop.ToolAgentLoop}"
    )
    assert [tool.name for tool in load_tools(tmp_path / "tools.yaml")] == ["calc_gsm8k_reward", "search", "python"]
    assert list(load_interactions(tmp_path / "other.yaml")) == ["gsm8k"]
    assert load_agent_loops(tmp_path / "loops.yaml")["mine"].cls is resolve("agent_loops", "tool_agent")
    (tmp_path / "tools.yaml").write_text("tools: [{class_name: verl.tools.gsm8k_tools.Gsm8kTool}]")
    with pytest.raises(PluginError, match=r"verl is not installed\. Did you mean 'verl\.tools\.gsm8k_tool\.Gsm8kTool'"):
        load_tools(tmp_path / "tools.yaml")


def test_an_installed_verl_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "verl" / "tools"
    folder.mkdir(parents=True)
    (tmp_path / "verl" / "__init__.py").touch()
    (folder / "gsm8k_tool.py").write_text("class Gsm8kTool:\n    of_verl = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    name = next(iter(BUILT_INS))
    assert resolve("tools", name).of_verl


def test_a_ported_interaction_finds_its_name_in_its_config(tmp_path: Path) -> None:
    (tmp_path / "ported.py").write_text(FILE % SCHEMA)
    (tmp_path / "other.yaml").write_text("interaction: [{name: chat, class_name: 'ported.py:Talk', config: {a: 1}}]")
    spec = load_interactions(tmp_path / "other.yaml")["chat"]
    assert spec.build().config == {"name": "chat", "a": 1}
    assert spec.config == {"a": 1}
