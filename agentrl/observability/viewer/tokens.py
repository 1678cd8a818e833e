"""The text of each token: from the run's tokenizer, else from the texts that the dump itself holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrl.observability.run_folder import RunFolder
from agentrl.observability.viewer.records import Record, text_field

Decode = Callable[[list[int]], str]
_TOKENIZER = "tokenizer.json"
_MODEL = "actor_rollout_ref.model"
_LONGEST = 8
"""Tokens that one character may have, at most."""
_UNFINISHED = "\ufffd"


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """The response of a trajectory in pieces; joined, they are the response."""

    texts: list[str]
    source: str
    """`tokenizer`; `segments`: the text of each run of tokens is on its first one; `none`: no token has a text."""
    note: str | None
    prompt: str
    response: str


def token_texts(record: Record, run: RunFolder) -> TokenTexts:
    """Texts for the tokens of a record.

    The run's tokenizer counts only where it gives the text that the dump has: a folder may hold another model by now.
    """
    ids = _whole_numbers(record.get("response_ids"))
    segments = _segments(record, len(ids))
    response = "".join(text for _, text in segments) if segments else text_field(record, "output")
    prompt, note = text_field(record, "input"), None
    file = find_tokenizer(run)
    if file is None:
        note = "the run's tokenizer is not found: tokens have the texts of the dump's segments"
    elif ids:
        decode = _decoder(str(file), file.stat().st_mtime_ns)
        texts = pieces_of(ids, decode)
        if "".join(texts) == response or (not segments and "".join(texts).startswith(response)):
            prompt_ids = _whole_numbers(record.get("prompt_ids"))
            exact = decode(prompt_ids) if prompt_ids else prompt
            return TokenTexts(texts, "tokenizer", None, exact, "".join(texts))
        note = f"{file} gives other text than the dump has: tokens have the texts of the dump's segments"
    if not segments:
        return TokenTexts([], "none", note, prompt, response)
    spread = [part for count, text in segments for part in [text, *[""] * (count - 1)]]
    return TokenTexts(spread, "segments", note, prompt, response)


def find_tokenizer(run: RunFolder) -> Path | None:
    """`tokenizer.json` of the run's model; where that has moved or is gone, of the run's newest checkpoint."""
    given = [run.setting(f"{_MODEL}.{key}") for key in ("tokenizer_path", "path")]
    names = [name for name in given if isinstance(name, str) and name]
    places = [Path(name).expanduser() for name in names]
    checkpoints = sorted(run.path.glob("global_step_*/actor/huggingface"), key=_step_of_checkpoint, reverse=True)
    files = (place / _TOKENIZER for place in [*places, *checkpoints])
    found = next((file for file in files if os.path.isfile(file)), None)  # False for a name that is too long
    return found or next((cached for name in names if (cached := _cached(name))), None)


def pieces_of(ids: Sequence[int], decode: Decode) -> list[str]:
    """The text that each token adds; a character of several tokens is the text of its last one.

    A token may change the text of the one before it, so each is decoded with those of the piece before::

        ids          [é, 1st byte] [é, 2nd byte] [" b"]
        pieces       ""            "é"           " b"
    """
    pieces: list[str] = []
    start = shown = 0  # ids[start:shown] have their text
    before = ""
    for end in range(1, len(ids) + 1):
        text = decode(list(ids[start:end]))
        if text.endswith(_UNFINISHED) and end - shown < _LONGEST and end < len(ids):
            pieces.append("")
            continue
        pieces.append(text[len(before) :])
        start, shown = shown, end
        before = decode(list(ids[start:shown]))
    return pieces


def _step_of_checkpoint(folder: Path) -> int:
    step = folder.parts[-3].rpartition("_")[2]
    return int(step) if step.isdecimal() else -1


def _cached(name: str) -> Path | None:
    """The file of a model of the hub in its cache; nothing is asked or downloaded."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, _TOKENIZER)
    except HFValidationError:  # a path
        return None
    return Path(found) if isinstance(found, str) else None


@lru_cache(maxsize=2)
def _decoder(file: str, _modified: int) -> Decode:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(file)
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))


def _segments(record: Record, tokens: int) -> list[tuple[int, str]]:
    """The dump's runs of tokens with their texts, if they are those of the response."""
    found = record.get("segments")
    pairs = [pair for pair in found if isinstance(pair, list) and len(pair) == 2] if isinstance(found, list) else []
    known = [(count, text) for count, text in pairs if isinstance(count, int) and count > 0 and isinstance(text, str)]
    return known if sum(count for count, _ in known) == tokens else []


def _whole_numbers(values: Any) -> list[int]:
    """Token ids; none at all if one of them is no id."""
    given = values if isinstance(values, list) else []
    return given if all(isinstance(value, int) and 0 <= value < 2**32 for value in given) else []
