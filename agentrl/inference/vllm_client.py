"""The client of a vLLM server: the same calls as SGLang's client, in vLLM's words.

Generations go to `/inference/v1/generate` (token ids in, token ids out; `--enable-scale-out`), everything else to the
endpoints of `VLLM_SERVER_DEV_MODE=1`. Read from vLLM 0.32, and tried on it.

What differs from SGLang, and what is done about it:

* A sampling field that vLLM does not know is ignored there: it is refused here.
* Log-probs are those of the distribution that is sampled from (`--logprobs-mode processed_logprobs`): with `top_p` or
  `top_k` they are those of the tokens that are left, where SGLang's are those of all tokens.
* A folder without weights kills the server: it is refused here.
* New weights and their version are two calls: the engine is paused meanwhile, so that no token is sampled between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import EngineError, EngineRequestError, suggest
from agentrl.inference.client import MEMORY_TIMEOUT_S, EngineClient
from agentrl.inference.protocol import parse_generation
from agentrl.types import GenerationOutput, JsonDict

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.chat.vision import SentPictures

NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
}
"""Sampling fields of SGLang that vLLM names differently."""
GRAMMARS = {"json_schema": "json", "regex": "regex"}
"""Those that are parts of vLLM's `structured_outputs`."""
SAME = (
    *("temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "ignore_eos", "repetition_penalty"),
    *("frequency_penalty", "presence_penalty", "skip_special_tokens", "spaces_between_special_tokens", "logit_bias"),
)
PAUSES = {"abort": "abort", "in_place": "keep", "retract": "keep"}
"""SGLang's ways to pause. A kept request is computed again if the prefix cache is reset meanwhile, as in `retract`."""
_NO_LOG_PROB = -9999.0
REQUEST_PREFIX = "generate-tokens-"
"""vLLM puts it before the request's id, and expects it in aborts."""


class VLLMClient(EngineClient):
    """Talks to one vLLM server. As `EngineClient`."""

    generate_path, rid_field = "/inference/v1/generate", "request_id"
    # `/health` only says that the engine's process has not ended; its version comes from the loop that also decodes.
    health_path = alive_path = "/weight_info"

    def _payload(self, prompt_ids: list[int], sampling_params: JsonDict) -> JsonDict:
        return {"token_ids": prompt_ids, "sampling_params": {**vllm_sampling(sampling_params), "logprobs": 0}}

    def _picture_fields(self, prompt_ids: Sequence[int], pictures: SentPictures) -> JsonDict:
        raise EngineRequestError("pictures are not sent to vLLM: use rollout.name=sglang or embedded")

    def _parse(self, body: Any, max_new_tokens: int) -> GenerationOutput:
        return parse_generation(as_generation(body), max_new_tokens)

    def _abort_call(self, rid: str | None) -> tuple[str, JsonDict]:
        return "/abort_requests", {"request_ids": [] if rid is None else [REQUEST_PREFIX + rid]}

    async def model_info(self) -> JsonDict:
        """The version of the weights."""
        try:
            info = await self._call("GET", "/weight_info")
        except EngineRequestError as error:
            raise EngineError(
                f"{error}: wanted a vLLM server (0.32 or newer) started with VLLM_SERVER_DEV_MODE=1 and "
                "--enable-scale-out; for an SGLang server leave rollout.name to sglang"
            ) from error
        if not isinstance(info, dict):
            raise EngineError(f"{self.address}/weight_info answered {str(info)[:200]}, wanted a JSON object")
        return info

    async def pause(self, mode: str = "in_place") -> None:
        """Stop decoding: `abort` ends running requests, the other modes keep them."""
        if mode not in PAUSES:
            raise EngineRequestError(f"pause mode: got {mode!r}.{suggest(mode, PAUSES)}")
        await self._call("POST", f"/pause?mode={PAUSES[mode]}")

    async def resume(self) -> None:
        """Go on after `pause`."""
        await self._call("POST", "/resume")

    async def flush_cache(self) -> None:
        """Forget cached prefixes; what running requests have computed is computed again."""
        body = await self._call("POST", "/reset_prefix_cache?reset_running_requests=true")
        if not (isinstance(body, dict) and body.get("success")):
            raise EngineError(f"{self.address} did not reset its prefix cache: {str(body)[:200]}")

    async def release_memory(self, tags: Sequence[str]) -> None:
        """Fall asleep: weights wait in host memory, the cache is dropped. vLLM always releases both."""
        await self._call("POST", "/sleep?level=1", None, MEMORY_TIMEOUT_S, retries=0)

    async def resume_memory(self, tags: Sequence[str]) -> None:
        """Wake up: `weights`, `kv_cache` or both."""
        query = "&".join(f"tags={tag}" for tag in tags)
        await self._call("POST", f"/wake_up?{query}", None, MEMORY_TIMEOUT_S, retries=0)

    async def update_weights_from_disk(self, path: str, weight_version: int) -> None:
        """Load the weights in folder `path`, drop the prefix cache and report `weight_version` from now on.

        Running requests go on with the new weights; an engine that was paused stays paused.

        Raises:
            EngineRequestError: the folder holds no weights.
            EngineUnavailable: as in `generate`; also if the weights are those of another model, which ends the server.
            EngineTimeout: no answer within `update_timeout_s`.
        """
        if not await asyncio.to_thread(_has_weights, path):
            raise EngineRequestError(f"{path}: no model*.safetensors, which {self.address} would not survive; not sent")
        paused = await self._call("GET", "/is_paused")
        if not (isinstance(paused, dict) and paused.get("is_paused")):
            await self.pause()
        load = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        await self._call("POST", "/collective_rpc", load, self.update_timeout_s, retries=0)
        await self.flush_cache()
        await self._call("POST", "/update_weight_version", {"new_version": str(weight_version)})
        if not (isinstance(paused, dict) and paused.get("is_paused")):
            await self.resume()

    async def update_weights_from_tensor(self, named_tensors: Mapping[str, Tensor], weight_version: int) -> None:
        """Refused: vLLM takes no weights in a request."""
        raise EngineRequestError(f"{self.address}: vLLM takes no weights over HTTP: use rollout.weight_sync=disk")


def vllm_sampling(params: JsonDict) -> JsonDict:
    """SGLang's sampling fields as vLLM's.

    Raises:
        EngineRequestError: a field that vLLM does not have; it would be ignored.
    """
    out: JsonDict = {}
    for name, value in params.items():
        if value is None or (name == "n" and value == 1) or name == "no_stop_trim":
            continue  # a request has one answer, and only its ids count: its text is not used
        if name == "n":
            raise EngineRequestError(f"sampling parameter n: got {value}, wanted 1: send a request for each answer")
        if name in GRAMMARS:
            out["structured_outputs"] = {GRAMMARS[name]: value}
        elif name in NAMES or name in SAME:
            out[NAMES.get(name, name)] = value
        else:
            raise EngineRequestError(
                f"sampling parameter {name}: vLLM has none.{suggest(name, [*NAMES, *GRAMMARS, *SAME])}"
            )
    if "seed" in out:
        out["seed"] %= 2**63  # SGLang takes negative seeds; -1 is none to vLLM
    return out


def as_generation(body: Any) -> JsonDict:
    """An answer of `/inference/v1/generate` in the shape of SGLang's `/generate`.

    Raises:
        EngineError: it is not one generation.
    """
    try:
        (choice,) = body["choices"]
        ids, reason = choice["token_ids"], choice["finish_reason"]
        entries = (choice["logprobs"] or {}).get("content") or []
        pairs = [[_log_prob(entry["logprob"]), entry["token_id"], None] for entry in entries]
        usage, versions = body["usage"], choice.get("weight_versions")
    except (KeyError, TypeError, ValueError, AttributeError):
        raise EngineError(f"the engine's answer is not one generation: {str(body)[:200]}") from None
    if ids and not versions:
        raise EngineError("the engine's answer has no weight_versions: vLLM has them from 0.32 on")
    # A stop id of the request is told as `stop_reason`; the model's own end-of-turn id is only the last id.
    matched = choice.get("stop_reason")
    if reason == "stop" and matched is None and ids:
        matched = ids[-1]
    meta = {
        "finish_reason": None if reason is None else {"type": reason, "matched": matched},
        "output_token_logprobs": pairs,
        "weight_versions": versions,
        "prompt_tokens": usage.get("prompt_tokens"),
        "cached_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
    }
    return {"output_ids": ids, "meta_info": meta}


def _log_prob(value: float) -> float | None:
    """None in place of vLLM's mark for a log-prob that is NaN or missing."""
    return None if value <= _NO_LOG_PROB else value


def _has_weights(path: str) -> bool:
    return any(Path(path).glob("model*.safetensors"))
