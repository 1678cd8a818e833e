"""What the soak of both services calls growth."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "soak_services.py"
USE = {"memory MB": 200.0, "open files": 30.0, "processes": 8.0, "temp files": 20.0}


@pytest.fixture(scope="module")
def soak() -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak_services", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, []),
        ({"memory MB": 244.0, "open files": 42.0, "processes": 11.0, "temp files": 26.0}, []),
        ({"memory MB": 100.0, "open files": 0.0, "processes": 1.0, "temp files": 0.0}, []),
        ({"memory MB": 244.1}, ["memory MB"]),
        ({"open files": 43.0}, ["open files"]),
        ({"processes": 12.0, "temp files": 27.0}, ["processes", "temp files"]),
    ],
)
def test_growth_is_more_than_the_allowance(soak: ModuleType, change: dict[str, float], found: list[str]) -> None:
    assert USE.keys() == soak.ALLOWED.keys()
    assert soak.grown(USE, {**USE, **change}) == found


def test_a_leak_fails_the_report_and_a_wrong_answer_too(
    soak: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(leak: float, *outcomes: str) -> bool:
        service = soak.Service("retrieval", None, "http://127.0.0.1:9", tmp_path)
        service.samples = [{**USE, "open files": 30.0 + leak * number} for number in range(60)]
        service.outcomes.update(outcomes)
        return bool(soak.report(service, USE, USE))

    assert report(0.0, "found", "refused")
    assert not report(0.5, "found")
    assert "growth of open files" in capsys.readouterr().out
    assert not report(0.0, "found", "WRONG 500")
