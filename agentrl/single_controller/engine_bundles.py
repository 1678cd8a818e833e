"""The part of a Ray cluster that an engine has: a bundle of its own, or those of the ranks whose GPUs it shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

RENEW_TIMEOUT_S = 15.0
"""How long Ray may look for free GPUs for an engine whose machine was lost."""


@dataclass(slots=True)
class EngineBundles:
    """Where the GPUs of one engine are reserved; all are on one machine.

    Attributes:
        group: a placement group.
        indices: of its bundles; the engine's host is in the first one.
        share: part of the GPUs of a bundle that one actor takes: the engine's ranks take turns with it.
        own: whether the group is the engine's alone.
    """

    group: Any
    indices: tuple[int, ...]
    share: float
    own: bool

    def options(self, place: int) -> dict[str, Any]:
        """Options of an actor in one of the bundles, which sees the GPUs of that bundle."""
        strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.indices[place])
        return {"num_gpus": self.share, "scheduling_strategy": strategy}

    def renew(self) -> bool:
        """Reserve as many GPUs on another machine; False: there are none, or the GPUs are those of ranks."""
        if not self.own:
            return False
        self.free()
        self.group = ray.util.placement_group([{"GPU": self.share}], strategy="STRICT_PACK")
        if self.group.wait(timeout_seconds=RENEW_TIMEOUT_S):
            return True
        self.free()
        return False

    def free(self) -> None:
        """Give back a reservation of its own."""
        if self.own:
            ray.util.remove_placement_group(self.group)
