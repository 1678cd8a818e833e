"""Timelines as a Chrome trace: what overlaps is on different tracks, what is within something is within it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentrl.observability.chrome_trace import write_chrome_trace
from agentrl.timeline import Span, Timeline, TraceContext


def timeline(began: float, *spans: tuple[str, float, float], detail: str = "") -> Timeline:
    made = Timeline(TraceContext("ab" * 16, "cd" * 8))
    made.began = began
    made.spans = [Span(name, start, end - start, detail) for name, start, end in spans]
    return made


def events(path: Path, *timelines: tuple[str, Timeline]) -> list[dict[str, Any]]:
    write_chrome_trace(path / "deep" / "trace.json", timelines)
    assert [file.name for file in (path / "deep").iterdir()] == ["trace.json"]
    found: list[dict[str, Any]] = json.loads((path / "deep" / "trace.json").read_text())["traceEvents"]
    return found


def placed(found: list[dict[str, Any]]) -> dict[str, tuple[int, int, float, float]]:
    """Process, track, begin and duration in ms, by name."""
    return {e["name"]: (e["pid"], e["tid"], e["ts"] / 1000, e["dur"] / 1000) for e in found if e["ph"] == "X"}


def test_calls_at_the_same_time_are_on_tracks_of_their_own(tmp_path: Path) -> None:
    first = timeline(100.0, ("trajectory a", 0, 1), ("generate a", 0, 0.2), ("tool 1", 0.3, 0.6), ("tool 2", 0.4, 0.8))
    other = timeline(100.5, ("trajectory b", 0, 1), ("generate b", 0, 1))
    later = timeline(101.25, ("trajectory c", 0, 1))
    found = events(
        tmp_path, ("loops", first), ("loops", later), ("loops", other), ("driver", timeline(99, ("step", 0, 3)))
    )
    assert placed(found) == {
        "trajectory a": (1, 1, 1000, 1000),
        "generate a": (1, 1, 1000, 200),
        "tool 1": (1, 1, 1300, 300),
        "tool 2": (1, 2, 1400, 400),
        "trajectory b": (1, 3, 1500, 1000),
        "generate b": (1, 3, 1500, 1000),
        "trajectory c": (1, 1, 2250, 1000),
        "step": (2, 1, 0, 3000),
    }
    names = [(e["pid"], e["args"]["name"]) for e in found if e["name"] == "process_name"]
    assert names == [(1, "loops"), (2, "driver")]


def test_a_rounded_end_stays_within_the_span_around_it(tmp_path: Path) -> None:
    outer, inner = ("outer", 0.1, 0.3), ("inner", 0.2, 0.3 + 2e-9)
    found = placed(events(tmp_path, ("driver", timeline(0, outer, inner, ("next", 0.3, 0.4)))))
    assert {name: (track, begin + seconds) for name, (_, track, begin, seconds) in found.items()} == {
        "outer": (1, 300.0),
        "inner": (1, 300.0),
        "next": (1, 400.0),
    }


def test_what_a_span_says(tmp_path: Path) -> None:
    one = timeline(0, ("tool", 0, 1), detail="search")
    one.spans[0] = one.spans[0]._replace(span_id="ef" * 8, parent_id="cd" * 8, error="ToolServiceError")
    (event,) = [event for event in events(tmp_path, ("driver", one), ("empty", Timeline())) if event["ph"] == "X"]
    assert event["args"] == {
        "detail": "search",
        "error": "ToolServiceError",
        "span_id": "ef" * 8,
        "parent_id": "cd" * 8,
        "trace_id": "ab" * 16,
    }
