"""One dumped conversation as text for a terminal: who said what, the reward and its reasons."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from agentrl.observability.wording import four_digits, shortened, visible
from agentrl.pictures import shown_text

STYLES = {"system": "dim", "user": "cyan", "assistant": "bold", "tool": "yellow"}
_SHORT = 60
"""Texts of a reward's reasons up to this length share a line."""


def heading(record: Mapping[str, Any]) -> str:
    """`step 100, 3 of group 100-0: score 0.5, completed, 4 turns, 1 tool call`."""
    turns, calls = record.get("num_turns"), record.get("num_tool_calls")
    facts = [f"score {four_digits(float(record['score']))}"] if "score" in record else []
    facts += [str(record["stop_reason"])] if record.get("stop_reason") else []
    facts += [_count(turns, "turn")] if isinstance(turns, int) else []
    facts += [_count(calls, "tool call")] if isinstance(calls, int) and calls else []
    group = f", group {record['uid']}" if record.get("uid") else ""
    source = f" ({record['data_source']})" if record.get("data_source") else ""
    return visible(f"step {record.get('step', '?')}{group}{source}: {', '.join(facts)}")


def conversation_lines(record: Mapping[str, Any], most: int | None = None) -> Iterator[Text]:
    """The messages, the ground truth and the reasons of the reward, a piece at a time.

    Args:
        record: of a dump.
        most: characters of each message that are shown; None: all.
    """
    messages = record.get("messages") or []
    if messages:
        for message in messages:
            yield _message(message, most)
    else:
        yield _piece("input", str(record.get("input", "")), "", most)
        yield _piece("output", str(record.get("output", "")), "bold", most)
    if record.get("gts") not in (None, ""):
        yield _piece("ground truth", _as_text(record["gts"]), "green", most)
    yield from _reasons(record, most)


def last_said(record: Mapping[str, Any]) -> str:
    """The last that the model said."""
    said = [message for message in record.get("messages") or [] if message["role"] == "assistant"]
    return _said(said[-1]) if said else str(record.get("output", ""))


def first_question(record: Mapping[str, Any]) -> str:
    """The first that a user said."""
    asked = [message for message in record.get("messages") or [] if message["role"] == "user"]
    return shown_text(asked[0].get("content")) if asked else str(record.get("input", ""))


def _message(message: Mapping[str, Any], most: int | None) -> Text:
    role = str(message["role"])
    name = f" {message['name']}" if role == "tool" and message.get("name") else ""
    return _piece(f"{role}{name}", _said(message), STYLES.get(role, ""), most)


def _said(message: Mapping[str, Any]) -> str:
    """The text of a message, and its calls where they are no part of the text."""
    thought = message.get("reasoning_content")
    parts = [f"<think>{thought}</think>"] if thought else []
    parts += [shown_text(message.get("content"))]
    for call in message.get("tool_calls") or []:
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        parts.append(f"-> {function.get('name')}({_as_text(function.get('arguments', ''))})")
    return "\n".join(part for part in parts if part)


def _reasons(record: Mapping[str, Any], most: int | None) -> Iterator[Text]:
    """What the score function, the judge and the others reported beside the score."""
    told = dict(record.get("reward_extra_info") or {})
    if record.get("error"):
        told["error"] = record["error"]
    short = {name: text for name, value in told.items() if len(text := _as_text(value)) <= _SHORT and "\n" not in text}
    if short:
        yield _piece("reward", ", ".join(f"{name} {text}" for name, text in short.items()), "magenta", most)
    for name in (name for name in told if name not in short):
        yield _piece(name, _as_text(told[name]), "magenta", most)


def _piece(title: str, text: str, style: str, most: int | None) -> Text:
    body = visible(text).strip("\n")
    body = body if most is None else shortened(body, most)
    return Text(f"{title}: ", "dim") + Text(body or "(empty)", style)


def _as_text(value: Any) -> str:
    if isinstance(value, float):
        return four_digits(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _count(many: int, what: str) -> str:
    return f"{many} {what}" if many == 1 else f"{many} {what}s"
