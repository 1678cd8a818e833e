"""The ways of weights to the engines beside each other: seconds with pause and continue, and each rank's peak memory.

Engines are embedded ones that this starts, or running servers (`--servers`), SGLang's included. The ranks change
nothing between two syncs: what travels is the same each time. Ways alternate, and the median of each is told, with what
it took of processor time on all ranks: on a shared machine that says more than the clock.

    python benchmarks/weight_sync.py --model DIR                                      disk, ipc, distributed, tensor
    python benchmarks/weight_sync.py --model DIR --ranks 2 --engines 2
    python benchmarks/weight_sync.py --model DIR --servers http://127.0.0.1:30000 --ways disk distributed
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from agentrl.config.root import RunConfig
from agentrl.inference.client import EngineClient
from agentrl.single_controller import ResourcePool, WorkerGroup, create_worker_group, register
from agentrl.single_controller.dispatch import Dispatch
from agentrl.single_controller.ray_runtime import init_ray
from agentrl.testing.models import build_tiny_model
from agentrl.trainer.weight_sync import WeightSync
from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker


class MeasuredWorker(ActorRolloutRefWorker):
    """An actor that tells how much memory it has, and had at most since it was asked last."""

    _peak = 0
    _watch: threading.Thread | None = None

    @register(Dispatch.ONE_TO_ALL)
    def begin_watch(self) -> int:
        """Look at this process' own memory (without files that are mapped) every 2 ms. Bytes now."""
        self._peak, self._stop = 0, threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()
        return own_bytes()

    @register(Dispatch.ONE_TO_ALL)
    def end_watch(self) -> tuple[int, float]:
        """Most bytes since `begin_watch`, and this process' seconds of processor time so far."""
        self._stop.set()
        if self._watch is not None:
            self._watch.join()
        times = psutil.Process().cpu_times()
        return max(self._peak, own_bytes()), times.user + times.system

    def _look(self) -> None:
        while not self._stop.wait(0.002):
            self._peak = max(self._peak, own_bytes())


def own_bytes() -> int:
    """Anonymous memory of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


@contextmanager
def engine(model: Path, port: int) -> Iterator[str]:
    """An embedded engine in a process of its own."""
    command = [sys.executable, "-m", "agentrl.inference.embedded", "--model", str(model), "--port", str(port)]
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen([*command, "--device", "cpu", "--threads", "1"]) as process:
        try:
            while process.poll() is None:
                try:
                    if httpx.get(f"{address}/health").status_code == 200:
                        break
                except httpx.TransportError:
                    time.sleep(0.2)
            yield address
        finally:
            process.kill()


@contextmanager
def actor_of(model: Path, ranks: int, bucket_mb: int) -> Iterator[WorkerGroup]:
    """The ranks, which have loaded the model."""
    config = RunConfig()
    config.actor_rollout_ref.model.path = str(model)
    config.actor_rollout_ref.rollout.update_weights_bucket_megabytes = bucket_mb
    with ExitStack() as stack:
        stack.enter_context(init_ray(num_cpus=ranks))
        pool = ResourcePool([ranks], threads_per_rank=1)
        actor = stack.enter_context(create_worker_group("ray", pool, MeasuredWorker, config, "actor"))
        actor.submit("init_model", 1).get()
        yield actor


def measure(actor: WorkerGroup, way: Any, addresses: list[str], version: int, bucket_mb: int) -> tuple[float, ...]:
    """Seconds of a sync, seconds of processor time of all ranks, and the most that a rank's memory grew, in MiB."""

    def client(address: str) -> EngineClient:
        return EngineClient(address, vocab_size=1, request_timeout_s=600.0, retries=0)

    sync = WeightSync(
        actor, client, mode=way, folder=None, model_bytes=2**30, bucket_bytes=bucket_mb * 2**20, timeout_s=600.0
    )
    sync.sync(version, addresses)  # connections, and for `distributed` the group, which is kept
    actor.begin_watch()
    before = [cpu for _, cpu in actor.end_watch()]
    resting = actor.begin_watch()
    began = time.perf_counter()
    sync.sync(version + 1, addresses)
    seconds = time.perf_counter() - began
    after = actor.end_watch()
    sync.close()
    grown = max(peak - rest for (peak, _), rest in zip(after, resting, strict=True))
    return seconds, sum(cpu for _, cpu in after) - sum(before), grown / 2**20


def main() -> None:
    """Print one line per way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model folder; without it a random one of 30 M parameters")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--servers", nargs="*", help="running servers in place of embedded engines")
    parser.add_argument("--ways", nargs="*", default=["disk", "ipc", "distributed", "tensor"])
    parser.add_argument("--bucket-mb", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with ExitStack() as stack:
        model = options.model
        if model is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            sizes = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "vocab_size": 8192}
            model = build_tiny_model(folder, "qwen2", **sizes)
        addresses = options.servers or [
            stack.enter_context(engine(model, 31600 + os.getpid() % 300 * 8 + n)) for n in range(options.engines)
        ]
        actor = stack.enter_context(actor_of(model, options.ranks, options.bucket_mb))
        found: dict[str, list[tuple[float, ...]]] = {way: [] for way in options.ways}
        version = int(time.time())
        for _ in range(options.rounds):
            for way in options.ways:
                found[way].append(measure(actor, way, addresses, version, options.bucket_mb))
                version += 2
        load = os.getloadavg()[0]
        print(f"{options.ranks} ranks, {len(addresses)} engines, buckets of {options.bucket_mb} MB, load {load:.0f}")
        for way, rows in found.items():
            seconds, cpu, grown = (statistics.median(column) for column in zip(*rows, strict=True))
            print(f"{way:12} {seconds:6.2f} s   {cpu:6.2f} CPU-s of ranks   rank's memory grew by {grown:6.0f} MiB")


if __name__ == "__main__":
    main()
