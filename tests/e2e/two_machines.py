"""A Ray cluster of two machines on this one, as a process: prints its address, and ends with its standard input."""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster


def main() -> None:
    """One machine has two CPUs, the other one."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
