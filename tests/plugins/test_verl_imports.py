"""verl's names in a plug-in on a machine without verl; whatever else it imports of verl's is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.errors import PluginError
from agentrl.plugin_adapters import as_interaction, as_tool, schema_of
from agentrl.plugins import load_file

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
    ["from verl.utils.dataset import RLHFDataset", "from verl.tools.schemas import Other", "import verl.workers"],
)
def test_other_imports_from_verl_say_what_to_do(tmp_path: Path, line: str) -> None:
    (tmp_path / "more.py").write_text(line + "\n")
    with pytest.raises(PluginError, match=r"verl is not installed; .*verl\.tools\.base_tool.*port_from_verl") as caught:
        load_file(tmp_path / "more.py")
    assert line.split()[1].split(".")[-1] in str(caught.value)
