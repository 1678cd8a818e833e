"""Small real workers for the tests; a module of its own, so that Ray actors import it by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from agentrl.data_proto import DataProto
from agentrl.errors import CheckpointError, ConfigError
from agentrl.single_controller import Dispatch, Execute, Worker, register


class EchoWorker(Worker):
    def __init__(self, offset: float = 0.0, fail: str | None = None) -> None:
        if fail == "config":
            raise ConfigError(f"bad offset {offset}")
        if fail == "bug":
            raise ZeroDivisionError("in init")
        self.offset = offset

    @register()
    def where(self) -> dict[str, int]:
        return {
            "rank": self.rank,
            "world": self.world_size,
            "local": self.local_rank,
            "pid": os.getpid(),
            "threads": torch.get_num_threads(),
        }

    @register()
    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    @register()
    def join(self) -> float:
        self.init_process_group()
        self.init_process_group()
        total = torch.tensor([float(self.rank + 1)])
        dist.all_reduce(total)
        return float(total)

    @register(Dispatch.RANK_ZERO)
    def only_zero(self, value: int) -> tuple[int, int]:
        return self.rank, value

    @register(execute_mode=Execute.RANK_ZERO)
    def first(self, value: int) -> tuple[int, int]:
        return self.rank, value

    @register(dispatch_mode=Dispatch.ALL_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def first_of_all(self, values: list[int], scale: int) -> tuple[int, list[int]]:
        return self.rank, [value * scale for value in values]

    @register(Dispatch.DP_COMPUTE_PROTO, Execute.RANK_ZERO, blocking=False)
    def first_of_rows(self, data: DataProto) -> DataProto:
        return DataProto({"y": data.batch["x"] + self.rank})

    @register(Dispatch.ONE_TO_ALL, Execute.ALL)
    def all_of_them(self, value: int) -> tuple[int, int]:
        return self.rank, value

    @register()
    def meet(self, folder: str, own: str, other: str) -> bool:
        """Whether the other comes while this one waits; it waits as long as a lost test may take."""
        Path(folder, own).touch()
        deadline = time.monotonic() + 60
        while not Path(folder, other).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return Path(folder, other).exists()

    @register()
    def write(self, file: str, name: str, seconds: float = 0.0) -> None:
        for event in ("begins", "ends"):
            with open(file, "a") as log:
                log.write(f"{name} {event}\n")
            time.sleep(seconds if event == "begins" else 0)

    @register(Dispatch.ALL_TO_ALL)
    def each(self, value: int, scale: int) -> int:
        return value * scale + self.rank

    @register(Dispatch.DP_COMPUTE_PROTO)
    def add(self, data: DataProto, extra: float = 0.0) -> DataProto:
        rows = data.batch["x"]
        rows += self.offset  # received tensors are writable
        names = np.array([f"{name}@{self.rank}" for name in data.non_tensor_batch["name"]], dtype=object)
        metrics = {"rows": float(len(data)), "rank/max": float(self.rank), "rank/min": float(self.rank)}
        return DataProto({"y": rows + extra}, {"who": names}, {"metrics": metrics, "step": data.meta_info.get("step")})

    @register(Dispatch.DP_COMPUTE_PROTO)
    def metrics_only(self, data: DataProto) -> DataProto:
        return DataProto(meta_info={"metrics": {"sum": float(data.batch["x"].sum())}})

    @register(Dispatch.DP_COMPUTE_PROTO)
    def count(self, data: DataProto) -> int:
        return len(data)

    @register()
    def size_of(self, data: DataProto) -> int:
        return len(data)

    @register(blocking=False)
    def slow(self, seconds: float) -> int:
        time.sleep(seconds)
        return self.rank

    @register()
    def fail(self, rank: int, kind: str) -> str:
        if self.rank == rank:
            if kind == "user":
                raise CheckpointError("disk full")
            if kind in ("bug", "hang"):
                raise KeyError("missing")
            os.kill(os.getpid(), signal.SIGKILL)
        if kind in ("kill", "hang"):
            dist.barrier()
        return "fine"

    def not_registered(self) -> None:
        return None
