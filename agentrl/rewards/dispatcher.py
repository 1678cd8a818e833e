"""Which score function a row gets when the run names none: chosen by its `data_source`."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from agentrl.errors import PluginError, suggest
from agentrl.rewards.scores import arithmetic, gsm8k, math, search_em

ScoreFunction = Callable[..., Any]

SCORES: dict[str, ScoreFunction] = {
    "openai/gsm8k": gsm8k.compute_score,
    "agentrl/arithmetic": arithmetic.compute_score,
    "lighteval/MATH": math.compute_score,
    "DigitalLearningGmbH/MATH-lighteval": math.compute_score,
    "Maxwell-Jia/AIME_2024": math.compute_score,
    "searchR1_*": search_em.compute_score,
}
"""Score function by `data_source`; `*` stands for anything."""
TAKES_EXTRA_INFO = frozenset({arithmetic.compute_score})
CODE_SOURCES = ("codecontests", "apps", "codeforces", "taco")


def find_score(data_source: str) -> ScoreFunction:
    """The score function of a data source.

    Raises:
        PluginError: there is none; lists the known sources.
    """
    if data_source in CODE_SOURCES:
        raise PluginError(
            f"data_source '{data_source}' is scored by running code in a sandbox service, which this version of "
            "agentrl does not offer: give your own score function in custom_reward_function.path."
        )
    for pattern, function in SCORES.items():
        if fnmatchcase(data_source, pattern):
            return function
    raise PluginError(
        f"no score function for data_source '{data_source}'.{suggest(data_source, SCORES)} "
        f"Known: {', '.join(SCORES)}. For your own: custom_reward_function.path."
    )


def default_compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> Any:
    """Score a solution with the function of its data source.

    Args:
        data_source: the row's `data_source`.
        solution_str: what the assistant wrote.
        ground_truth: the row's `reward_model.ground_truth`.
        extra_info: the row's `extra_info` and what the rollout added.
        **kwargs: options of the score function, for example `method="flexible"`.

    Raises:
        PluginError: unknown data source.
    """
    function = find_score(data_source)
    if function in TAKES_EXTRA_INFO:
        kwargs["extra_info"] = extra_info
    return function(solution_str, ground_truth, **kwargs)
