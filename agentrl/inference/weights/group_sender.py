"""Rank 0's side of `distributed`: one group with all engines, to which every bucket is broadcast.

An engine that fails holds up the whole group, so the group is given up: engines that are gone, silent or refuse are
left out, and the others begin again in a new group. A group that works is kept from one update to the next.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import EngineError, EngineTimeout, EngineUnavailable
from agentrl.inference.client import EngineClient
from agentrl.inference.weights.buckets import as_fields, flatten, specs_of
from agentrl.inference.weights.calls import Answers, UpdateCalls, each, together
from agentrl.inference.weights.group import UpdateGroup, address_towards, host_store

JOIN_S = 30.0
"""How long all ranks of a group may take to find each other."""
BROADCAST_S = 60.0
"""How long one bucket may be under way."""
LOOK_S = 0.05
"""How long an answer to the first announcement is waited for: an engine that refuses does so at once."""


class GroupSender:
    """Broadcasts buckets to engines.

    Args:
        backend: `nccl` or `gloo`.
    """

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._group: UpdateGroup | None = None
        self._members: tuple[object, ...] = ()
        self.held: dict[str, str] = {}
        """The group that each engine is in, also one that this process has left: it takes memory there."""

    async def send(
        self,
        clients: Mapping[str, EngineClient],
        engine_ranks: int,
        buckets: Iterator[dict[str, Tensor]],
        device: torch.device,
        deadline: float,
    ) -> tuple[dict[str, EngineError], bool]:
        """Broadcast all buckets.

        Args:
            clients: of the engines, by address.
            engine_ranks: ranks of each engine.
            buckets: taken one by one; on failure what is left is not taken.
            device: from which it is sent.
            deadline: on the monotonic clock.

        Returns:
            Engines to leave out and why, and whether the others must begin again.
        """
        members = (tuple(clients), engine_ranks)
        kept = self._group is not None and self._members == members
        answers = Answers() if kept else await self._join(clients, engine_ranks, deadline)
        group, self._members, look_s = self._group, members, LOOK_S
        while group is not None and answers.well and (tensors := next(buckets, None)) is not None:
            answers, look_s = await _broadcast(group, clients, tensors, device, deadline, look_s), 0.0
        if answers.well:
            return {}, False
        self.close()
        gone: dict[str, EngineError] = {
            a: e for a, e in answers.failed.items() if isinstance(e, EngineUnavailable | EngineTimeout)
        }
        await self.let_leave({address: client for address, client in clients.items() if address not in gone}, deadline)
        # An engine that was started anew knows no group: all that answer get a chance in a new one.
        failed = gone if kept else answers.failed
        return failed, len(failed) < len(clients)

    def close(self) -> None:
        """Leave the group."""
        group, self._group, self._members = self._group, None, ()
        if group is not None:
            group.leave()

    async def _join(self, clients: Mapping[str, EngineClient], engine_ranks: int, deadline: float) -> Answers:
        """Make a new group with all engines."""
        self.close()
        await self.let_leave(clients, deadline)
        limit_s = min(_left(deadline), JOIN_S)
        host = address_towards(list(clients))
        stores, name = [host_store(host, limit_s)], f"agentrl-{uuid.uuid4().hex[:12]}"
        world = 1 + engine_ranks * len(clients)
        fields = {
            "master_address": host,
            "master_port": stores[0].port,
            "world_size": world,
            "group_name": name,
            "backend": self._backend,
        }

        def join() -> None:
            # While the store lives, engines wait in it. So nothing may hold it once this has failed: no list, no frame
            # of an error.
            store = stores.pop()
            try:
                self._group = UpdateGroup(
                    store, name, rank=0, world_size=world, backend=self._backend, timeout_s=limit_s
                )
            except RuntimeError as error:
                problem = str(error)
            else:
                return
            del store
            raise RuntimeError(problem)

        offsets = range(1, world, engine_ranks)
        asked = {
            address: UpdateCalls(client, limit_s * 2).init_group({**fields, "rank_offset": offset})
            for (address, client), offset in zip(clients.items(), offsets, strict=True)
        }
        # The wait of all ends with the store, which lives until this process has waited for `limit_s`: engines that go
        # to it after another one has failed would look for a store that is gone.
        answers = await together(asked, join, lambda: None, limit_s + 1.0)
        if self._group is not None:
            self.held |= dict.fromkeys(clients, name)
        return answers

    async def let_leave(self, clients: Mapping[str, EngineClient], deadline: float) -> None:
        """Tell engines to leave the groups that they are in. One that does not hear it is not told again."""
        known = [address for address in clients if address in self.held]
        calls = {a: UpdateCalls(clients[a], _left(deadline)).leave_group(self.held.pop(a)) for a in known}
        await each({address: _quietly(call) for address, call in calls.items()})


async def _broadcast(
    group: UpdateGroup,
    clients: Mapping[str, EngineClient],
    tensors: dict[str, Tensor],
    device: torch.device,
    deadline: float,
    look_s: float,
) -> Answers:
    """Announce a bucket to all engines and, unless one of them refuses, broadcast it."""
    flat, limit_s = flatten(tensors).to(device), min(_left(deadline), BROADCAST_S)
    fields = {**as_fields(specs_of(tensors)), "group_name": group.name, "load_format": "flattened_bucket"}
    tensors.clear()
    asked = {address: UpdateCalls(client, limit_s).receive(fields) for address, client in clients.items()}
    return await together(asked, lambda: group.broadcast(flat, limit_s), group.leave, limit_s, look_s)


async def _quietly(call: Coroutine[Any, Any, None]) -> None:
    with suppress(EngineError):
        await call


def _left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())
