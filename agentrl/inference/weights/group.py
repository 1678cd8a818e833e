"""The process group over which weights travel: rank 0 is the trainer's, the others are those of engines.

SGLang makes its end by `/init_weights_update_group`; this is the trainer's end, and the embedded engine's. It is a
group of its own beside torch's default one, which stays what it is::

    trainer, rank 0          TCP store, listens         engines, ranks 1 to n    connect to it
    keys of both             GROUP / GROUP / cpu / …    (what torch puts before them for a group of this name)
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from agentrl.errors import UserInputError

BACKENDS = {"gloo": "cpu", "nccl": "cuda"}
"""What carries the bytes, by the kind of device that they are on."""


class UpdateGroup:
    """One end of a group. Making it waits until all ranks have joined.

    Args:
        store: where the ranks meet: from `host_store` or `join_store`.
        name: of the group, the same on all ranks, and never used before at this store.
        rank: 0 sends.
        world_size: number of ranks.
        backend: `gloo` or `nccl`.
        timeout_s: how long to wait for the others, and for a broadcast that has no limit of its own.

    Raises:
        RuntimeError: not all ranks joined in time.
    """

    def __init__(
        self, store: TCPStore, name: str, *, rank: int, world_size: int, backend: str, timeout_s: float
    ) -> None:
        self.name, self._store, self._backend = name, store, backend
        keys = PrefixStore(f"{BACKENDS[backend]}/", PrefixStore(f"{name}/", PrefixStore(name, store)))
        self._group: Any
        if backend == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timedelta(seconds=timeout_s)
            self._group = dist.ProcessGroupNCCL(keys, rank, world_size, options)
            return
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timedelta(seconds=timeout_s)
        # The interface through which the store is reached: by default gloo resolves the machine's name, which may fail.
        options._devices = [gloo.create_device(hostname=_own_address(store.host, store.port))]
        self._group = gloo(keys, rank, world_size, options)

    def broadcast(self, flat: torch.Tensor, timeout_s: float) -> None:
        """Send `flat` from rank 0, or receive into it. Waits until it has left, or has come.

        Raises:
            RuntimeError: another rank is gone, or `timeout_s` are over. The group is then of no more use.
        """
        group = self._group
        if group is None:
            raise RuntimeError(f"this rank has left the group {self.name}")
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        options.timeout = timedelta(seconds=timeout_s)
        try:
            group.broadcast([flat], options).wait(options.timeout)
        finally:
            del group  # the traceback of an error holds this frame, and who holds the group keeps the others waiting
        if flat.is_cuda:
            torch.cuda.current_stream(flat.device).synchronize()

    def leave(self) -> None:
        """Close the connections: whoever waits for this rank gets an error.

        gloo closes them when nothing holds its group any more. A broadcast in another thread does until it ends, at
        the latest by its own time: only then do they close.
        """
        group, self._group = self._group, None
        if group is not None and self._backend == "nccl":
            group.abort()


def host_store(host: str, timeout_s: float) -> TCPStore:
    """The store of a group's rank 0, on a free port."""
    return TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))


def join_store(host: str, port: int, timeout_s: float) -> TCPStore:
    """The store of the other ranks.

    Raises:
        UserInputError: nobody listens there.
    """
    try:
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
    except (RuntimeError, ValueError) as error:
        raise UserInputError(f"master_address, master_port: cannot connect to {host}:{port} ({error})") from error


def address_towards(urls: list[str]) -> str:
    """The address of this machine at which servers can reach it: 127.0.0.1 if all of them are on this machine."""
    own = [_own_address(parts.hostname or "127.0.0.1", parts.port or 80) for parts in map(urlsplit, urls)]
    return next((address for address in own if not address.startswith("127.")), own[0])


def is_here(url: str) -> bool:
    """Whether a server is on this machine, by its address."""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    found = str(socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0][4][0])
    return found.startswith("127.") or found == _own_address(host, port)


def _own_address(host: str, port: int) -> str:
    """The own address of a connection to `host`; nothing is sent."""
    family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        try:
            probe.connect(target)
        except OSError:
            return host
        return str(probe.getsockname()[0])
