"""The view of a conversation for the tools that it calls (`agentrl.types.ToolContext`)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, overload

from agentrl.types import JsonDict, Message, Sample, ToolContext


class ToolContexts:
    """Makes the contexts of one trajectory; nothing is copied until a tool asks for one.

    Args:
        sample: the row. Tools get a copy of it, so no trajectory can change another's.
    """

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._row: tuple[Any, JsonDict] | None = None
        self._scratch: JsonDict = {}

    def make(self, messages: Sequence[Message], turn: int) -> ToolContext:
        """The context of the calls that `messages` ends with."""
        if self._row is None:
            self._row = copy.deepcopy((self._sample.ground_truth, self._sample.extra_info))
        truth, extra_info = self._row
        return ToolContext(
            messages=ReadOnlyMessages(messages),
            turn=turn,
            index=self._sample.index,
            data_source=self._sample.data_source,
            ground_truth=truth,
            extra_info=extra_info,
            scratch=self._scratch,
        )


class ReadOnlyMessages(Sequence[Mapping[str, Any]]):
    """A read-only view of a conversation at its present length, without a copy.

    Args:
        messages: a list that only ever grows.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._length = len(messages)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Mapping[str, Any], ...]: ...

    def __getitem__(self, place: int | slice) -> Mapping[str, Any] | tuple[Mapping[str, Any], ...]:
        places = range(self._length)[place]
        if isinstance(places, range):
            return tuple(_frozen(self._messages[i]) for i in places)
        frozen: Mapping[str, Any] = _frozen(self._messages[places])
        return frozen

    def __repr__(self) -> str:
        return repr(list(self._messages[: self._length]))


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    return value
