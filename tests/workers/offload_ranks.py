"""Two ranks on simulated GPUs, with tensors that leave them between uses and without; started by `test_offload.py`."""

from __future__ import annotations

import os
import sys
import traceback
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from simulated_cuda import simulated_cuda
from test_offload import run_worker


def run_rank(rank: int, model: str, output: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{output}.meeting", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=300))
    found: dict[bool, Any] = {}
    patch = pytest.MonkeyPatch()
    with simulated_cuda(patch):
        for offload in (False, True):
            found[offload] = run_worker(model, offload=offload, rank=rank, world=2)
    patch.undo()
    torch.save(found, f"{output}.{rank}")
    dist.destroy_process_group()


def main() -> None:
    """MODEL OUTPUT."""
    model, output = sys.argv[1:]
    ranks = []
    for rank in range(2):
        if (pid := os.fork()) == 0:
            try:
                run_rank(rank, model, output)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        ranks.append(pid)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in ranks))


if __name__ == "__main__":
    main()
