"""How long the trajectories of a run are: at most, by its configuration, and usually, by its rows."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.config.root import RunConfig
from agentrl.placement.memory import Spread

USUAL_SHARE = 0.5
"""The part of the response budget that trajectories are assumed to use where nothing is known about them."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of trajectories.

    Attributes:
        prompt: the longest prompt.
        response: the longest response, observations included.
        usual_prompt: of a prompt on average.
        usual_response: of a response on average.
        source: where the prompts' lengths come from, for messages.
    """

    prompt: int
    response: int
    usual_prompt: float
    usual_response: float
    source: str = "limits of the configuration"

    @classmethod
    def most(cls, config: RunConfig) -> Lengths:
        """What the configuration allows; usually prompts are half of it, and responses too."""
        rollout = config.actor_rollout_ref.rollout
        prompt = rollout.prompt_length or config.data.max_prompt_length
        response = rollout.response_length or config.data.max_response_length
        return cls(prompt, response, USUAL_SHARE * prompt, USUAL_SHARE * response)

    @classmethod
    def of_prompts(cls, config: RunConfig, prompts: list[int]) -> Lengths:
        """With the lengths of the run's own prompts, where there are any."""
        most = cls.most(config)
        if not prompts:
            return most
        usual = sum(prompts) / len(prompts)
        return cls(max(prompts), most.response, usual, most.usual_response, f"{len(prompts)} prompts of the rows")

    @property
    def longest(self) -> int:
        """Of a trajectory."""
        return self.prompt + self.response

    @property
    def usual(self) -> float:
        """Of a trajectory on average."""
        return self.usual_prompt + self.usual_response

    @property
    def response_share(self) -> float:
        """Of the longest trajectory."""
        return self.response / self.longest

    def micro_batch(self, limit: tuple[int | None, int | None], spread: Spread, rows: int) -> float:
        """Most tokens of a micro-batch on one rank.

        Args:
            limit: most tokens per rank, or most rows.
            spread: ranks that share a row have their part of it.
            rows: most rows that the rank gets.
        """
        tokens, most_rows = limit
        every = rows * self.longest
        if tokens is None:
            return min(every, (most_rows or 1) * self.longest) / spread.sp
        return min(every, max(tokens * spread.sp, self.longest)) / spread.sp
