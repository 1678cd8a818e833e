"""One conversation, with everything that its dump and its run's tokenizer say of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from agentrl.errors import UserInputError
from agentrl.observability.run_folder import RunFolder
from agentrl.observability.viewer.as_test import as_test
from agentrl.observability.viewer.records import Record, is_failed, messages_of, text_field
from agentrl.observability.viewer.tokens import token_texts
from agentrl.reported import finite_number_of

_COLUMNS = {
    "id": "response_ids",
    "mask": "response_mask",
    "loss_mask": "loss_mask",
    "log_prob": "rollout_log_probs",
    "weight_version": "weight_versions",
}
"""Name on the page -> field of the dump, one value for each token of the response."""
_OF_UPDATE = {"train_log_prob": "train_log_probs", "advantage": "advantages"}
"""The same, in dumps of training steps that the trajectory was trained on."""


def conversation_of(record: Record, run: RunFolder, name: str) -> dict[str, Any]:
    """The page's view of a record.

    Args:
        record: of a dump.
        run: whose it is.
        name: of the run, for a reader.

    Raises:
        UserInputError: the record is nested deeper than `orjson` writes; it reads what is deeper.
    """
    try:
        orjson.dumps(record)
    except orjson.JSONEncodeError as error:
        raise UserInputError(f"this record is nested deeper than an answer can hold: {error}") from error
    texts, parts, failed = token_texts(record, run), record.get("reward_extra_info"), is_failed(record)
    return {
        "messages": messages_of(record),
        "prompt": texts.prompt,
        "response": texts.response,
        "tokens": {
            "text": texts.texts,
            "source": texts.source,
            "note": texts.note,
            **{name: _list(record, field) or [] for name, field in _COLUMNS.items()},
            **_left_out(record),
            **{name: _list(record, field) for name, field in _OF_UPDATE.items()},
        },
        "reward": {
            "score": finite_number_of(record.get("score")),
            "parts": parts if isinstance(parts, dict) else {},
        },
        "timeline": _spans(record),
        "ground_truth": record.get("gts"),
        "error": text_field(record, "error") if failed else None,
        "earlier_errors": [str(error) for error in _list(record, "earlier_errors") or []],
        "test_case": None if failed else as_test(record, name, run.setting),
    }


def _left_out(record: Record) -> dict[str, list[int]]:
    """Nothing was trained on where the step left the trajectory out: the dump knows no advantages of it."""
    ids = _list(record, "response_ids")
    return {"loss_mask": [0] * len(ids)} if ids and record.get("advantages", ids) is None else {}


def _list(record: Record, field: str) -> list[Any] | None:
    value = record.get(field)
    return value if isinstance(value, list) else None


def _spans(record: Record) -> list[dict[str, Any]] | None:
    """What took time; an entry that lacks something is left out."""
    spans = [span for span in _list(record, "timeline") or [] if isinstance(span, dict)]
    known = [span for span in spans if all(isinstance(span.get(name), str) for name in ("name", "detail"))]
    return [span for span in known if None not in (_seconds(span, "start"), _seconds(span, "seconds"))] or None


def _seconds(span: Mapping[str, Any], name: str) -> float | None:
    return finite_number_of(span.get(name))
