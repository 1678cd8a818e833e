"""WorkerGroup: the trainer's handle on its ranks, with one method per `@register`ed method of the worker class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from agentrl.errors import ConfigError, WorkerError, suggest
from agentrl.single_controller.decorator import registered_methods
from agentrl.single_controller.dispatch import DispatchPlan, plan_call
from agentrl.single_controller.resource_pool import ResourcePool
from agentrl.single_controller.worker import Worker
from agentrl.timeline import Timeline


class PendingCall(Protocol):
    """A call in progress. Implemented by each backend."""

    def done(self) -> bool:
        """True when every rank has answered or failed."""

    def results(self) -> list[Any]:
        """Wait and return the results by rank. Raises the worker's own `AgentRLError`, or `WorkerError`."""


class RankBackend(Protocol):
    """Where ranks live. Implemented by `LocalBackend` and `RayBackend`."""

    world_size: int

    def start(self, method: str, plan: DispatchPlan, after: Sequence[Any] = ()) -> PendingCall:
        """Send the calls of a plan to their ranks, which begin when the last calls of the backends `after` have ended.

        All backends of a run are of one kind.
        """

    def check(self) -> None:
        """Raise `WorkerError` if a rank is dead."""

    def wait_until_free(self, timeout_s: float | None) -> None:
        """Wait for the end of the last call. Raise `WorkerError` if a rank is dead, or still busy after `timeout_s`."""

    def take_timelines(self, timeout_s: float) -> list[list[Timeline]]:
        """By rank, those of the calls that were traced. Raise `WorkerError` if a rank does not answer."""

    def shutdown(self) -> None:
        """End all ranks; returns when their processes have exited."""


class WorkerFuture:
    """The joined result of a call that may still be running."""

    def __init__(self, pending: PendingCall, plan: DispatchPlan) -> None:
        self._pending = pending
        self._plan = plan

    def done(self) -> bool:
        """True if `get` returns without waiting."""
        return self._pending.done()

    def get(self) -> Any:
        """Wait for every rank and join the results.

        Raises:
            AgentRLError: a worker raised it.
            WorkerError: a worker died or failed in another way; the message names rank and cause.
        """
        return self._plan.collect(self._pending.results())


class WorkerGroup:
    """The ranks of one worker class.

    Every registered method of the class is a method here. It returns the joined result, or a `WorkerFuture` if it was
    registered with `blocking=False`. `submit` starts any of them without waiting. Use the group as a context manager,
    or call `shutdown`.

    Attributes:
        pool: where the ranks are. Groups on one pool share its GPUs.
    """

    def __init__(self, backend: RankBackend, pool: ResourcePool, worker_cls: type[Worker], copies: int = 1) -> None:
        self.pool = pool
        self._backend = backend
        self._copies = copies
        self._name = worker_cls.__name__
        self._methods = registered_methods(worker_cls)
        self._open = True

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._backend.world_size

    @property
    def data_size(self) -> int:
        """Into how many parts the rows of a call are split; several ranks may get the same part."""
        return self.world_size // self._copies

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The bound method of a registered worker method."""
        if name.startswith("_"):
            raise AttributeError(name)
        spec = self._methods.get(name)
        if spec is None:
            hint = suggest(name, self._methods)
            raise AttributeError(f"{self._name} has no registered method '{name}'.{hint}")

        def bound(*args: Any, **kwargs: Any) -> Any:
            future = self.submit(name, *args, **kwargs)
            return future.get() if spec.blocking else future

        bound.__name__ = name
        return bound

    def submit(self, method: str, /, *args: Any, **kwargs: Any) -> WorkerFuture:
        """Start a registered method on the ranks and return immediately."""
        return self.submit_after((), method, *args, **kwargs)

    def submit_after(self, groups: Sequence[WorkerGroup], method: str, /, *args: Any, **kwargs: Any) -> WorkerFuture:
        """As `submit`; the ranks begin when those of other groups have ended what they were given so far.

        A future among the arguments is waited for, and its result is passed.
        """
        spec = self._methods.get(method)
        if spec is None:
            raise AttributeError(f"{self._name} has no registered method '{method}'.{suggest(method, self._methods)}")
        if not self._open:
            raise WorkerError(f"{self._name}.{method} was called after the group's shutdown")
        values = tuple(map(_value_of, args)), {name: _value_of(value) for name, value in kwargs.items()}
        plan = plan_call(spec.dispatch, self.world_size, *values, self._copies)
        return WorkerFuture(self._backend.start(method, plan, [group._backend for group in groups]), plan)

    def check(self) -> None:
        """Raise `WorkerError` if a rank is dead."""
        self._backend.check()

    def wait_until_free(self, timeout_s: float | None) -> None:
        """Wait until every rank has ended its last call, also one whose result nobody waits for any more.

        Raises:
            WorkerError: a rank is dead, or still busy after `timeout_s`.
        """
        self._backend.wait_until_free(timeout_s)

    def take_timelines(self, timeout_s: float) -> list[list[Timeline]]:
        """By rank, what it spent its time on in the calls that were traced; those in this process are not in it.

        Raises:
            WorkerError: a rank is dead, or gives no answer in time.
        """
        return self._backend.take_timelines(timeout_s)

    def shutdown(self) -> None:
        """End all ranks; calling it again does nothing."""
        if self._open:
            self._open = False
            self._backend.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


def _value_of(argument: Any) -> Any:
    return argument.get() if isinstance(argument, WorkerFuture) else argument


def create_worker_group(
    backend: Literal["ray", "local"], pool: ResourcePool, worker_cls: type[Worker], *args: Any, **kwargs: Any
) -> WorkerGroup:
    """Start `worker_cls(*args, **kwargs)` on every rank of `pool`.

    Args:
        backend: `ray` (call `init_ray` first) or `local`.
        pool: how many ranks, where.
        worker_cls: subclass of `Worker`.
        *args: positional arguments of the worker, the same on every rank.
        **kwargs: keyword arguments of the worker.

    Raises:
        ConfigError: the backend is unknown, or it or the cluster cannot serve the pool.
        AgentRLError: the worker's `__init__` raised it.
    """
    copies = worker_cls.copies_of(*args, **kwargs)
    if pool.world_size % copies:
        raise ConfigError(f"{worker_cls.__name__}: {copies} ranks share rows, which does not divide {pool.world_size}")
    if backend == "local":
        from agentrl.single_controller.local_backend import LocalBackend

        return WorkerGroup(LocalBackend(pool, worker_cls, *args, **kwargs), pool, worker_cls, copies)
    if backend == "ray":
        from agentrl.single_controller.ray_backend import RayBackend

        return WorkerGroup(RayBackend(pool, worker_cls, *args, **kwargs), pool, worker_cls, copies)
    raise ConfigError(f"trainer.backend: got '{backend}', wanted 'ray' or 'local'")
