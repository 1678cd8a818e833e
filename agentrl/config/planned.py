"""Reading a configuration for other machines than this one: `agentrl plan --cluster 4x8x80` on a laptop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_GPUS: ContextVar[bool | None] = ContextVar("planned_gpus", default=None)


def planned_gpus() -> bool | None:
    """Whether the machines that are planned for have GPUs; None: nothing is planned, this machine counts."""
    return _GPUS.get()


@contextmanager
def planning_for(*, gpus: bool) -> Iterator[None]:
    """Within it `auto` means what it would mean on the planned machines, which have SGLang and vLLM where asked for."""
    token = _GPUS.set(gpus)
    try:
        yield
    finally:
        _GPUS.reset(token)
