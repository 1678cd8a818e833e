"""The bodies of `/generate`: from JSON to requests and from requests to JSON, as in SGLang."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.errors import UserInputError, suggest
from agentrl.inference.embedded.engine import Engine
from agentrl.inference.embedded.picture_rows import read_pictures
from agentrl.inference.embedded.request import Finish, GenerationRequest, Progress
from agentrl.inference.embedded.sampler import seed_key
from agentrl.inference.embedded.sampling_params import SamplingParams
from agentrl.inference.embedded.text import TextTail, trim
from agentrl.types import JsonDict

DEFAULT_NEW_TOKENS = 128
UNUSED, UNUSED_BY_PROMPTS = 2, 6
"""Tokens of the context that SGLang leaves unused, at the end of answers and of prompts."""
FIELDS = (
    "rid",
    "input_ids",
    "text",
    "sampling_params",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "stream",
    "return_text_in_logprobs",
    "lora_path",
    "image_data",
)


@dataclass(slots=True)
class GenerateCall:
    """One HTTP call: its requests, and whether the answer is a list."""

    requests: list[GenerationRequest]
    as_list: bool
    stream: bool
    return_logprob: bool


def parse_generate(body: Any, engine: Engine, *, number: int) -> GenerateCall:
    """Check a `/generate` body and make requests of it.

    Args:
        body: the decoded JSON.
        engine: supplies context length, vocabulary and tokenizer.
        number: number of earlier calls; makes calls without a seed draw different tokens.

    Raises:
        UserInputError: the body cannot be used; the server answers 400.
        UnsupportedFeatureError: the body asks for a feature that this engine lacks; the server answers 501.
    """
    if not isinstance(body, Mapping):
        raise UserInputError(f"the body: got {type(body).__name__}, wanted a JSON object")
    for name in body:
        if name not in FIELDS:
            raise UserInputError(f"unknown field '{name}'." + suggest(str(name), FIELDS))
    if (body.get("lora_path") or None) != engine.adapter:
        loaded = "no adapter is loaded" if engine.adapter is None else f"the weights are merged with '{engine.adapter}'"
        raise UserInputError(f"lora_path: got {body.get('lora_path')!r}, but {loaded}")
    _check_output_fields(body)
    prompts, many = _prompts(body, engine)
    params = _per_prompt(body.get("sampling_params"), len(prompts), "sampling_params")
    rids = _rids(body.get("rid"), len(prompts))
    shown = _images(body.get("image_data"), len(prompts), many)
    requests: list[GenerationRequest] = []
    for index, (prompt, given, rid, images) in enumerate(zip(prompts, params, rids, shown, strict=True)):
        whole, pictures = read_pictures(images, prompt, engine.pictures)
        made = _requests(whole, SamplingParams.parse(given), rid, body, engine, number * 4096 + index)
        for request in made:
            request.pictures = pictures
        requests += made
    return GenerateCall(requests, many or len(requests) > 1, bool(body.get("stream")), bool(body.get("return_logprob")))


def _check_output_fields(body: Mapping[str, Any]) -> None:
    """Check the fields that say what the answer holds."""
    for name in ("stream", "return_logprob", "return_text_in_logprobs"):
        if not isinstance(body.get(name, False), bool | None):
            raise UserInputError(f"{name}: got {body[name]!r}, wanted true or false")
    for name, low in (("logprob_start_len", -1), ("top_logprobs_num", 0)):
        value = body.get(name)
        if value is not None and (type(value) is not int or value < low):
            raise UserInputError(f"{name}: got {value!r}, wanted an integer of at least {low}")


def _prompts(body: Mapping[str, Any], engine: Engine) -> tuple[list[list[int]], bool]:
    ids, text = body.get("input_ids"), body.get("text")
    if (ids is None) == (text is None):
        raise UserInputError("wanted exactly one of 'input_ids' and 'text'")
    if text is not None:
        many = isinstance(text, list)
        texts = text if many else [text]
        if not texts or not all(isinstance(item, str) and item for item in texts):
            raise UserInputError("text: wanted a non-empty string or a list of them")
        if not engine.tokenizer.available:
            raise UserInputError("text: the model folder has no tokenizer; send 'input_ids'")
        return [engine.tokenizer.encode(item) for item in texts], many
    if not isinstance(ids, list) or not ids:
        raise UserInputError("input_ids: wanted a non-empty list of token ids")
    many = isinstance(ids[0], list)
    prompts = ids if many else [ids]
    for prompt in prompts:
        _check_prompt(prompt, engine)
    return prompts, many


def _check_prompt(prompt: Any, engine: Engine) -> None:
    if not isinstance(prompt, list) or not prompt:
        raise UserInputError("input_ids: wanted a non-empty list of token ids")
    vocab = engine.spec.vocab_size
    for token in prompt:
        if type(token) is not int or not 0 <= token < vocab:
            raise UserInputError(f"input_ids: got {token!r}, wanted integers from 0 to {vocab - 1} (the vocabulary)")


def _images(value: Any, count: int, many: bool) -> list[Any]:
    """`image_data` of each prompt: with one prompt its pictures, with a list of prompts a list for each."""
    if value is None or not many:
        return [value] * count
    if not isinstance(value, list) or len(value) != count:
        raise UserInputError(f"image_data: wanted one list of pictures for each of {count} prompts")
    return value


def _per_prompt(value: Any, count: int, name: str) -> list[Any]:
    if isinstance(value, list):
        if len(value) != count:
            raise UserInputError(f"{name}: got {len(value)}, wanted one for each of {count} prompts")
        return value
    return [value] * count


def _rids(value: Any, count: int) -> list[str]:
    if value is None:
        return [uuid.uuid4().hex for _ in range(count)]
    if isinstance(value, str):
        return [value] if count == 1 else [f"{value}_{i}" for i in range(count)]
    if not isinstance(value, list) or len(value) != count or not all(isinstance(item, str) for item in value):
        raise UserInputError(f"rid: wanted a string, or a list of {count} strings")
    if twice := sorted({rid for rid in value if value.count(rid) > 1}):
        raise UserInputError(f"Duplicate request IDs detected within the request: {twice}")
    return value


def _requests(
    prompt: list[int], params: SamplingParams, rid: str, body: Mapping[str, Any], engine: Engine, number: int
) -> list[GenerationRequest]:
    """The `n` requests of one prompt."""
    limit = _new_tokens(prompt, params, engine)
    bad = [i for i in (*params.stop_token_ids, *(i for i, _ in params.logit_bias)) if i >= engine.spec.vocab_size]
    if bad:
        raise UserInputError(
            f"sampling_params: token id {bad[0]} is outside the vocabulary of {engine.spec.vocab_size}"
        )
    if params.stop and not engine.tokenizer.available:
        raise UserInputError("sampling_params.stop: the model folder has no tokenizer; use stop_token_ids")
    # With `ignore_eos` SGLang looks at no stop id at all, not only not at the model's own.
    stops = frozenset(() if params.ignore_eos else (*params.stop_token_ids, *engine.spec.eos_token_ids))
    start, wanted = body.get("logprob_start_len"), bool(body.get("return_logprob"))
    seeded = params.sampling_seed is not None
    seed = params.sampling_seed if params.sampling_seed is not None else engine.options.seed
    return [
        GenerationRequest(
            rid=rid if params.n == 1 else f"{rid}-{i}",
            prompt=prompt,
            params=params,
            max_new_tokens=limit,
            stop_ids=stops,
            key=seed_key(seed, i if seeded else (number + 1) * 1024 + i),
            stream=bool(body.get("stream")),
            tail=TextTail(engine.tokenizer.decode, params.stop) if params.stop else None,
            logprob_start=start if wanted and start is not None and 0 <= start < len(prompt) else None,
            top_logprobs=int(body.get("top_logprobs_num") or 0) if wanted else 0,
        )
        for i in range(params.n)
    ]


def _new_tokens(prompt: list[int], params: SamplingParams, engine: Engine) -> int:
    # With a context of 1088: prompts of up to 1081 tokens, prompt and answer may ask for 1088 and get 1086.
    context, most = engine.context, engine.context - UNUSED_BY_PROMPTS
    if len(prompt) >= context:
        raise UserInputError(
            f"the input ({len(prompt)} tokens) is longer than the model's context length ({context} tokens)"
        )
    if params.max_new_tokens is not None and len(prompt) + params.max_new_tokens > context:
        raise UserInputError(
            f"got {len(prompt)} input tokens and max_new_tokens {params.max_new_tokens}: together more than the "
            f"model's context length ({context} tokens)"
        )
    if len(prompt) >= most:
        raise UserInputError(f"the input ({len(prompt)} tokens) exceeds the maximum allowed length ({most} tokens)")
    wanted = DEFAULT_NEW_TOKENS if params.max_new_tokens is None else params.max_new_tokens
    return min(wanted, context - UNUSED - len(prompt))


def render_answer(progress: Progress, engine: Engine, *, return_logprob: bool) -> JsonDict:
    """The answer for one request, finished or still growing."""
    request, finish, count = progress.request, progress.finish, progress.count
    ids, params = request.ids[:count], request.params
    matched = finish.matched if finish is not None else None
    shown = ids[:-1] if isinstance(matched, int) and not params.no_stop_trim else ids
    text = engine.tokenizer.decode(shown, params.skip_special_tokens)
    meta: JsonDict = {
        "id": request.rid,
        "finish_reason": _finish_reason(finish, request),
        "prompt_tokens": len(request.prompt),
        "completion_tokens": count,
        "cached_tokens": request.cached_tokens,
        "weight_version": engine.weight_version,
        "weight_versions": _versions(request, count),
        "e2e_latency": request.latency,
    }
    if return_logprob:
        meta["output_token_logprobs"] = [(p, i, None) for p, i in zip(request.log_probs, ids, strict=False)]
        meta |= _prompt_log_probs(request)
        if request.top_logprobs:
            meta["output_top_logprobs"] = [[(p, i, None) for p, i in tops] for tops in request.tops[:count]]
    return {"text": text if params.no_stop_trim else trim(text, matched), "output_ids": ids, "meta_info": meta}


def _finish_reason(finish: Finish | None, request: GenerationRequest) -> JsonDict | None:
    if finish is None:
        return None
    if finish.type == "length":
        return {"type": "length", "length": request.max_new_tokens}
    if finish.type == "stop":
        return {"type": "stop", "matched": finish.matched}
    return {"type": "abort", "message": finish.message}


def _versions(request: GenerationRequest, count: int) -> list[JsonDict]:
    # versions [("3", 0), ("4", 2)] with 5 tokens -> spans 0..2 of version 3 and 2..5 of version 4.
    spans = [(version, start) for version, start in request.versions if start < count]
    ends = [*(start for _, start in spans[1:]), count]
    return [{"version": v, "start": start, "end": end} for (v, start), end in zip(spans, ends, strict=False)]


def _prompt_log_probs(request: GenerationRequest) -> JsonDict:
    if request.logprob_start is None:
        return {}
    ids = request.prompt[request.logprob_start :]
    # The first token of a prompt has no log-prob: nothing precedes it.
    values: list[float | None] = [None] if request.logprob_start == 0 else []
    values += request.prompt_log_probs
    return {"input_token_logprobs": [(p, i, None) for p, i in zip(values, ids, strict=False)]}
