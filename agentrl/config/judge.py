"""`reward_model.judge`: a language model that scores trajectories, and what is checked of it before a run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from agentrl.config.base import InputPath, OutputPath, Section
from agentrl.errors import ConfigError, suggest
from agentrl.files import find_file

TEMPLATE_FIELDS = ("question", "answer", "ground_truth", "conversation", "rubric", "lowest", "highest")
"""What a template may name in braces."""
FIELD = re.compile(r"\{([a-z_]+)\}")
_JUDGE = "reward_model.judge"


class JudgeConfig(Section):
    """A language model behind an OpenAI-compatible endpoint that scores trajectories by a rubric."""

    base_url: str | None = None
    """Address of the endpoint, which ends in `/v1`; null: there is no judge."""
    model: str = "default"
    """Name of the model in requests."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; null: no key is sent."""
    rubric: str | None = None
    """What the judge looks for, as text."""
    rubric_path: InputPath | None = None
    """File with that text."""
    template: str | None = None
    """Text of a request, with `{question}`, `{answer}`, `{ground_truth}`, `{conversation}`, `{rubric}`, `{lowest}` and
    `{highest}`; other braces are left alone. null: a template that asks for `{"score": NUMBER}`."""
    score_range: tuple[float, float] = (0.0, 1.0)
    """The lowest and the highest score that the judge may give."""
    pattern: str | None = None
    """Regular expression for the score in a reply: the last match counts, its first group if it has one. null: `score`
    in the reply's JSON, or `score: NUMBER`, or a reply that is only a number."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature."""
    max_tokens: int = Field(default=1024, ge=1)
    """Most tokens of a reply."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """More fields of each request, such as `{response_format: {type: json_object}}`."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Deadline of one request; waiting for its turn does not count."""
    retries: int = Field(default=3, ge=0)
    """Attempts after the first, where the endpoint fails (5xx, no answer in time, no text). A busy one (429) is asked
    until it has a place."""
    backoff_s: float = Field(default=0.5, ge=0)
    """Pause before the first of them; it doubles each time."""
    max_concurrent: int = Field(default=32, ge=1)
    """Most requests at the same time, of all agent-loop workers together."""
    cache: bool = True
    """Send equal requests once, and remember the reply."""
    cache_dir: OutputPath | None = None
    """Folder that keeps replies for all workers and later runs; null: each worker remembers its own."""

    def rubric_text(self) -> str:
        """The rubric, from the key or from its file.

        Raises:
            ConfigError: the file is not found or holds no text.
        """
        if self.rubric_path is None:
            return self.rubric or ""
        file = find_file(self.rubric_path)
        try:
            text = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{_JUDGE}.rubric_path: {file} cannot be read: {error}") from error
        if not text:
            raise ConfigError(f"{_JUDGE}.rubric_path: {file} is empty, wanted what the judge looks for")
        return text


def judge_problems(judge: JudgeConfig) -> Iterator[str]:
    """What keeps a judge from scoring, before anything is asked."""
    url = judge.base_url
    if url is None:
        return
    if not url.startswith(("http://", "https://")):
        yield f"{_JUDGE}.base_url: got '{url}', wanted an http(s) address, such as http://host:port/v1"
    if judge.api_key_env is not None and not os.environ.get(judge.api_key_env):
        yield f"{_JUDGE}.api_key_env: the environment variable '{judge.api_key_env}' is not set"
    lowest, highest = judge.score_range
    if not lowest < highest:
        yield f"{_JUDGE}.score_range: got {[lowest, highest]}, wanted the lowest score, then a higher one"
    if judge.pattern is not None:
        try:
            re.compile(judge.pattern)
        except re.error as error:
            yield f"{_JUDGE}.pattern: got '{judge.pattern}', which is no regular expression: {error}"
    yield from _template_problems(judge)
    yield from _rubric_problems(judge)


def _template_problems(judge: JudgeConfig) -> Iterator[str]:
    if judge.template is None:
        return
    names = FIELD.findall(judge.template)
    for name in dict.fromkeys(names):
        if name not in TEMPLATE_FIELDS:
            yield f"{_JUDGE}.template: no field is named '{name}'.{suggest(name, TEMPLATE_FIELDS)}"
    if not {"answer", "conversation"} & set(names):
        yield f"{_JUDGE}.template: names neither {{answer}} nor {{conversation}}, so every answer would look the same"


def _rubric_problems(judge: JudgeConfig) -> Iterator[str]:
    if judge.rubric is not None and judge.rubric_path is not None:
        yield f"{_JUDGE}.rubric: given, and rubric_path too: keep one of them"
        return
    try:
        given = bool(judge.rubric_text())
    except ConfigError as error:
        yield from (line if line.startswith(_JUDGE) else f"{_JUDGE}.rubric_path: {line}" for line in error.problems)
        return
    if not given and (judge.template is None or "{rubric}" in judge.template):
        yield f"{_JUDGE}.rubric: not given, wanted what the judge looks for, as text, or as a file in rubric_path"
