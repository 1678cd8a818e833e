"""What a tool may return besides a `ToolResponse`: text, numbers, dicts and lists, and verl's triple."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from typing import Any

from agentrl.errors import ToolServiceError, repr_of
from agentrl.observability.said_once import say_once
from agentrl.reported import json_of, number_of
from agentrl.types import ToolResponse

logger = logging.getLogger(__name__)

_WANTED = "wanted text, a number, a dict or list (the model reads it as JSON), or a ToolResponse"


def tool_result(what: str, result: Any) -> ToolResponse:
    """The response that a tool's result stands for.

    ::

        "4 km"                      -> text "4 km"
        0.5, np.int64(3)            -> text "0.5", "3"
        {"km": 4}, [1, 2]           -> text '{"km": 4}', "[1, 2]"
        ("4 km", 0.5, {"calls": 1}) -> text, reward and metrics, as tools of verl return them

    Args:
        what: the tool, as in "tool 'length' returned".
        result: what it returned.

    Raises:
        ToolServiceError: the result is something else; says what to return instead.
    """
    if isinstance(result, ToolResponse):
        return result
    if isinstance(result, tuple):
        return _triple(what, result)
    text = _text(result)
    if text is None:
        raise ToolServiceError(f"{what} {repr_of(result)}, {_WANTED}: {_fix(result)}")
    return ToolResponse(text=text)


def _text(result: Any) -> str | None:
    if isinstance(result, str):
        return result
    if number_of(result) is not None:
        return str(result.item() if hasattr(result, "item") else result)
    if isinstance(result, Mapping | list) or (hasattr(result, "tolist") and hasattr(result, "shape")):
        return json.dumps(json_of(result), ensure_ascii=False)
    return None


def _fix(result: Any) -> str:
    if result is None:
        return "does it lack a `return`?"
    if isinstance(result, bytes | bytearray):
        return "decode it, for example `return data.decode()`"
    if isinstance(result, set | frozenset):
        return "`return sorted(...)`"
    if dataclasses.is_dataclass(result):
        return "`return dataclasses.asdict(...)`"
    if hasattr(result, "model_dump"):
        return "`return ....model_dump()`"
    return "`return str(...)`, if that is what the model should read"


def _triple(what: str, result: tuple[Any, ...]) -> ToolResponse:
    """A triple as in verl, `(response, reward, metrics)`."""
    if len(result) != 3 or not (result[2] is None or isinstance(result[2], Mapping)):
        wanted = "wanted a list, or (text, reward, metrics) with metrics by name"
        raise ToolServiceError(f"{what} {repr_of(result)}, {wanted}: a tuple is read as verl's triple")
    answer, reward, metrics = result
    text = answer if isinstance(answer, str) else getattr(answer, "text", answer)
    if not isinstance(text, str) and (answer is text or text is not None):
        raise ToolServiceError(f"{what} {repr_of(answer)} as response, wanted text or a ToolResponse")
    number = None if reward is None else number_of(reward)
    if number is None and reward is not None:
        raise ToolServiceError(f"{what} reward {repr_of(reward)}, wanted a number")
    return ToolResponse(
        text=text or "",
        reward=number,
        metrics=metrics_of(what, metrics or {}),
        image=list(getattr(answer, "image", None) or []),
        video=list(getattr(answer, "video", None) or []),
        is_error=bool(getattr(answer, "is_error", False)),
    )


def metrics_of(what: str, metrics: Mapping[Any, Any]) -> dict[str, float]:
    """The metrics that are numbers; of the others, which tools of verl report too, it is said once that they are none.

    Args:
        what: begins the warning, such as "tool 'x': execute returned".
        metrics: by name, as the tool gave them.
    """
    found = {str(name): number_of(value) for name, value in metrics.items()}
    for name, number in found.items():
        if number is None:
            say_once(logger, logging.WARNING, f"{what} metrics.{name}, which is not a number: it is left out")
    return {name: number for name, number in found.items() if number is not None}
