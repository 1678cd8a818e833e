"""Scoring of finished trajectories: score functions, their routing by `data_source`, and the manager that runs them.

`agentrl.rewards.loading` builds the run's manager from its configuration.
"""

from agentrl.rewards.batch import BatchRewardManager
from agentrl.rewards.dispatcher import default_compute_score
from agentrl.rewards.naive import NaiveRewardManager

__all__ = ["BatchRewardManager", "NaiveRewardManager", "default_compute_score"]
