"""Spans: their order, what is within what, and the header with which a service continues them."""

from __future__ import annotations

import asyncio
import pickle
import time

from agentrl.timeline import TRAJECTORY, Timeline, TraceContext, new_span_id, note_wait, trace_headers


def test_nobody_traces() -> None:
    timeline = Timeline()
    with timeline.span(TRAJECTORY), timeline.span("tool", "search") as call:
        assert trace_headers() == {}
        note_wait("a short one", time.perf_counter())
        note_wait("its turn", time.perf_counter() - 0.5)
    assert [(span.name, span.span_id) for span in timeline.spans] == [("wait", ""), ("tool", ""), (TRAJECTORY, "")]
    assert [record["detail"] for record in timeline.records()] == ["its turn", "search"]
    assert timeline.seconds_of("tool") == call.seconds > 0
    note_wait("outside of every span", time.perf_counter() - 0.5)
    assert len(timeline.spans) == 3


def test_an_outage_is_the_first_wait() -> None:
    timeline = Timeline(None, 2.5, "a service that was down")
    with timeline.span("generate", "turn 1"):
        pass
    first, second = timeline.records()
    assert first == {"name": "wait", "start": 0.0, "seconds": 2.5, "detail": "a service that was down"}
    assert second["start"] >= 2.5
    assert timeline.began <= time.time() - 2.5


def test_a_trace_knows_what_is_within_what() -> None:
    """Calls at the same time are both within the trajectory, and each service continues its own call."""
    trace = TraceContext(TraceContext.new().trace_id, new_span_id())
    timeline = Timeline(trace)
    headers: dict[str, str] = {}

    async def call(tool: str) -> None:
        with timeline.span("tool", tool):
            await asyncio.sleep(0.001)
            headers[tool] = await asyncio.create_task(asyncio.to_thread(lambda: trace_headers()["traceparent"]))
            note_wait(f"{tool} is busy", time.perf_counter() - 1)

    async def play() -> None:
        with timeline.span(TRAJECTORY):
            await asyncio.gather(call("a"), call("b"))

    asyncio.run(play())
    spans = {f"{span.name} {span.detail}": span for span in pickle.loads(pickle.dumps(timeline)).spans}
    root = spans[f"{TRAJECTORY} "]
    assert (len(trace.trace_id), len(trace.span_id), root.parent_id) == (32, 16, trace.span_id)
    for tool in ("a", "b"):
        own = spans[f"tool {tool}"]
        assert own.parent_id == root.span_id
        assert spans[f"wait {tool} is busy"].parent_id == own.span_id
        assert headers[tool] == f"00-{trace.trace_id}-{own.span_id}-01"
    assert len({span.span_id for span in spans.values()}) == 5
