"""The process group over which weights travel, between ranks of one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from agentrl.inference.weights.group import UpdateGroup, host_store, join_store

LIMIT_S = 60.0


def test_a_rank_that_fails_and_leaves_keeps_nobody_waiting() -> None:
    """Also while somebody still looks at its error, as whoever waits for all answers does."""
    host = host_store("127.0.0.1", LIMIT_S)

    def join(rank: int) -> UpdateGroup:
        store = host if rank == 0 else join_store("127.0.0.1", host.port, LIMIT_S)
        return UpdateGroup(store, "weights", rank=rank, world_size=3, backend="gloo", timeout_s=LIMIT_S)

    with ThreadPoolExecutor(3) as pool:
        source, dead, well = pool.map(join, range(3))
        waiting = pool.submit(well.broadcast, torch.zeros(8), LIMIT_S)
        dead.leave()
        with pytest.raises(RuntimeError) as failed:
            source.broadcast(torch.ones(8), LIMIT_S)
        source.leave()
        with pytest.raises(RuntimeError, match="Connection"):
            waiting.result(LIMIT_S / 4)
        assert failed.value.__traceback__ is not None
