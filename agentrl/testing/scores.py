"""Scores a conversation of a dump again, as the test does that the page of `agentrl view` copies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from agentrl.config.loader import load
from agentrl.config.root import RunConfig
from agentrl.jobs.replay import reward_input
from agentrl.plugins.registry import load_registrations
from agentrl.rewards.loading import load_reward_manager


def score_again(record: Mapping[str, Any], run: Mapping[str, Any]) -> float:
    """The score that a run's reward manager gives to the text of a conversation, as `agentrl replay` gets it.

    Neither the penalty for length nor rewards of turns, tools, the judge or a reward model are in it.

    Args:
        record: the fields of a dump that a score function gets: `data_source`, `solution_str`, `gts`, `extra_info`,
            `messages`, `num_turns`, `num_tool_calls`.
        run: the keys of the run's configuration that say how it scores, dotted or nested.

    Raises:
        UserInputError: a key, the reward manager or the score function cannot be used.
        RewardError: the function raised, took too long, or returned no finite number.
        InfrastructureError: a service behind the function failed.
    """
    config = load(dict(run), (), RunConfig)
    load_registrations(config.plugins)
    manager = load_reward_manager(config)

    async def scored() -> float:
        return (await manager.score(reward_input(dict(record)))).score

    return asyncio.run(scored())
