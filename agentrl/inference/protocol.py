"""SGLang's `/generate` answers as `GenerationOutput`, and weight versions as numbers.

Fields that real servers are known to omit may be missing: per-token version spans, `cached_tokens` of aborted requests,
`finish_reason` (null). A missing field that training needs is an error, never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.errors import EngineError, EngineRequestError, WeightVersionError
from agentrl.types import GenerationOutput, JsonDict

UNKNOWN_VERSION = -1
"""Of weights that no run has named, such as those that a server was started with."""


def parse_weight_version(value: Any) -> int:
    """The number of a weight version as the server writes it; `UNKNOWN_VERSION` for `"default"`, its initial weights.

    Those are not version 0 of a run, which may have begun from a checkpoint, with an adapter, or from another model.

    Raises:
        WeightVersionError: the version is not a number, so somebody else set it.
    """
    if value is None or value == "default":
        return UNKNOWN_VERSION
    try:
        return int(value)
    except (TypeError, ValueError):
        raise WeightVersionError(
            f"the engine serves weight version {value!r}, wanted a whole number: agentrl did not set these weights"
        ) from None


def name_version(version: int) -> str:
    """A weight version in messages."""
    return "unknown (no run has set one)" if version == UNKNOWN_VERSION else str(version)


def other_version(what: str, served: int, wanted: int) -> WeightVersionError:
    """The error about weights that are not the run's."""
    return WeightVersionError(f"{what} weight version {name_version(served)}; the run is at {wanted}")


def check_request(prompt_ids: Sequence[int], sampling_params: JsonDict, vocab_size: int) -> None:
    """Refuse a request that could kill a server: no ids, or ids outside the vocabulary.

    Raises:
        EngineRequestError: names the first bad id and its position.
    """
    if not prompt_ids:
        raise EngineRequestError("the prompt is empty; a generation needs at least one token")
    for what, ids in (("prompt", prompt_ids), ("stop_token_ids", sampling_params.get("stop_token_ids") or ())):
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            place = next(i for i, token in enumerate(ids) if not 0 <= token < vocab_size)
            raise EngineRequestError(
                f"id {ids[place]} at position {place} of {what} is outside the vocabulary of {vocab_size}; not sent"
            )


def parse_generation(body: Any, max_new_tokens: int) -> GenerationOutput:
    """Turn one answer of `/generate` into a `GenerationOutput`.

    Args:
        body: the decoded JSON; a list of one answer counts as that answer.
        max_new_tokens: as in the request; if `finish_reason` is null, it tells a cut from an abort.

    Raises:
        EngineError: the answer lacks tokens or log-probs, or contradicts itself.
    """
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    if not isinstance(body, dict) or not isinstance(body.get("meta_info"), dict):
        raise EngineError(f"the engine's answer is not one generation: {str(body)[:200]}")
    meta: JsonDict = body["meta_info"]
    pairs = meta.get("output_token_logprobs") or []
    token_ids = [int(pair[1]) for pair in pairs]
    stated = body.get("output_ids")
    if stated is not None and list(stated) != token_ids:
        raise EngineError(
            f"the engine's answer has {len(stated)} output_ids, but its {len(token_ids)} log-probs belong to other ids"
        )
    if any(pair[0] is None for pair in pairs):
        raise EngineError("the engine's answer has a token without a log-prob")
    finish_reason, matched = _finish_reason(meta.get("finish_reason"), len(token_ids), max_new_tokens)
    return GenerationOutput(
        token_ids=token_ids,
        log_probs=[float(pair[0]) for pair in pairs],
        weight_versions=_versions(meta, len(token_ids)),
        finish_reason=finish_reason,
        matched=matched,
        prompt_tokens=meta.get("prompt_tokens") or 0,
        cached_tokens=meta.get("cached_tokens") or 0,
        latency_s=meta.get("e2e_latency") or 0.0,
    )


def _finish_reason(reason: Any, count: int, max_new_tokens: int) -> tuple[str, int | str | None]:
    """`(type, matched)`; a null reason is a cut if the budget was used up, else an abort."""
    if isinstance(reason, dict):
        return str(reason.get("type", "abort")), reason.get("matched")
    if isinstance(reason, str):
        return reason, None
    return ("length" if count >= max_new_tokens else "abort"), None


def _versions(meta: JsonDict, count: int) -> list[int]:
    """One weight version per token: from the spans if the server gives them, else the one version of the answer."""
    # [{"version": "3", "end": 2}, {"version": "4", "end": 5}] -> [3, 3, 4, 4, 4]: the weights changed during the turn.
    spans = meta.get("weight_versions")
    if not spans:
        return [parse_weight_version(meta.get("weight_version"))] * count
    versions: list[int] = []
    for span in spans:
        versions += [parse_weight_version(span["version"])] * (min(span["end"], count) - len(versions))
    if len(versions) != count:
        raise EngineError(f"the engine's weight versions cover {len(versions)} of {count} tokens")
    return versions


def error_text(body: bytes) -> str:
    """The message in a server's error answer, in any of the usual shapes."""
    import orjson

    try:
        decoded = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body[:500].decode("utf-8", "replace").strip()
    for key in ("error", "detail", "message"):
        if isinstance(decoded, dict) and decoded.get(key):
            inner = decoded[key]
            return str(inner.get("message", inner) if isinstance(inner, dict) else inner)[:500]
    return str(decoded)[:500]
