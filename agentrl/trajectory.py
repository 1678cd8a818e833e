"""The token stream of one conversation: the only writer of response ids, mask, log-probs and weight versions.

These rules (docs/token_rules.md) hold by construction:

* `append_completion` writes sampled tokens (mask 1); `append_observation` writes the rest (mask 0, log-prob 0.0). All
  four lists grow together.
* An observation stays pending until a sampled token follows it, so a trajectory always ends at its last sampled
  token, however it is stopped.
* Nothing follows a turn that a length limit cut, and an observation that does not fit is not appended.

Example, with one id per character: a turn of 67 ids, an observation of 90, a turn of 8::

    trajectory = Trajectory(prompt_ids, response_length=1024)
    trajectory.append_completion(first)        # 67 ids
    trajectory.append_observation(delta_ids)   # 90 ids
    trajectory.append_completion(second)       # 8 ids
    trajectory.response_mask == [1] * 67 + [0] * 90 + [1] * 8
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

from agentrl.errors import EngineError, TokenStreamError
from agentrl.pictures import Picture
from agentrl.types import GenerationOutput

NO_VERSION = -1
"""Weight version of a token that no engine sampled."""


class ContextIds(list[int]):
    """The ids for the next request: a copy that knows which trajectory it came from until somebody changes it.

    A trajectory only grows at its end, so of two unchanged contexts of one trajectory the shorter is a prefix of the
    longer. That proves, without comparing all ids again, that a request continues what was sampled before.
    """

    __slots__ = ("_owner",)

    def __init__(self, ids: Sequence[int], owner: Trajectory) -> None:
        super().__init__(ids)
        self._owner: Trajectory | None = owner

    @property
    def owner(self) -> Trajectory | None:
        """The trajectory that this context came from; None once the list was changed."""
        return self._owner


def _disowning(name: str) -> Callable[..., Any]:
    change = getattr(list, name)

    @functools.wraps(change)
    def method(self: ContextIds, *args: Any, **kwargs: Any) -> Any:
        self._owner = None
        return change(self, *args, **kwargs)

    return method


for _name in (
    *("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"),
    *("__delitem__", "__iadd__", "__imul__", "__setitem__"),
):
    setattr(ContextIds, _name, _disowning(_name))


class Trajectory:
    """Exact tokens of one prompt and everything that follows it.

    Args:
        prompt_ids: ids of the rendered prompt, at least one.
        response_length: most tokens that may follow the prompt, observations included.
        pictures: those of the prompt, in the order of their placeholders.
        max_pictures: most pictures, observations included; None: no limit.
        placeholders: ids that stand for a picture or a video. Where the model itself samples one there is nothing to
            see, so it ends the trajectory.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        response_length: int,
        pictures: Sequence[Picture] = (),
        *,
        max_pictures: int | None = None,
        placeholders: Collection[int] = (),
    ) -> None:
        if not prompt_ids:
            raise TokenStreamError("the prompt is empty; a trajectory needs at least one prompt token")
        if response_length < 1:
            raise TokenStreamError(f"response_length: got {response_length}, wanted at least 1")
        self._prompt_ids = list(prompt_ids)
        self._response_length = response_length
        self._ids: list[int] = []
        self._mask: list[int] = []
        self._log_probs: list[float] = []
        self._versions: list[int] = []
        self._pending: list[int] = []
        self._pictures, self._pending_pictures = list(pictures), list[Picture]()
        self._max_pictures = math.inf if max_pictures is None else max_pictures
        self._placeholders = frozenset(placeholders)
        self._cut = self._ended = False

    @property
    def prompt_ids(self) -> list[int]:
        """Ids of the rendered prompt."""
        return list(self._prompt_ids)

    @property
    def response_ids(self) -> list[int]:
        """Ids after the prompt, up to the last sampled one."""
        return list(self._ids)

    @property
    def response_mask(self) -> list[int]:
        """1 where the policy sampled the token, else 0."""
        return list(self._mask)

    @property
    def rollout_log_probs(self) -> list[float]:
        """The engine's log-prob of each sampled token, 0.0 elsewhere."""
        return list(self._log_probs)

    @property
    def weight_versions(self) -> list[int]:
        """The weight version that sampled each token, `NO_VERSION` elsewhere."""
        return list(self._versions)

    @property
    def context_ids(self) -> ContextIds:
        """Everything that the next generation conditions on: prompt, response and pending observation."""
        return ContextIds(self._prompt_ids + self._ids + self._pending, self)

    @property
    def pictures(self) -> list[Picture]:
        """The pictures of prompt and response, in the order of their placeholders."""
        return list(self._pictures)

    @property
    def context_pictures(self) -> list[Picture]:
        """The pictures of `context_ids`."""
        return self._pictures + self._pending_pictures

    @property
    def is_ended(self) -> bool:
        """True if the model sampled a placeholder: nothing may follow, because nobody could say what it shows."""
        return self._ended

    @property
    def remaining(self) -> int:
        """The number of tokens that still fit into the response."""
        return self._response_length - len(self._ids) - len(self._pending)

    def append_completion(self, output: GenerationOutput) -> None:
        """Append one sampled turn with mask 1, and the pending observation before it with mask 0.

        Raises:
            TokenStreamError: unequal lengths, or a turn after one that was cut.
            EngineError: a log-prob is not finite, or the engine sampled more tokens than fit; never trained on.
        """
        count = len(output.token_ids)
        if not count == len(output.log_probs) == len(output.weight_versions):
            raise TokenStreamError(
                f"ids, log-probs and weight versions differ in length: {count}, {len(output.log_probs)}, "
                f"{len(output.weight_versions)}"
            )
        if self._cut:
            raise TokenStreamError("a length limit cut the last turn, so no further turn may follow it")
        if self._ended:
            raise TokenStreamError("the last turn ends in a placeholder of a picture, so no further turn may follow it")
        if count > self.remaining:
            raise EngineError(f"the engine sampled {count} tokens, but only {self.remaining} were left in the response")
        if not all(map(math.isfinite, output.log_probs)):
            raise EngineError("the engine reported a log-prob that is not finite")
        self._cut = output.finish_reason == "length"
        if not count:
            return
        # Only now does the pending observation become part of the response: a sampled token follows it.
        gap = len(self._pending)
        self._write(self._pending, [0] * gap, [0.0] * gap, [NO_VERSION] * gap)
        self._pending = []
        self._pictures, self._pending_pictures = self.context_pictures, []
        self._ended = bool(self._placeholders) and not self._placeholders.isdisjoint(output.token_ids)
        self._write(output.token_ids, [1] * count, output.log_probs, output.weight_versions)

    def append_observation(self, ids: Sequence[int], pictures: Sequence[Picture] = ()) -> bool:
        """Queue tokens that the policy did not sample; they count once a sampled token follows.

        Args:
            ids: the observation.
            pictures: those that it shows, in the order of their placeholders.

        Returns:
            False, and nothing changes, if the observation leaves no room for another sampled token, or shows more
            pictures than may still follow.

        Raises:
            TokenStreamError: before the first turn, or after a turn that a length limit cut.
        """
        if not self._ids:
            raise TokenStreamError("an observation needs a sampled turn before it")
        if self._cut:
            raise TokenStreamError("a length limit cut the last turn, so no observation may follow it")
        if self._ended:
            raise TokenStreamError("the last turn ends in a placeholder of a picture, so no observation may follow it")
        if pictures and len(self.context_pictures) + len(pictures) > self._max_pictures:
            return False
        if len(ids) >= self.remaining:  # 10 tokens left: an observation of 9 leaves room for one sampled token
            return False
        self._pending.extend(ids)
        self._pending_pictures.extend(pictures)
        return True

    def _write(
        self, ids: Sequence[int], mask: Sequence[int], log_probs: Sequence[float], versions: Sequence[int]
    ) -> None:
        self._ids.extend(ids)
        self._mask.extend(mask)
        self._log_probs.extend(log_probs)
        self._versions.extend(versions)
