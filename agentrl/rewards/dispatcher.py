"""The score function of a row when the run names none: chosen by the row's `data_source`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from fnmatch import fnmatchcase
from typing import Any

from agentrl.errors import PluginError, RewardError, suggest
from agentrl.rewards.scores import arithmetic, code, geo3k, gsm8k, math, math_dapo, pictures, search_em
from agentrl.rewards.scores.code import CodeScore
from agentrl.types import Sample

ScoreFunction = Callable[..., Any]

QUESTIONS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
"""Question answering with search, by the names of its data sets."""
SCORES: dict[str, ScoreFunction] = {
    "openai/gsm8k": gsm8k.compute_score,
    "gsm8k": gsm8k.compute_score,
    "agentrl/arithmetic": arithmetic.compute_score,
    "lighteval/MATH": math.compute_score,
    "DigitalLearningGmbH/MATH-lighteval": math.compute_score,
    "Maxwell-Jia/AIME_2024": math.compute_score,
    "HuggingFaceH4/MATH-500": math.compute_score,
    "hiyouga/geometry3k": geo3k.compute_score,
    "agentrl/pictures": pictures.compute_score,
    "numina_*": math.compute_score,
    "math_dapo": math_dapo.compute_score,
    "aime*": math_dapo.compute_score,
    "searchR1_*": search_em.compute_score,
    **dict.fromkeys(QUESTIONS, search_em.compute_score),
}
"""Score function by `data_source`; `*` stands for anything."""
GOLD_PROBLEMS: dict[ScoreFunction, Callable[[Any], str | None]] = {
    gsm8k.compute_score: gsm8k.gsm8k_gold_problem,
    arithmetic.compute_score: arithmetic.arithmetic_gold_problem,
    math.compute_score: math.math_gold_problem,
    geo3k.compute_score: math.math_gold_problem,
    pictures.compute_score: pictures.pictures_gold_problem,
    math_dapo.compute_score: math.math_gold_problem,
    search_em.compute_score: search_em.search_gold_problem,
}
"""Why a score cannot read a ground truth, by score function."""
TAKES_EXTRA_INFO = frozenset({arithmetic.compute_score})
CODE_SOURCES = ("codecontests", "apps", "codeforces", "taco")
"""Scored by running code in a sandbox service."""


def find_score(data_source: str, code_score: CodeScore | None = None) -> ScoreFunction:
    """The score function of a data source.

    Args:
        data_source: of a row.
        code_score: uses the run's sandbox service; None if the run names none.

    Raises:
        PluginError: no function is known (the message lists the known sources), or it needs a sandbox.
    """
    if data_source in CODE_SOURCES:
        if code_score is None:
            raise PluginError(
                f"data_source '{data_source}' is scored by running code in a sandbox service, but the run names none: "
                "start one (`agentrl serve sandbox`) and set reward_model.sandbox_fusion.url to its address, or "
                "custom_reward_function.path to your own score function"
            )
        return code_score
    function = _in_table(data_source)
    if function is not None:
        return function
    known = sorted([*SCORES, *CODE_SOURCES])
    hint = suggest(data_source, known)
    others = "" if "Known:" in hint else f" Known: {', '.join(known)}."
    raise PluginError(
        f"no score function for data_source '{data_source}'.{hint}{others} To use your own function, set "
        "custom_reward_function.path."
    )


def _in_table(data_source: str) -> ScoreFunction | None:
    return next((function for pattern, function in SCORES.items() if fnmatchcase(data_source, pattern)), None)


def first_gold(sample: Sample) -> Any:
    """The ground truth; where there may be several right answers, the first, as the score reads them."""
    if _in_table(sample.data_source) is search_em.compute_score:
        with suppress(RewardError):
            return search_em.golds_of(sample.ground_truth)[0]
    return sample.ground_truth


def truth_of(data_source: str, ground_truth: Any, extra_info: Mapping[str, Any] | None) -> Any:
    """What solutions are compared with: the ground truth; a coding task without one has `extra_info.test_cases`."""
    if data_source in CODE_SOURCES and not ground_truth:
        return (extra_info or {}).get("test_cases", ground_truth)
    return ground_truth


def truth_problem(sample: Sample, *, language: str | None = "python") -> str | None:
    """Why the built-in score of a row's data source cannot score it; None: it can.

    Args:
        sample: the row.
        language: of the programs of coding tasks; None: their tests are not looked at.
    """
    source, truth = sample.data_source, truth_of(sample.data_source, sample.ground_truth, sample.extra_info)
    if sample.reward_model.get("style") == "model":
        return (
            f"`reward_model.style` is 'model', but the score of data_source '{source}' is a rule: set "
            "custom_reward_function.path to a function that asks your model, or the style to 'rule'"
        )
    if truth in (None, "", [], {}) or truth != truth:
        return f"no `reward_model.ground_truth`, which the score of data_source '{source}' needs"
    if source in CODE_SOURCES:
        return code.code_gold_problem(truth, language) if language is not None else None
    function = _in_table(source)
    reads = GOLD_PROBLEMS.get(function) if function is not None else None
    return reads(truth) if reads is not None else None


def default_compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    sandbox_fusion_url: str | None = None,
    concurrent_semaphore: AbstractContextManager[Any] | None = None,
    memory_limit_mb: int | None = None,
    *,
    code_score: CodeScore | None = None,
    **kwargs: Any,
) -> Any:
    """Score a solution with the function of its data source.

    Args:
        data_source: the row's `data_source`.
        solution_str: what the assistant wrote.
        ground_truth: the row's `reward_model.ground_truth`.
        extra_info: the row's `extra_info` and what the rollout added; coding tasks may hold their tests in it, under
            `test_cases`.
        sandbox_fusion_url: for coding tasks: the sandbox service. Without a running event loop this call waits for the
            tests; with one it returns an awaitable.
        concurrent_semaphore: for coding tasks: held while this call waits.
        memory_limit_mb: for coding tasks: memory of each test; None: 1024.
        code_score: for coding tasks: the run's own scorer; the call then returns an awaitable.
        **kwargs: options of the score function, for example `method="flexible"`.

    Raises:
        PluginError: unknown data source, or one that needs a sandbox.
        RewardError: the row has no ground truth.
    """
    ground_truth = truth_of(data_source, ground_truth, extra_info)
    if sandbox_fusion_url is not None and data_source in CODE_SOURCES:
        score = CodeScore(sandbox_fusion_url, memory_limit_mb=memory_limit_mb or 1024)
        return _settle(score(solution_str, ground_truth, **kwargs), concurrent_semaphore or nullcontext())
    function = find_score(data_source, code_score)
    if ground_truth is None:
        raise RewardError(f"a row of data_source {data_source} has no `reward_model.ground_truth`")
    if function in TAKES_EXTRA_INFO:
        kwargs["extra_info"] = extra_info
    return function(solution_str, ground_truth, **kwargs)


def _settle(work: Coroutine[Any, Any, Any], permit: AbstractContextManager[Any]) -> Any:
    """Wait for the work if no event loop runs; else return it for the caller to await."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with permit:
            return asyncio.run(work)
    return work
