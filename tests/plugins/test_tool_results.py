"""What a tool may return, and what the error says about anything else."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import BaseModel

from agentrl.errors import ToolServiceError
from agentrl.plugins.adapt import as_tool, schema_of
from agentrl.plugins.tool_results import tool_result
from agentrl.types import ToolResponse


@dataclass
class Place:
    x: int


class Model(BaseModel):
    x: int


@dataclass
class VerlResponse:
    text: str | None = None
    image: list[Any] | None = None


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("4 km", "4 km"),
        ("", ""),
        (4, "4"),
        (0.5, "0.5"),
        (True, "True"),
        (np.float64(0.5), "0.5"),
        (torch.tensor(3), "3"),
        (Decimal("0.10"), "0.10"),
        ({"km": 4, "name": "Zürich"}, '{"km": 4, "name": "Zürich"}'),
        ([1, {"a": None}], '[1, {"a": null}]'),
        ({"n": np.int64(1), 2: {3}}, '{"n": 1, "2": [3]}'),
        (np.array([1, 2]), "[1, 2]"),
    ],
)
async def test_results_that_the_model_can_read(result: Any, text: str) -> None:
    def measure() -> Any:
        """Measure."""
        return result

    assert await as_tool(measure, {}, schema_of(measure, {})).execute({}) == ToolResponse(text=text)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "tool 'measure' returned None, wanted text, .*: does it lack a `return`"),
        (("a", 1), r"returned \('a', 1\), wanted a list, or \(text, reward, metrics\)"),
        ((1, 2, 3), "wanted a list, or"),
        ((1, 2, {}), "returned 1 as response, wanted text or a ToolResponse"),
        (("a", "high", {}), "returned reward 'high', wanted a number"),
        (b"a", "decode it"),
        ({1, 2}, r"`return sorted\(...\)`"),
        (Place(1), "dataclasses.asdict"),
        (Model(x=1), "model_dump"),
        (object(), r"`return str\(...\)`"),
    ],
)
async def test_results_that_are_refused_with_the_fix(result: Any, message: str) -> None:
    def measure() -> Any:
        """Measure."""
        return result

    with pytest.raises(ToolServiceError, match=message):
        await as_tool(measure, {}, schema_of(measure, {})).execute({})


@pytest.mark.parametrize("answer", ["4 km", VerlResponse("4 km"), ToolResponse(text="4 km")])
def test_the_triple_of_verl(answer: Any) -> None:
    response = tool_result("tool 'f' returned", (answer, np.float32(0.5), {"a": np.int64(1), "b": torch.tensor(True)}))
    assert response == ToolResponse(text="4 km", reward=0.5, metrics={"a": 1.0, "b": 1.0})
    assert tool_result("tool 'f' returned", (answer, None, None)) == ToolResponse(text="4 km")


def test_a_metric_that_is_no_number_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            response = tool_result("tool 'f' returned", ("x", 0.0, {"note": "slow", "n": 1}))
    assert response.metrics == {"n": 1.0}
    said = "tool 'f' returned metrics.note, which is not a number: it is left out"
    assert [record.getMessage() for record in caplog.records] == [said, f"{said} (10 times so far)"]
