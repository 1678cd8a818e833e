"""One request inside the engine, and how it ended."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.inference.embedded.picture_rows import RequestPictures
from agentrl.inference.embedded.sampling_params import SamplingParams
from agentrl.inference.embedded.text import TextTail


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a request ended: `stop` (with what matched), `length` or `abort` (with a message)."""

    type: str
    matched: int | str | None = None
    message: str = ""


@dataclass(slots=True, eq=False)
class GenerationRequest:
    """A prompt, the tokens sampled so far, and the slot that holds their keys and values."""

    rid: str
    prompt: list[int]
    params: SamplingParams
    max_new_tokens: int
    stop_ids: frozenset[int]
    key: int
    """Key of its random draws; see `sampler.seed_key`."""
    sink: Any = None
    """Where the listener sends the request's progress; the engine does not look at it."""
    stream: bool = False
    tail: TextTail | None = None
    """Watches for stop strings; None without stop strings."""
    logprob_start: int | None = None
    """First prompt token whose log-prob is wanted; None: no log-probs of the prompt."""
    top_logprobs: int = 0
    pictures: RequestPictures | None = None
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    tops: list[list[tuple[float, int]]] = field(default_factory=list)
    prompt_log_probs: list[float] = field(default_factory=list)
    versions: list[tuple[str, int]] = field(default_factory=list)
    """`(weight version, index of the first token it sampled)`."""
    slot: int = -1
    """Its slot; -1 while it waits."""
    cached_tokens: int = 0
    finish: Finish | None = None
    started: float = field(default_factory=time.perf_counter)
    latency: float = 0.0

    @property
    def total(self) -> int:
        """Number of tokens: prompt and sampled ones."""
        return len(self.prompt) + len(self.ids)

    @property
    def marked(self) -> NDArray[np.int32]:
        """All tokens as the slot table compares them: placeholders of different pictures differ."""
        if self.pictures is None:
            return np.array(self.prompt + self.ids, np.int32)
        return np.concatenate([self.pictures.marks, np.array(self.ids, np.int32)])

    def add(self, token: int, log_prob: float, version: str) -> None:
        """Append a sampled token."""
        if not self.versions or self.versions[-1][0] != version:
            self.versions.append((version, len(self.ids)))
        self.ids.append(token)
        self.log_probs.append(log_prob)

    def check_finished(self) -> bool:
        """Whether the last token ended the request: by a stop id, a stop string or the length limit."""
        if self.finish is None:
            token = self.ids[-1]
            if token in self.stop_ids and len(self.ids) > self.params.min_new_tokens:
                self.finish = Finish("stop", token)
            elif self.tail is not None and (match := self.tail.push(self.ids)) is not None:
                self.finish = Finish("stop", match)
            elif len(self.ids) >= self.max_new_tokens:
                self.finish = Finish("length")
        return self.finish is not None


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a request when the engine's thread reported it."""

    request: GenerationRequest
    count: int
    """Tokens sampled."""
    finish: Finish | None
