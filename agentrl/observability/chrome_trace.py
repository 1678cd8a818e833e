"""Timelines of several processes as a Chrome trace, which Perfetto opens (the "Trace Event Format").

A process has one track of its own, and as many for trajectories as ran at the same time::

    agent loops 0   1  trajectory row 0                    | trajectory row 7 ...
                       generate  tool      generate  score
                    2  trajectory row 1
                       generate  tool
                    3            tool                        a second call at the same time as the first
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from agentrl.timeline import Span, Timeline

Event = dict[str, Any]
Interval = tuple[int, int]
"""Begin and end, in nanoseconds since the trace began."""
_ROUNDING_NS = 1000
"""Begin and duration are kept, not the end, so that a span may seem to end a little after the one around it."""


def write_chrome_trace(file: Path, timelines: Sequence[tuple[str, Timeline]]) -> None:
    """Write the timelines of processes, by their names; the file appears only when it is complete.

    Raises:
        OSError: it cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    began = min(timeline.began for _, timeline in timelines)
    events = [*_events(timelines, began)]
    trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"began_unix_s": began}}
    try:
        part.write_bytes(orjson.dumps(trace))
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)


def _events(timelines: Sequence[tuple[str, Timeline]], began: float) -> Iterator[Event]:
    for pid, process in enumerate(dict.fromkeys(name for name, _ in timelines), start=1):
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": process}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
        tracks: list[int] = []
        own = [timeline for name, timeline in timelines if name == process and timeline.spans]
        for timeline in sorted(own, key=lambda timeline: timeline.began):
            yield from _on_tracks(timeline, round((timeline.began - began) * 1e9), pid, tracks)


def _on_tracks(timeline: Timeline, offset: int, pid: int, tracks: list[int]) -> Iterator[Event]:
    """The events of one timeline, on tracks that are free from its begin on; `tracks` holds when each becomes free."""
    spans = sorted(timeline.spans, key=lambda span: (span.start, -span.seconds))
    intervals = [(offset + round(s.start * 1e9), offset + round((s.start + s.seconds) * 1e9)) for s in spans]
    rows, intervals = _nested(intervals)
    first = min(begin for begin, _ in intervals)
    free = [track for track, until in enumerate(tracks) if until <= first]
    missing = max(rows) + 1 - len(free)
    free += range(len(tracks), len(tracks) + missing)
    tracks += [0] * max(missing, 0)
    trace_id = "" if timeline.trace is None else timeline.trace.trace_id
    for span, row, (begin, end) in zip(spans, rows, intervals, strict=True):
        tracks[free[row]] = max(tracks[free[row]], end)
        yield {
            "ph": "X",
            "name": span.name,
            "cat": "agentrl",
            "pid": pid,
            "tid": free[row] + 1,
            "ts": begin / 1000,
            "dur": (end - begin) / 1000,
            "args": _arguments(span, trace_id),
        }


def _nested(intervals: Sequence[Interval]) -> tuple[list[int], list[Interval]]:
    """For each interval a row on which it is apart from the others or within them, and the interval as it fits there.

    Args:
        intervals: by begin, longer ones first.
    """
    # [0, 100], [10, 50], [20, 60], [70, 90]: the second and the last are within the first, on row 0. The third begins
    # within the second and ends after it: it is on row 1.
    rows: list[int] = []
    fitted: list[Interval] = []
    open_ends: list[list[int]] = []
    for begin, end in intervals:
        for ends in open_ends:
            while ends and ends[-1] <= begin:
                ends.pop()
        found = (row for row, ends in enumerate(open_ends) if not ends or end <= ends[-1] + _ROUNDING_NS)
        row = next(found, len(open_ends))
        if row == len(open_ends):
            open_ends.append([])
        fits = min(end, *open_ends[row]) if open_ends[row] else end
        open_ends[row].append(fits)
        rows.append(row)
        fitted.append((begin, fits))
    return rows, fitted


def _arguments(span: Span, trace_id: str) -> dict[str, str]:
    ids = {"span_id": span.span_id, "parent_id": span.parent_id, "trace_id": trace_id}
    return {name: value for name, value in {"detail": span.detail, "error": span.error, **ids}.items() if value}
