"""The machines of a Ray cluster: how messages name them, and whether one is lost."""

from __future__ import annotations

import socket
from typing import Any

import ray

_ANSWER_S = 2.0
"""How long a machine may take to accept a connection of its Ray agent."""


def machines() -> list[dict[str, Any]]:
    """The machines of the cluster, also those that are lost, as `ray.nodes()` describes them.

    Without a connection there are none: `ray.nodes()` itself would start a Ray of its own to count its machines.
    """
    return list(ray.nodes()) if ray.is_initialized() else []


def alive() -> list[dict[str, Any]]:
    """The machines that Ray counts as alive: this one first, then by address."""
    nodes = [node for node in machines() if node["Alive"]]
    here = ray.get_runtime_context().get_node_id() if nodes else ""
    return sorted(nodes, key=lambda node: (node["NodeID"] != here, node["NodeManagerAddress"], node["NodeID"]))


def several() -> bool:
    """Whether this process is connected to a cluster of more than one machine."""
    return len(alive()) > 1


def machine_name(node_id: str) -> str:
    """`10.0.0.2 (Ray node 3f2a1b2c)`."""
    address = next((node["NodeManagerAddress"] for node in machines() if node["NodeID"] == node_id), "unknown")
    return f"{address} (Ray node {node_id[:8]})"


def is_lost(node_id: str) -> bool:
    """Whether a machine has left the cluster.

    Ray itself notices a machine without power after half a minute; its agent is asked here. A process that is not
    connected any more knows of no loss.
    """
    if not ray.is_initialized():
        return False
    node = next((node for node in machines() if node["NodeID"] == node_id), None)
    if node is None or not node["Alive"]:
        return True
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), _ANSWER_S).close()
    except OSError:
        return True
    return False


def answering() -> list[str]:
    """Ray nodes of the machines that answer, this one first: Ray may still start actors on one that is lost."""
    nodes = [node["NodeID"] for node in alive()]
    return [node for place, node in enumerate(nodes) if place == 0 or not is_lost(node)]


def lost_machine(node_id: str | None) -> str | None:
    """A sentence about the machine of something that died, where the machine itself is lost."""
    if node_id is None or not is_lost(node_id):
        return None
    return f"machine {machine_name(node_id)} was lost"
