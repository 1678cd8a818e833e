"""Reads the conversations that a run dumped (`trainer.rollout_data_dir`, `trainer.validation_data_dir`).

::

    files = find_dumps(Path("outputs/my_run"), "rollouts")      # {1: .../rollouts/1.jsonl, 2: ...}
    for line, record in read_dump(files[1]):
        print(record["score"], prompt_id(record["data_source"], record["messages"]))
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

from agentrl.errors import UserInputError
from agentrl.observability.run_folder import DUMP_KEYS, FAILED_SUFFIX, Kind, dump_files, is_run, open_run
from agentrl.reported import finite_number_of, whole_number_of

Record = dict[str, Any]
TOKEN_FIELDS = (
    "prompt_ids",
    "response_ids",
    "response_mask",
    "loss_mask",
    "rollout_log_probs",
    "weight_versions",
    "advantages",
    "train_log_probs",
    "segments",
)
"""Fields with an entry per token, which take most of a record's room."""


def find_dumps(place: Path, kind: Kind | None = None, step: int | None = None) -> dict[int, Path]:
    """The dumps of a place by step, oldest first.

    Args:
        place: a run folder, a folder of dumps, or one dump.
        kind: which of a run's dumps; None: those of training, else those of validation.
        step: only this one.

    Raises:
        UserInputError: no dump is found, or none of that step; the message says which key writes dumps.
    """
    if not place.exists():
        raise UserInputError(
            f"{place} does not exist: give a dump file, the folder of `trainer.rollout_data_dir`, or a run folder"
        )
    one = {int(place.stem) if place.stem.isdecimal() else 0: place} if place.is_file() else {}
    found = one or dump_files(place)
    if not found and is_run(place):
        run = open_run(place)
        found = next((dumps for of in ([kind] if kind else DUMP_KEYS) if (dumps := run.dumps(of))), {})
    if not found:
        raise UserInputError(f"{place} holds no rollout dump (STEP.jsonl): {_who_writes(place, kind)}")
    if step is not None and step not in found:
        have = _shortened([str(number) for number in found])
        raise UserInputError(f"{place} holds no dump of step {step}, only of {have}")
    return found if step is None else {step: found[step]}


def _who_writes(place: Path, kind: Kind | None) -> str:
    keys = [f"`trainer.{key}`" for of, key in DUMP_KEYS.items() if kind in (None, of)]
    other = next((found for of in DUMP_KEYS if is_run(place) and (found := open_run(place).dump_folder(of))), None)
    hint = f"; this run has {other}" if other is not None else ""
    return f"{' and '.join(keys)} {'write' if len(keys) > 1 else 'writes'} them{hint}"


def _shortened(steps: Sequence[str]) -> str:
    return ", ".join(steps if len(steps) <= 8 else [*steps[:3], "…", *steps[-3:]])


def read_dump(file: Path) -> Iterator[tuple[int, Record]]:
    """The records of a dump with their line numbers.

    Raises:
        UserInputError: the file cannot be read, or a line is no record.
    """
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, _record(file, number, line)
    except OSError as error:
        raise UserInputError(f"cannot read {file}: {error.strerror or error}") from error


def _record(file: Path, number: int, line: bytes) -> Record:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise UserInputError(f"{file}:{number} is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise UserInputError(f"{file}:{number}: got {type(record).__name__}, wanted the record of a conversation")
    return record


def read_conversations(file: Path) -> list[Record]:
    """Its records without their tokens, and with `line`, the number of each in the file.

    Raises:
        UserInputError: see `read_dump`; or a record has no score.
    """
    found = []
    for number, record in read_dump(file):
        for name in TOKEN_FIELDS:
            record.pop(name, None)
        found.append({**_checked(file, number, _scored(file, number, record)), "line": number})
    return found


def _scored(file: Path, number: int, record: Record) -> Record:
    score = record.get("score")
    if not isinstance(score, int | float) or isinstance(score, bool):
        raise UserInputError(f"{file}:{number} has the score {score!r:.80}, wanted a number: is it a rollout dump?")
    return record


def _checked(file: Path, number: int, record: Record) -> Record:
    """The record, if those who show or score it can read its fields."""
    said = record.get("messages") or []
    if not isinstance(said, list) or not all(map(_is_message, said)):
        raise UserInputError(f"{file}:{number}: got the messages {said!r:.80}, wanted a list of chat messages")
    for name in ("reward_extra_info", "extra_info"):
        if not isinstance(record.get(name) or {}, dict):
            raise UserInputError(f"{file}:{number}: got the {name} {record[name]!r:.80}, wanted a mapping")
    if whole_number_of(record.get("step", 0)) is None:
        raise UserInputError(f"{file}:{number}: got the step {record['step']!r:.80}, wanted a whole number")
    return record


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return False
    content, calls = message.get("content"), message.get("tool_calls") or []
    parts = content if isinstance(content, list) else []
    return isinstance(calls, list) and all(isinstance(part, dict) for part in parts) and all(map(_is_call, calls))


def _is_call(call: Any) -> bool:
    return isinstance(call, dict) and isinstance(call.get("function", call), dict)


def failed_trajectories(file: Path) -> list[Record]:
    """What is known of a step's failed trajectories, which are in no dump.

    Raises:
        UserInputError: see `read_dump`; or a field of a record cannot be read.
    """
    beside = file.with_name(f"{file.stem}{FAILED_SUFFIX}")
    lost = read_dump(beside) if beside.is_file() else ()
    checked = [(number, _checked(beside, number, record)) for number, record in lost]
    return [_scored(beside, number, record) if "score" in record else record for number, record in checked]


def scored_text(record: Mapping[str, Any]) -> str:
    """The text that the score function got: the model's turns, joined by line breaks."""
    text = record.get("solution_str")
    if isinstance(text, str):
        return text
    # An earlier agentrl dumped it, or verl.
    said = [message for message in record.get("messages") or [] if message.get("role") == "assistant"]
    return "\n".join(str(message.get("content") or "") for message in said) or str(record.get("output", ""))


def outcome_of(record: Mapping[str, Any]) -> float:
    """The part of a record's `score` that the score function gave, without the penalty for long responses beside it.

    With `{"score": 0.5, "reward_extra_info": {"overlong_reward": -0.5}}` it is 1.
    """
    extra = record.get("reward_extra_info")
    parts = extra if isinstance(extra, Mapping) else {}
    outcome, penalty = (finite_number_of(parts.get(name)) for name in ("outcome_score", "overlong_reward"))
    return (float(record["score"]) if outcome is None else outcome) - (penalty or 0.0)


def prompt_of(record: Mapping[str, Any]) -> str:
    """The name of a record's prompt, as `prompt_id` gives it."""
    messages = record.get("messages") or [{"role": "user", "content": record.get("input")}]
    return prompt_id(str(record.get("data_source")), messages)


def prompt_id(data_source: str, messages: Sequence[Any]) -> str:
    """A name of a prompt that is the same in every run: of what its user says before the model first speaks."""
    said = []
    for message in messages:
        if message["role"] == "assistant":
            break
        if message["role"] == "user":
            said.append(str(message.get("content")))
    return blake2b(json.dumps([data_source, said]).encode(), digest_size=8).hexdigest()
