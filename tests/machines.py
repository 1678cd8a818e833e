"""A Ray cluster of several machines on this one: `Machines` starts and loses them; as a program it is the cluster.

Each machine has an address of its own: the first one this machine's, the others 127.0.0.2, 127.0.0.3, …
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

QUIET = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # else it ends workers where others fill the memory of a shared machine
}


class Machines:
    """The cluster.

    Attributes:
        address: for `ray_init.address`.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = self._answer()

    def lose(self, number: int) -> None:
        """End all processes of a machine, as a loss of power does; returns when they have ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        assert self._answer() == "lost"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def machines(*resources: dict[str, int]) -> Iterator[Machines]:
    """Start a machine with each of these `num_cpus` and `num_gpus`; the first one is the head of the cluster."""
    process = subprocess.Popen(
        [sys.executable, __file__, json.dumps(resources)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | QUIET | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield Machines(process)
    finally:
        process.communicate(timeout=200)


def main(resources: Sequence[dict[str, int]]) -> None:
    """Start the machines, print the address, lose those whose numbers are read, end with the standard input."""
    import psutil
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**resources[0], "include_dashboard": False})
    nodes: list[Any] = [cluster.head_node]
    for number, has in enumerate(resources[1:], start=2):
        nodes.append(cluster.add_node(**has, node_ip_address=f"127.0.0.{number}"))
    _say(cluster.address)
    for line in sys.stdin:
        node = nodes[int(line)]
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        family = [raylet, *raylet.children(recursive=True)]
        for process in family:
            process.kill()
        psutil.wait_procs(family[1:], timeout=10)
        cluster.remove_node(node, allow_graceful=False)
        _say("lost")
    cluster.shutdown()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
