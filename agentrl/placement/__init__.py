"""Which machine and GPU holds what: pure functions of a configuration and a cluster."""

from agentrl.placement.cluster import Cluster, Machine, this_machine
from agentrl.placement.layout import EnginePlace, Placement, RankPlace

__all__ = ["Cluster", "EnginePlace", "Machine", "Placement", "RankPlace", "this_machine"]
