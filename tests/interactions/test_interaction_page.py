"""docs/write_an_interaction.md: its interaction passes its own test, and plays a whole conversation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agentrl.agent_loops.tool_agent import ToolAgent
from agentrl.chat.renderer import ChatRenderer
from agentrl.chat.tool_parsers.hermes import HermesToolParser
from agentrl.plugins import load_interactions
from agentrl.testing.loops import ScriptedReplies, make_context
from agentrl.testing.models import byte_tokenizer
from agentrl.types import StopReason

PAGE = (Path(__file__).parents[2] / "docs" / "write_an_interaction.md").read_text(encoding="utf-8")
CODE, ROW, TEST = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(YAML,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_interactions.py").write_text(CODE)
    (tmp_path / "my_interactions.yaml").write_text(YAML)
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_the_pages_own_test(folder: Path) -> None:
    scope: dict[str, Any] = {}
    exec(TEST, scope)
    await scope["test_guess"]()


async def test_a_whole_conversation(folder: Path) -> None:
    scope: dict[str, Any] = {}
    exec(ROW, scope)
    row = scope["row"]
    kwargs = dict(row["extra_info"]["interaction_kwargs"])
    interaction = load_interactions("my_interactions.yaml")[kwargs.pop("name")].build()
    await interaction.start_interaction(**kwargs)
    renderer = ChatRenderer(byte_tokenizer())
    turns = [[*renderer.encode_text(text), *renderer.turn_end_ids[-1:]] for text in ("50", "hm", "30", "37")]
    context = make_context(renderer, ScriptedReplies(turns), tool_parser=HermesToolParser(), interaction=interaction)
    output = await ToolAgent(context).run({}, messages=row["prompt"])
    assert output.stop_reason is StopReason.INTERACTION_DONE
    assert output.extra_fields["turn_scores"] == [0.1, 0.0, 0.1, 1.0]
    assert output.extra_fields["turn_score_turns"] == [0, 1, 2, 3]
    assert output.extra_fields["interaction_score"] == 0.25
    said = [m["content"] for m in output.extra_fields["messages"] if m["role"] == "user"][1:]
    assert said == ["Too high.", "Please end with a number.", "Too low."]
