"""`benchmarks/fleet.py` in small: its parts run, and its bars say what is missed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from rollout_helpers import ANSWER, CALL

from agentrl.config.root import RunConfig

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("fleet")


def test_router_and_manager_run_without_a_fleet(
    fleet: ModuleType, config: RunConfig, encode: Callable[[str], list[int]]
) -> None:
    found = fleet.record(config, [encode(CALL), encode(ANSWER)])
    assert found.turns == 2
    assert [len(answer.token_ids) for answer in found.answers] == [len(encode(CALL)), len(encode(ANSWER))]
    assert isinstance(fleet.router_ms(found, 16, 8), float)
    costs, chunks = fleet.manager_ms(config, found, 4, 20, [10, 50], 2)
    assert [len(each) for each in costs] == [2, 2]
    assert min(map(min, costs)) > 0
    assert chunks >= 4
    assert 0 < fleet.manager_kb(config, found, 4, 40) < 20


def test_an_engine_answers_by_row_and_turn(fleet: ModuleType) -> None:
    respond = importlib.import_module("fleet_engine").play_one_of([[[1], [2]], [[3], [4]]])
    asked = ["train-1-0-abc-0", "train-1-1-abc-1", "2.train-1-3-abc-0"]
    assert [respond({"rid": rid})[0] for rid in asked] == [[1], [4], [3]]


@pytest.mark.parametrize(
    ("measured", "missed"),
    [
        ((0.5, 50.0, {"a worker": 1.5}), []),
        ((0.51, 50.4, {"a worker": 1.0}), ["0.51 CPU-ms a turn", "50 kB per trajectory"]),
        ((0.1, 20.0, {"a worker": 2.0, "the router": 4.0}), ["the router grows by 4.0"]),
    ],
)
def test_bars(fleet: ModuleType, measured: tuple[float, float, dict[str, float]], missed: list[str]) -> None:
    assert fleet.missed(*measured) == missed
