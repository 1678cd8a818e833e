"""The loops of this folder pass the contract tests that users run on theirs."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.plugins import LoopSpec, resolve
from agentrl.testing.contracts import check_agent_loop
from agentrl.types import StopReason
from tests.agent_loops.test_langgraph_agent import agent_graph


@pytest.mark.parametrize(
    ("name", "answer", "options"),
    [
        ("react_agent", "Final Answer: 42", {"style": "scratchpad"}),
        ("search_r1_agent", "<answer>42</answer>", {}),
        ("langgraph_agent", "42", {"graph": agent_graph}),
    ],
)
async def test_contract(name: str, answer: str, options: dict[str, Any]) -> None:
    output = await check_agent_loop(LoopSpec(name, resolve("agent_loops", name), options), answer)
    assert output.stop_reason is StopReason.COMPLETED
