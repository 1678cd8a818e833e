"""What a trajectory, or a process during a step, spends its time on: spans, noted where they happen.

Everything that tells of time reads these: the metrics `timing_s/agent_loop/*`, the `timeline` of a dump, traces.

A trajectory with one tool call, as its dump holds it::

    generate  0.000 +1.210  turn 1
    wait      1.214 +0.350  its turn at tool 'search'
    tool      1.564 +0.080  search
    generate  1.650 +0.420  turn 2
    score     2.071 +0.003  outcome
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

TRAJECTORY = "trajectory"
_IDS = random.Random()
os.register_at_fork(after_in_child=_IDS.seed)
SHORTEST_WAIT_S = 0.001
"""Shorter waits are not noted: nearly every call finds its turn at once."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The span of a trace that others continue: what the header `traceparent` says."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 of them; empty: the trace has no span yet."""

    @classmethod
    def new(cls) -> TraceContext:
        """A new trace."""
        return cls(f"{_IDS.getrandbits(128):032x}", "")


class Span(NamedTuple):
    """Something that took time."""

    name: str
    start: float
    """Seconds since its timeline began."""
    seconds: float
    detail: str
    """The tool, the turn, or what was waited for."""
    span_id: str = ""
    """Empty: not traced."""
    parent_id: str = ""
    error: str = ""
    """How it failed; empty: it did not."""


def new_span_id() -> str:
    """A random one. A system call for each would cost more than everything else about a span."""
    return f"{_IDS.getrandbits(64):016x}"


class Timeline:
    """The spans of one trajectory, or of one process.

    Args:
        trace: the span that they belong to; None: nobody traces them, and they get no ids.
        waited_s: how long the trajectory has already waited for `cause`.
        cause: what it waited for.
    """

    __slots__ = ("_zero", "began", "spans", "trace")

    def __init__(self, trace: TraceContext | None = None, waited_s: float = 0.0, cause: str = "") -> None:
        self.trace = trace
        self.began = time.time() - waited_s
        """Unix time."""
        self._zero = time.perf_counter() - waited_s
        self.spans: list[Span] = []
        if waited_s:
            self.add("wait", self._zero, waited_s, cause)

    def span(self, name: str, detail: str = "") -> OpenSpan:
        """Note what happens in a `with` block, in which it is the `current` span."""
        return OpenSpan(self, name, detail)

    @contextmanager
    def current(self) -> Iterator[None]:
        """What `span_here` notes in a `with` block belongs to this timeline."""
        root = OpenSpan(self, "", "")
        root.span_id = "" if self.trace is None else self.trace.span_id
        before = _CURRENT.set(root)
        try:
            yield
        finally:
            _CURRENT.reset(before)

    def add(self, name: str, started: float, seconds: float, detail: str) -> None:
        """Note what has happened within the current span.

        Args:
            name: of the span.
            started: on `time.perf_counter`'s clock.
            seconds: how long it took.
            detail: as in `Span`.
        """
        ids = (new_span_id(), self._parent_id()) if self.trace is not None else ()
        self.spans.append(Span(name, started - self._zero, seconds, detail, *ids))

    def seconds_of(self, name: str) -> float:
        """How long all spans of a name took together."""
        return sum(span.seconds for span in self.spans if span.name == name)

    def records(self) -> list[dict[str, Any]]:
        """The spans as JSON, by their beginning, without the one around all of them."""
        return [
            {"name": span.name, "start": round(span.start, 6), "seconds": round(span.seconds, 6), "detail": span.detail}
            for span in sorted(self.spans, key=lambda span: span.start)
            if span.name != TRAJECTORY
        ]

    def _parent_id(self) -> str:
        around = _CURRENT.get()
        if around is not None and around.timeline is self:
            return around.span_id
        return "" if self.trace is None else self.trace.span_id


class OpenSpan:
    """A span that has not ended yet; see `Timeline.span`. Every generation and call has one, so it does little."""

    __slots__ = ("_before", "_started", "detail", "error", "name", "parent_id", "seconds", "span_id", "timeline")

    seconds: float
    """How long it took; known when it has ended."""
    _before: Token[OpenSpan | None]
    _started: float

    def __init__(self, timeline: Timeline, name: str, detail: str) -> None:
        self.timeline, self.name, self.detail = timeline, name, detail
        self.span_id = self.parent_id = self.error = ""

    def __enter__(self) -> OpenSpan:
        if self.timeline.trace is not None:
            self.span_id, self.parent_id = new_span_id(), self.timeline._parent_id()
        self._before = _CURRENT.set(self)
        self._started = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.seconds = seconds = time.perf_counter() - self._started
        _CURRENT.reset(self._before)
        if kind is not None:
            self.error = kind.__name__
        timeline = self.timeline
        start = self._started - timeline._zero
        ended = (self.name, start, seconds, self.detail, self.span_id, self.parent_id, self.error)
        timeline.spans.append(tuple.__new__(Span, ended))  # a third of the time of `Span(*ended)`


_CURRENT: ContextVar[OpenSpan | None] = ContextVar("current_span", default=None)


def span_here(name: str, detail: str = "") -> AbstractContextManager[OpenSpan | None]:
    """A span within the one that is open here; where none is, nothing."""
    around = _CURRENT.get()
    return nullcontext() if around is None else around.timeline.span(name, detail)


def current_trace() -> TraceContext | None:
    """The span that is open here, for whoever continues it elsewhere; None: nobody traces."""
    around = _CURRENT.get()
    trace = None if around is None else around.timeline.trace
    return None if around is None or trace is None else TraceContext(trace.trace_id, around.span_id)


def note_wait(cause: str, started: float) -> None:
    """Note that what runs here has waited since `started` (`time.perf_counter`), if it belongs to a timeline."""
    around, seconds = _CURRENT.get(), time.perf_counter() - started
    if around is not None and seconds >= SHORTEST_WAIT_S:
        around.timeline.add("wait", started, seconds, cause)


def trace_headers() -> dict[str, str]:
    """The headers with which a service continues the trace of what runs here (W3C Trace Context); none: no trace."""
    trace = current_trace()
    return {} if trace is None else {"traceparent": f"00-{trace.trace_id}-{trace.span_id}-01"}
