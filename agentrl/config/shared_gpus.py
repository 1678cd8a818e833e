"""Whether engines and training ranks share GPUs, and so take turns on them."""

from __future__ import annotations

from agentrl.config.machine import engine_name, uses_cuda
from agentrl.config.root import RunConfig


def is_colocated(config: RunConfig) -> bool:
    """Whether the engines that the run starts are on the GPUs of its training ranks."""
    rollout = config.actor_rollout_ref.rollout
    placement = getattr(rollout, "placement", "auto")
    split = placement == "split" or (placement == "auto" and getattr(rollout, "n_gpus", None))
    return not split and not rollout.server.addresses and uses_cuda(config)


def frees_engines(config: RunConfig) -> bool:
    """Whether engines release their memory while ranks train: `rollout.free_cache_engine`.

    On a CPU only the embedded engine can: a real SGLang ends when it is asked to.
    """
    asked = config.actor_rollout_ref.rollout.free_cache_engine
    if asked is False or config.actor_rollout_ref.rollout.server.addresses:
        return False
    return is_colocated(config) or bool(asked and not uses_cuda(config) and engine_name(config) == "embedded")
