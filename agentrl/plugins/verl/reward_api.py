"""What reward managers written for verl import, on machines without verl."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from agentrl.plugins import registry

T = TypeVar("T")
RawRewardFn = Callable[..., Any]


class AbstractRewardManager:
    """A base class without behaviour.

    Args:
        tokenizer: of the model.
        num_examine: how many answers to print.
        compute_score: the run's score function.
        reward_fn_key: column of the data source.
        **kwargs: options.
    """

    def __init__(
        self,
        tokenizer: Any,
        num_examine: int,
        compute_score: RawRewardFn | None,
        reward_fn_key: str = "data_source",
        **kwargs: Any,
    ) -> None:
        self.tokenizer = tokenizer
        self.num_examine = num_examine
        self.compute_score = compute_score
        self.reward_fn_key = reward_fn_key


def register(name: str) -> Callable[[T], T]:
    """As `@register("name")` in verl, for reward managers."""
    return registry.register(name, "rewards")
