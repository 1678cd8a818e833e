"""Scores responses with the reward manager of training. A score that fails is named and counted, never a 0."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from agentrl.config.job_run import scoring_of
from agentrl.config.jobs import EvalConfig
from agentrl.errors import FailureBudgetError, InfrastructureError, PluginError, RewardError
from agentrl.interfaces import RewardInput
from agentrl.jobs.parts import Advance, JobParts
from agentrl.jobs.tables import JobTable, facts_in, responses_in
from agentrl.plugins import registry
from agentrl.reported import finite_number_of, json_of
from agentrl.rewards.answers import answer_reader
from agentrl.rewards.dispatcher import find_score, truth_problem
from agentrl.rewards.judged_answers import load_answer_scores
from agentrl.rewards.loading import check_kwargs, load_code_score
from agentrl.rollout.report import causes_of
from agentrl.types import Sample

logger = logging.getLogger(__name__)

_AT_ONCE = 64
MISSING = "the response is missing: it failed when it was generated"

ScoredResponse = dict[str, Any]
"""`score`, and of what the score function reported `acc` and `pred`; or `error`. All as JSON has it."""


@dataclass(frozen=True, slots=True)
class Responses:
    """The responses of one prompt."""

    sample: Sample
    texts: list[str | None]
    facts: list[dict[str, Any]]
    """What each trajectory reported; empty: nothing besides its text."""


class ResponseScorer:
    """The responses of a file, and the score function of its rows.

    Args:
        job: the configuration.
        table: rows with responses.

    Raises:
        UserInputError: a row or the score function cannot be used; nothing has been scored.
    """

    def __init__(self, job: EvalConfig, table: JobTable) -> None:
        self._job = job
        registry.load_registrations(job.plugins)
        run = scoring_of(job)
        data = job.data
        self.named = data.prompt_key in table.names
        if not self.named and "prompt_key" not in data.model_fields_set:
            logger.warning("no column '%s': prompts are known by their row number only", data.prompt_key)
        needed = {
            "data.response_key": data.response_key,
            "data.data_source_key": data.data_source_key,
            "data.reward_model_key": data.reward_model_key,
        }
        table.need({"data.prompt_key": data.prompt_key, **needed} if "prompt_key" in data.model_fields_set else needed)
        judged_alone = job.reward_model.has_judge and job.reward_model.combine.outcome == 0
        self._built_in = job.custom_reward_function.path is None and not judged_alone
        code = load_code_score(run)
        self.rows = [self._read(table, number) for number in range(len(table))]
        if self._built_in:
            for source in dict.fromkeys(row.sample.data_source for row in self.rows):
                check_kwargs(find_score(source, code), job.custom_reward_function.reward_kwargs)
            for number, row in enumerate(self.rows):
                if problem := truth_problem(row.sample):
                    file, place = table.place(number)
                    raise PluginError(f"{file}, row {place}: {problem}")
        self._scores = load_answer_scores(run)

    async def score_all(self, parts: JobParts, batch_size: int, advance: Advance) -> list[list[ScoredResponse]]:
        """The scores of every row's responses; finished batches are kept in `parts`.

        Raises:
            UserInputError: the score function says that the rows cannot be used.
            FailureBudgetError: more responses than `eval.max_failure_rate` have no score.
        """
        async with aclosing(self._scores):
            return await self._score_all(parts, batch_size, advance)

    async def _score_all(self, parts: JobParts, batch_size: int, advance: Advance) -> list[list[ScoredResponse]]:
        starts = range(0, len(self.rows), batch_size)
        done = [parts.read(number) for number in range(len(starts))]
        kept = sum(len(batch) for batch in done if batch is not None)
        count = kept
        advance(count, len(self.rows), kept)
        for number, start in enumerate(starts):
            if done[number] is not None:
                continue
            rows = self.rows[start : start + batch_size]
            done[number] = batch = await self._batch(rows)
            responses = [scored for row in batch for scored in row]
            if len(failures_in(responses)) == len(responses):
                self._check_failures(responses)
            if not any(
                scored.pop("again", False) for scored in responses
            ):  # else a second start asks the service again
                parts.keep(number, batch)
            count += len(rows)
            advance(count, len(self.rows), kept)
        scored: list[list[ScoredResponse]] = [row for batch in done for row in batch or []]
        self._check_failures([response for row in scored for response in row])
        return scored

    async def _batch(self, rows: Sequence[Responses]) -> list[list[ScoredResponse]]:
        room = asyncio.Semaphore(_AT_ONCE)

        async def score(row: Responses, place: int) -> ScoredResponse:
            async with room:
                return await self._score(row, place)

        tasks = [[score(row, place) for place in range(len(row.texts))] for row in rows]
        flat = iter(await asyncio.gather(*(task for row in tasks for task in row)))
        return [[next(flat) for _ in row] for row in tasks]

    async def _score(self, row: Responses, place: int) -> ScoredResponse:
        text, sample = row.texts[place], row.sample
        if text is None:
            return {"error": MISSING}
        try:
            result = await self._scores.score(
                RewardInput(sample.data_source, text, sample.ground_truth, self._extra_info(row, place, text))
            )
        except (RewardError, InfrastructureError) as error:
            again = {"again": True} if isinstance(error, InfrastructureError) else {}
            return {"error": f"{type(error).__name__}: {error}", **again}
        scored: ScoredResponse = {"score": result.score}
        acc = finite_number_of(result.extra.get("acc"))
        if acc is not None and not self._job.reward_model.has_judge:  # `acc` knows nothing of the judge
            scored["acc"] = acc
        if "pred" in result.extra:
            scored["pred"] = json_of(result.extra["pred"])
        elif self._built_in and (reader := answer_reader(sample.data_source)) is not None:
            scored["pred"] = reader(text)
        return scored

    def _extra_info(self, row: Responses, place: int, text: str) -> dict[str, Any]:
        """As in training: the row's, and what the trajectory reported; of a lone text, one question and one answer."""
        plain = {"num_turns": 2, "turn_scores": [], "tool_rewards": [], "num_tool_calls": 0}
        messages = [*row.sample.prompt, {"role": "assistant", "content": text}]
        return {**row.sample.extra_info, **plain, "messages": messages, **row.facts[place]}

    def _read(self, table: JobTable, number: int) -> Responses:
        data = self._job.data
        columns = {
            "data_source": data.data_source_key,
            "reward_model": data.reward_model_key,
            "extra_info": "extra_info",
            **({"prompt": data.prompt_key} if self.named else {}),
        }
        texts = responses_in(table, data.response_key, number)
        facts = facts_in(table, data.facts_key, number, len(texts))
        return Responses(table.sample(number, columns, prompt=None if self.named else f"row {number}"), texts, facts)

    def _check_failures(self, scored: Sequence[Mapping[str, Any]]) -> None:
        failures = failures_in(scored)
        most = self._job.eval.max_failure_rate
        if len(failures) > most * len(scored) or len(failures) == len(scored):
            raise FailureBudgetError(
                f"{len(failures)} of {len(scored)} responses have no score, more than eval.max_failure_rate ({most:g}) "
                f"allows:{causes_of(failures)}"
            )


def failures_in(scored: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The responses without a score, as `causes_of` counts them."""
    return [{"stop_reason": "no score", "error": response["error"]} for response in scored if "error" in response]
