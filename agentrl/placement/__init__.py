"""Which machine and GPU holds what: pure functions of a configuration and a cluster."""

from agentrl.placement.cluster import Cluster, Machine, this_machine
from agentrl.placement.layout import EnginePlace, RankPlace, RunPlacement
from agentrl.placement.planner import plan

__all__ = ["Cluster", "EnginePlace", "Machine", "RankPlace", "RunPlacement", "plan", "this_machine"]
