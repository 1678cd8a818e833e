"""`@register`: marks a worker method as callable from the controller and says how its data is distributed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])

_SPEC = "__agentrl_method_spec__"


class Dispatch(Enum):
    """How a call becomes one call per rank, and the results one result."""

    ONE_TO_ALL = "one_to_all"
    """Every rank gets the same arguments; the caller gets the list of results by rank."""
    ALL_TO_ALL = "all_to_all"
    """Every argument is a list with one entry per rank; the caller gets the list of results by rank."""
    RANK_ZERO = "rank_zero"
    """The same as `Execute.RANK_ZERO`."""
    DP_COMPUTE_PROTO = "dp_compute_proto"
    """Every `DataProto` argument is split over the ranks; the returned `DataProto`s are joined in the input's order.

    The parts are consecutive and differ by at most one row, unless `meta_info["rank_partitions"]` of the first
    `DataProto` (one list of rows per part) says otherwise. Other arguments go to every rank. Where several ranks hold
    the parts of one model or of one row (`Worker.copies_of`), they get the same part, and the first one answers.
    """


class Execute(Enum):
    """Which ranks run a method."""

    ALL = "all"
    """Every rank, with what the dispatch mode gives it."""
    RANK_ZERO = "rank_zero"
    """Only rank 0, with the arguments as they were passed, whatever the dispatch mode; the caller gets its result. The
    method must not communicate with other ranks."""


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """What `@register` recorded about a method."""

    name: str
    dispatch: Dispatch
    blocking: bool


def register(
    dispatch_mode: Dispatch = Dispatch.ONE_TO_ALL, execute_mode: Execute = Execute.ALL, blocking: bool = True
) -> Callable[[Method], Method]:
    """Make a `Worker` method callable on a `WorkerGroup`.

    Args:
        dispatch_mode: how arguments are distributed and results collected.
        execute_mode: which ranks run it.
        blocking: False makes the bound method return a `WorkerFuture` immediately.
    """
    for value, kind in ((dispatch_mode, Dispatch), (execute_mode, Execute)):
        if not isinstance(value, kind):
            raise TypeError(f"@register: got {value!r}, wanted one of {', '.join(map(str, kind))}")
    dispatch = Dispatch.RANK_ZERO if execute_mode is Execute.RANK_ZERO else dispatch_mode

    def mark(method: Method) -> Method:
        setattr(method, _SPEC, MethodSpec(method.__name__, dispatch, blocking))
        return method

    return mark


def registered_methods(worker_cls: type) -> dict[str, MethodSpec]:
    """Registered methods of a class and its bases by name; an override inherits the registration."""
    found: dict[str, MethodSpec] = {}
    for cls in reversed(worker_cls.__mro__):
        for name, member in vars(cls).items():
            spec = getattr(member, _SPEC, None)
            if isinstance(spec, MethodSpec):
                found[name] = spec
    return found
