"""The OpenAI-shaped routes: `/v1/models` and `/v1/chat/completions`."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import orjson
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response, StreamingResponse

from agentrl.errors import UserInputError, suggest
from agentrl.inference.embedded.frontend import Frontend
from agentrl.inference.embedded.http import Handler, answer, read_json_body
from agentrl.inference.embedded.protocol import GenerateCall, parse_generate, render_answer
from agentrl.inference.embedded.tool_calls import as_message, tool_call_routes
from agentrl.types import JsonDict

SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "stop_token_ids",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "n",
    "logit_bias",
    "ignore_eos",
    "skip_special_tokens",
    "no_stop_trim",
)
OTHERS = (
    "model",
    "messages",
    "tools",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "seed",
    "stream",
    "logprobs",
    "top_logprobs",
    "rid",
    "chat_template_kwargs",
    "user",
)


def chat_routes(frontend: Frontend) -> dict[tuple[str, str], Handler]:
    """Handlers by method and path."""

    async def models(_: HTTPRequest) -> Response:
        engine = frontend.engine
        card = {"id": engine.options.model, "object": "model", "owned_by": "agentrl", "max_model_len": engine.context}
        return answer({"object": "list", "data": [card]})

    async def completions(request: HTTPRequest) -> Response:
        body = await read_json_body(request)
        call = _parse(body, frontend)
        if call.stream:
            return StreamingResponse(_events(call, frontend), media_type="text/event-stream")
        done = await frontend.finished(call.requests, request.is_disconnected)
        answers = [render_answer(p, frontend.engine, return_logprob=call.return_logprob) for p in done]
        return answer(_completion(answers, frontend, body.get("tools")))

    return {("GET", "/v1/models"): models, ("POST", "/v1/chat/completions"): completions} | tool_call_routes()


def _parse(body: Any, frontend: Frontend) -> GenerateCall:
    if not isinstance(body, Mapping):
        raise UserInputError(f"the body: got {type(body).__name__}, wanted a JSON object")
    for name in body:
        if name not in SAME_NAME and name not in OTHERS:
            raise UserInputError(f"unknown field '{name}'." + suggest(str(name), (*SAME_NAME, *OTHERS)))
    params = {name: body[name] for name in SAME_NAME if name in body}
    params["max_new_tokens"] = body.get("max_completion_tokens") or body.get("max_tokens")
    params["min_new_tokens"] = body.get("min_tokens")
    params["sampling_seed"] = body.get("seed")
    generate = {
        "input_ids": _render_prompt(body, frontend),
        "sampling_params": params,
        "stream": bool(body.get("stream")),
        "return_logprob": bool(body.get("logprobs")),
        "top_logprobs_num": body.get("top_logprobs"),
        "rid": body.get("rid"),
        "lora_path": frontend.engine.adapter,
        "image_data": _images(body["messages"]) or None,
    }
    return parse_generate(generate, frontend.engine, number=time.monotonic_ns())


def _render_prompt(body: Mapping[str, Any], frontend: Frontend) -> list[int]:
    from jinja2 import TemplateError

    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, Mapping) for m in messages):
        raise UserInputError("messages: wanted a non-empty list of {role, content}")
    if not frontend.engine.tokenizer.available:
        raise UserInputError("the model folder has no tokenizer: use /generate with input_ids")
    tokenizer = frontend.engine.tokenizer.full
    if not tokenizer.chat_template:
        raise UserInputError("the model folder has no chat template: use /generate with input_ids")
    options = body.get("chat_template_kwargs") or {}
    try:
        ids = tokenizer.apply_chat_template(
            messages, tools=body.get("tools"), add_generation_prompt=True, return_dict=False, **options
        )
    except (TemplateError, TypeError, KeyError) as error:
        raise UserInputError(f"the chat template refuses the messages: {error}") from error
    return [int(i) for i in ids]


def _images(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The pictures of messages, in order: `{"type": "image_url", "image_url": {"url": DATA_URI}}`.

    Raises:
        UserInputError: a part is neither text nor a picture.
    """
    images: list[Any] = []
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else []:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind in ("image", "image_url"):
                images.append(part)
            elif kind != "text":
                raise UserInputError(f"messages: got a part of type {kind!r}, wanted text or image_url")
    return images


def _completion(answers: list[JsonDict], frontend: Frontend, tools: Any) -> JsonDict:
    metas = [item["meta_info"] for item in answers]
    prompt, sampled = metas[0]["prompt_tokens"], sum(meta["completion_tokens"] for meta in metas)
    choices = []
    for index, item in enumerate(answers):
        reason = item["meta_info"]["finish_reason"]
        message, calls = as_message(item["text"], frontend.engine.options.tool_call_parser, tools)
        choices.append(
            {
                "index": index,
                "message": message,
                "logprobs": _logprobs(item["meta_info"], frontend),
                "finish_reason": "tool_calls" if calls and reason["type"] == "stop" else reason["type"],
                "matched_stop": reason.get("matched"),
            }
        )
    usage = {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
    return _frame("chat.completion", uuid.uuid4().hex, frontend) | {"choices": choices, "usage": usage}


def _frame(kind: str, name: str, frontend: Frontend) -> JsonDict:
    return {"id": name, "object": kind, "created": int(time.time()), "model": frontend.engine.options.model}


def _logprobs(meta: JsonDict, frontend: Frontend) -> JsonDict | None:
    if "output_token_logprobs" not in meta:
        return None
    decode = frontend.engine.tokenizer.decode
    tops = meta.get("output_top_logprobs") or [[]] * len(meta["output_token_logprobs"])

    def entry(log_prob: float, token: int) -> JsonDict:
        text = decode([token], False)
        return {"token": text, "logprob": log_prob, "bytes": list(text.encode())}

    return {
        "content": [
            entry(p, i) | {"top_logprobs": [entry(q, j) for q, j, _ in top]}
            for (p, i, _), top in zip(meta["output_token_logprobs"], tops, strict=True)
        ]
    }


async def _events(call: GenerateCall, frontend: Frontend) -> AsyncIterator[bytes]:
    """Server-sent events with the new text of each token."""
    name = uuid.uuid4().hex
    shown = [""] * len(call.requests)
    places = {id(request): place for place, request in enumerate(call.requests)}
    async for progress in frontend.stream(call.requests):
        place = places[id(progress.request)]
        item = render_answer(progress, frontend.engine, return_logprob=False)
        text, finish = item["text"], item["meta_info"]["finish_reason"]
        if finish is None and text.endswith("\ufffd"):
            continue
        delta = {"role": "assistant", "content": text[len(shown[place]) :]}
        shown[place] = text
        choice = {"index": place, "delta": delta, "finish_reason": finish["type"] if finish else None}
        yield (
            b"data: " + orjson.dumps(_frame("chat.completion.chunk", name, frontend) | {"choices": [choice]}) + b"\n\n"
        )
    yield b"data: [DONE]\n\n"
