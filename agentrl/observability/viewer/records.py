"""Lines of a dump: what the index keeps of one trajectory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import compress
from math import fsum
from typing import Any

import orjson

from agentrl.reported import finite_number_of, whole_number_of

SHOWN = 160
"""Characters of a question or an answer that a table shows."""
BETWEEN = b"\xfe"
"""Parts prompt and answer in the text that is searched: UTF-8 has no such byte, so no search matches across it."""

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One trajectory in the index. None: the dump does not say."""

    uid: str
    prompt_key: str
    """The same for every rollout of one prompt, in any step."""
    data_source: str
    reward: float | None
    advantage: float | None
    """Mean over the tokens that are trained on."""
    stop_reason: str
    turns: int | None
    tool_calls: int | None
    tokens: int | None
    """Of the response."""
    tools: list[str]
    question: str
    start: str
    """Of the answer; of what failed, of the error."""
    text: bytes
    """What a search looks through, see `folded`: prompt and answer; of what failed, what was said, and the error."""


def parse_record(line: bytes, *, failed: bool = False) -> Record | None:
    """A trajectory of a dump, of agentrl or of verl; None: the line is none.

    Args:
        line: of the dump.
        failed: the dump tells of trajectories that failed, each with its error.
    """
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    wanted = ("error",) if failed else ("input", "output")
    texts = isinstance(record, dict) and all(isinstance(record.get(name), str) for name in wanted)
    return record if texts else None


def entry_of(record: Record) -> IndexEntry:
    """What the index keeps."""
    messages = messages_of(record)
    prompt, answer = _prompt_of(record), record["error"] if is_failed(record) else record["output"]
    return IndexEntry(
        uid=text_field(record, "uid"),
        prompt_key=prompt_key_of(record),
        data_source=text_field(record, "data_source"),
        reward=finite_number_of(record.get("score")),
        advantage=_mean_advantage(record),
        stop_reason=text_field(record, "stop_reason"),
        turns=_small_number(record.get("num_turns")),
        tool_calls=_small_number(record.get("num_tool_calls")),
        tokens=_response_tokens(record),
        tools=sorted(set(_called(messages))),
        question=(_first_question(messages) or prompt)[:SHOWN],
        start=answer[:SHOWN],
        text=folded(prompt) + BETWEEN + folded(answer),
    )


def is_failed(record: Record) -> bool:
    """Whether a record is of a trajectory that failed, and has no answer."""
    return "output" not in record


def prompt_key_of(record: Record) -> str:
    """Names a prompt; of what failed, whatever was said: nobody rendered it."""
    return blake2b(_prompt_of(record).encode(), digest_size=8).hexdigest()


def folded(text: str) -> bytes:
    """A text as it is searched: upper and lower case are the same."""
    return text.casefold().encode(errors="replace")


def messages_of(record: Record) -> list[dict[str, Any]]:
    """The messages that a dump holds; what is no message is left out."""
    found = record.get("messages")
    return [message for message in found if isinstance(message, dict)] if isinstance(found, list) else []


def text_field(record: Mapping[str, Any], name: str) -> str:
    """A field as text; empty if it is missing."""
    value = record.get(name)
    return value if isinstance(value, str) else "" if value is None else str(value)


def _prompt_of(record: Record) -> str:
    if not is_failed(record):
        return str(record["input"])
    return "\n".join(filter(None, (_shown(message) for message in messages_of(record))))


def _response_tokens(record: Record) -> int | None:
    ids = record.get("response_ids")
    return len(ids) if isinstance(ids, list) else _small_number(record.get("response_tokens"))


def _small_number(value: Any) -> int | None:
    number = whole_number_of(value)
    return number if number is not None and abs(number) < 2**53 else None


def _mean_advantage(record: Record) -> float | None:
    values, mask = record.get("advantages"), record.get("loss_mask")
    if not isinstance(values, list) or not isinstance(mask, list) or len(values) != len(mask):
        return None
    trained = list(compress(values, mask))  # thousands of numbers: this is most of what indexing costs after parsing
    try:
        return finite_number_of(fsum(trained) / len(trained)) if trained else None
    except (TypeError, OverflowError):
        return None


def _called(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The names of tools that were called, or that answered."""
    for message in messages:
        if message.get("role") == "tool" and isinstance(message.get("name"), str):
            yield message["name"]
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("name"), str):
                yield function["name"]


def _first_question(messages: Sequence[Mapping[str, Any]]) -> str:
    """What the user said first."""
    return next((_shown(message) for message in messages if message.get("role") == "user"), "")


def _shown(message: Mapping[str, Any]) -> str:
    """The text of a message; of one with pictures, its texts."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return " ".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""
