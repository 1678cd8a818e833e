"""A language model behind an OpenAI-compatible endpoint as a source of scores (`reward_model.judge`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.clients.http import ServiceClient
from agentrl.config.judge import JudgeConfig
from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError, RewardError, ToolServiceError
from agentrl.interfaces import RewardInput
from agentrl.own_time import queueing
from agentrl.reported import valid_text
from agentrl.rewards.judge_cache import ReplyCache
from agentrl.rewards.judge_text import read_score, request_text

_ASKED = 2
"""Times that a judge is asked whose reply holds no score."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge said about one trajectory."""

    score: float
    reply: str
    cached: bool
    """The endpoint was not called for it."""

    @property
    def extra(self) -> dict[str, Any]:
        """For the rollout log and validation."""
        return {"judge_score": self.score, "judge_reply": self.reply}

    @property
    def metrics(self) -> dict[str, float]:
        """For the step's `reward/*`."""
        return {"judge_score": self.score, "judge_cached": float(self.cached)}


class RubricJudge:
    """Asks for a score of each trajectory: a few requests at a time, equal ones once. Use it in one event loop.

    Args:
        config: `reward_model.judge`.
        workers: agent-loop workers, which share `max_concurrent`.

    Raises:
        ConfigError: the address, the key's variable, the rubric or the cache's folder cannot be used.
    """

    def __init__(self, config: JudgeConfig, workers: int = 1) -> None:
        self._config = config
        self._rubric = config.rubric_text()
        self._headers = _headers(config)
        self._service = ServiceClient(
            str(config.base_url).rstrip("/").removesuffix("/chat/completions"),
            timeout_s=config.timeout_s,
            retries=config.retries,
            backoff_s=config.backoff_s,
            headers=self._headers,
        )
        self._room = asyncio.Semaphore(max(1, config.max_concurrent // workers))
        self._cache = ReplyCache(config.cache_dir, config.cache)

    async def score(self, item: RewardInput) -> Verdict:
        """Score one trajectory.

        Raises:
            ToolServiceError: the endpoint gave no reply, after retries.
            RewardError: its replies hold no score in the range.
        """
        body = self._body(item)
        reply, cached = await self._cache.reply({"url": self._config.base_url, **body}, lambda: self._ask(body))
        score = read_score(reply, self._config.score_range, self._config.pattern)
        if isinstance(score, str):  # kept by a run with another pattern or range
            reply, cached = await self._ask(body), False
            score = read_score(reply, self._config.score_range, self._config.pattern)
        assert not isinstance(score, str)
        return Verdict(score, reply, cached)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._service.aclose()

    def _body(self, item: RewardInput) -> dict[str, Any]:
        config = self._config
        text = request_text(item, self._rubric, config.score_range, config.template)
        return {
            "model": config.model,
            "messages": [{"role": "user", "content": valid_text(text)}],
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
            **config.extra,
        }

    async def _ask(self, body: Mapping[str, Any]) -> str:
        """A reply that holds a score."""
        with queueing():
            await self._room.acquire()
        try:
            problem = ""
            for _ in range(_ASKED):
                reply = await self._chat(body)
                score = read_score(reply, self._config.score_range, self._config.pattern)
                if not isinstance(score, str):
                    return reply
                problem = score
        finally:
            self._room.release()
        raise RewardError(f"the judge: {problem}")

    async def _chat(self, body: Mapping[str, Any]) -> str:
        try:
            return valid_text(await self._service.chat(body))
        except ToolServiceError as error:
            key = self._headers.get("Authorization", "").removeprefix("Bearer ")
            # An endpoint may repeat the key in its answer, and the cause of a failure is logged.
            text = str(error).replace(key, "***") if key else str(error)
            raise ToolServiceError(f"the judge: {text}") from None


def load_judge(config: RunConfig, workers: int = 1) -> RubricJudge | None:
    """The run's judge; None: it has none, or its score has no weight.

    Args:
        config: the run.
        workers: see `RubricJudge`.

    Raises:
        ConfigError: see `RubricJudge`.
    """
    section = config.reward_model
    if section.judge.base_url is None or section.combine.judge == 0:
        return None
    return RubricJudge(section.judge, workers)


def _headers(config: JudgeConfig) -> dict[str, str]:
    try:
        return ServiceClient.bearer(config.api_key_env)
    except ValueError as error:
        raise ConfigError(f"reward_model.judge.api_key_env: {error}") from error
