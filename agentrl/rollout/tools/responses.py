"""Checks what a tool returned, and cuts it to the length that the model reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentrl.errors import PictureError, ToolServiceError, repr_of
from agentrl.interfaces import Renderer
from agentrl.pictures import Picture, read_picture
from agentrl.plugins.tool_results import metrics_of, tool_result
from agentrl.reported import valid_text
from agentrl.rollout.guarded_call import number
from agentrl.types import ToolResponse

_CHARS_PER_TOKEN = 64
"""Longer texts are cut to this many characters per allowed token before they are encoded, so that megabytes of tool
output never block the event loop. Only runs of one repeated character have that many characters per token."""


def tool_response(what: str, result: Any, *, sees_pictures: bool = False) -> ToolResponse:
    """The `expect` of `execute`: what the model can read, and numeric rewards and metrics.

    Raises:
        ToolServiceError: the result is something else.
    """
    response = tool_result(what, result)
    if not isinstance(response.text, str):
        raise ToolServiceError(f"{what} {repr_of(response)}, wanted a ToolResponse with text")
    if response.video or (response.image and not sees_pictures):
        wanted = "text or images" if sees_pictures else "text"
        raise ToolServiceError(f"{what} images or videos, wanted {wanted}: the model would not see anything else")
    reward = None if response.reward is None else number(f"{what} reward", response.reward)
    if not isinstance(response.metrics, Mapping):
        raise ToolServiceError(f"{what} metrics {repr_of(response.metrics)}, wanted numbers by name")
    if response.is_error not in (True, False):
        raise ToolServiceError(f"{what} is_error {repr_of(response.is_error)}, wanted true or false")
    return replace(
        response,
        text=valid_text(response.text),
        reward=reward,
        metrics=metrics_of(what, response.metrics),
        image=pictures_of(what, response.image),
        is_error=bool(response.is_error),
    )


def pictures_of(what: str, given: Any) -> list[Picture]:
    """The pictures that a plug-in gives: a list of them, or one.

    Raises:
        ToolServiceError: one of them cannot be read.
    """
    if not isinstance(given, list | tuple):
        given = [] if given is None else [given]
    try:
        return [read_picture(value) for value in given]
    except PictureError as error:
        raise ToolServiceError(f"{what} an image that cannot be shown: {error}") from error


def truncate(text: str, limit: int, side: str, renderer: Renderer) -> str:
    """Cut a text to `limit` tokens and mark the cut.

    Args:
        text: a tool's text.
        limit: most tokens to keep, not counting the mark.
        side: which side is kept: `left` the head, `right` the tail, `middle` both.
        renderer: counts the tokens.
    """
    size = max(4096, limit * _CHARS_PER_TOKEN)
    head_ids, tail_ids = renderer.encode_text(text[:size]), renderer.encode_text(text[-size:])
    if len(text) <= size and len(head_ids) <= limit:
        return text
    keep_head = {"left": limit, "right": 0, "middle": limit - limit // 2}[side]
    head = renderer.decode(head_ids[:keep_head]).rstrip("�")  # ids that end inside a character decode to this sign
    tail = renderer.decode(tail_ids[len(tail_ids) - (limit - keep_head) :]).lstrip("�")
    mark = {"left": "...(truncated)", "right": "(truncated)...", "middle": "...(truncated)..."}[side]
    return head + mark + tail
