"""The async client of one engine: token ids in, token ids and log-probs out, over SGLang's native HTTP API.

vLLM's API differs in paths and shapes only: see `vllm_client`.

What is retried, and why that is safe:

* Control calls (health, model info, weights, pause, resume, abort, flush) are idempotent: connection failures, 429 and
  5xx are retried `retries` times.
* A generation has no effect on the server except its own answer, so a lost one may be sampled again, under a new
  request id. It is retried after a connection failure, 429 or 5xx. If the connection broke after the request was sent,
  the earlier request is aborted first, so that it does not keep decoding with nobody waiting.
* A generation has no deadline here. Its caller has one (`Router.generate`) and cancels it, which aborts the request.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson

from agentrl.errors import EngineError, EngineRequestError, EngineTimeout, EngineUnavailable
from agentrl.inference.health import is_well
from agentrl.inference.picture_requests import check_prompt_tokens, picture_fields
from agentrl.inference.protocol import check_request, error_text, parse_generation, parse_weight_version
from agentrl.timeline import trace_headers
from agentrl.types import GenerationOutput, JsonDict

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.chat.vision import SentPictures

logger = logging.getLogger(__name__)

CONTROL_TIMEOUT_S = 30.0
MEMORY_TIMEOUT_S = 120.0
"""How long an engine may take to release or take memory: weights may have to be copied."""
HEALTH_TIMEOUT_S = 25.0
"""SGLang generates a token for its health check, and allows itself 20 s for that."""
KEEPALIVE_S = 3.0
"""Shorter than the 5 s after which uvicorn closes an idle connection, so that a closing one is never reused."""
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0
_LAST_WORD_S = 5.0
"""For a call to an engine that has failed just before."""


class EngineClient:
    """Talks to one engine that speaks SGLang's API. Create, use and close it in one event loop.

    Args:
        address: `http://host:port`.
        vocab_size: ids of this value or more are refused before they are sent: one such id kills a server.
        request_timeout_s: shorter than the usual deadlines of health checks (25 s) and control calls (30 s), it bounds
            those too.
        retries: how often a failed call is retried.
        update_timeout_s: deadline of one weight update, retries included; None: `request_timeout_s`.
    """

    generate_path, rid_field, health_path = "/generate", "rid", "/health"
    alive_path = "/health_generate"
    """What a server answers only while it also generates; `/health` may answer although it does not."""

    def __init__(
        self,
        address: str,
        *,
        vocab_size: int,
        request_timeout_s: float = 600.0,
        retries: int = 3,
        update_timeout_s: float | None = None,
    ) -> None:
        self.address = address.rstrip("/")
        self.vocab_size = vocab_size
        self.request_timeout_s = request_timeout_s
        self.retries = retries
        self.update_timeout_s = request_timeout_s if update_timeout_s is None else update_timeout_s
        self._paused = False
        self._session: aiohttp.ClientSession | None = None
        self._background: set[asyncio.Task[None]] = set()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: JsonDict,
        rid: str | None = None,
        pictures: SentPictures | None = None,
    ) -> GenerationOutput:
        """Sample one continuation of `prompt_ids`. When it is cancelled, the engine is told to abort the request.

        Args:
            prompt_ids: ids of the whole context.
            sampling_params: as in `/generate`, `max_new_tokens` included.
            rid: request id; None: a random one.
            pictures: those that the ids show.

        Raises:
            EngineError: the engine reads other tokens for a picture.
            EngineRequestError: an id outside the vocabulary, or the engine refused the request.
            EngineUnavailable: no connection, or 5xx, after all tries.
        """
        check_request(prompt_ids, sampling_params, self.vocab_size)
        base = rid or uuid.uuid4().hex
        payload = self._payload(prompt_ids if isinstance(prompt_ids, list) else list(prompt_ids), sampling_params)
        payload[self.rid_field] = base
        if pictures is not None:
            payload |= self._picture_fields(prompt_ids, pictures)
        try:
            body = await self._generate_with_retries(payload, base)
        except asyncio.CancelledError:
            self._abort_later(payload[self.rid_field])
            raise
        output = self._parse(body, int(sampling_params.get("max_new_tokens", 0)))
        if pictures is not None:
            check_prompt_tokens(self.address, output.prompt_tokens, len(prompt_ids))
        return output

    def _payload(self, prompt_ids: list[int], sampling_params: JsonDict) -> JsonDict:
        """The body of a generation without its request id."""
        return {"input_ids": prompt_ids, "sampling_params": sampling_params, "return_logprob": True}

    def _picture_fields(self, prompt_ids: Sequence[int], pictures: SentPictures) -> JsonDict:
        """What pictures change in the body."""
        return picture_fields(prompt_ids, pictures)

    def _parse(self, body: Any, max_new_tokens: int) -> GenerationOutput:
        return parse_generation(body, max_new_tokens)

    async def health(self) -> bool:
        """Whether the engine answers, paused or not. Never raises for an engine that does not."""
        try:
            async with asyncio.timeout(min(HEALTH_TIMEOUT_S, self.request_timeout_s)):
                return await is_well(self._status, self.health_path)
        except TimeoutError:
            return False

    async def _status(self, path: str) -> int:
        try:
            async with self._open_session().get(self.address + path) as response:
                return response.status
        except aiohttp.ClientError:
            return 0

    async def model_info(self) -> JsonDict:
        """What the engine says about its model."""
        try:
            info = await self._call("GET", "/model_info")
        except EngineRequestError:  # servers from before the name was shortened
            info = await self._call("GET", "/get_model_info")
        if not isinstance(info, dict):
            raise EngineError(f"{self.address}/model_info answered {str(info)[:200]}, wanted a JSON object")
        return info

    async def weight_version(self) -> int:
        """The weight version that the engine serves now."""
        return parse_weight_version((await self.model_info()).get("weight_version"))

    async def pause(self, mode: str = "in_place") -> None:
        """Stop decoding: `abort` ends running requests, `in_place` keeps them, `retract` keeps them without cache."""
        await self._call("POST", "/pause_generation", {"mode": mode})
        self._paused = True

    async def resume(self) -> None:
        """Go on after `pause`."""
        await self._call("POST", "/continue_generation", {})
        self._paused = False

    async def abort(self, rid: str | None = None) -> None:
        """Abort one request, or all of them."""
        await self._call("POST", *self._abort_call(rid))

    def _abort_call(self, rid: str | None) -> tuple[str, JsonDict]:
        """Path and body of an abort."""
        return "/abort_request", {"rid": rid or "", "abort_all": rid is None}

    async def flush_cache(self) -> None:
        """Forget cached prefixes."""
        await self._call("POST", "/flush_cache", {})

    async def release_memory(self, tags: Sequence[str]) -> None:
        """Give GPU memory back, of an engine at rest; its requests wait until `resume_memory`. Never tried twice.

        Args:
            tags: `kv_cache`, `weights` (which are lost: an update must follow).
        """
        await self._call("POST", "/release_memory_occupation", {"tags": list(tags)}, MEMORY_TIMEOUT_S, retries=0)

    async def resume_memory(self, tags: Sequence[str]) -> None:
        """Take released memory again. Never tried twice: SGLang ends when it is told so without a release."""
        await self._call("POST", "/resume_memory_occupation", {"tags": list(tags)}, MEMORY_TIMEOUT_S, retries=0)

    async def update_weights_from_disk(self, path: str, weight_version: int) -> None:
        """Load the weights in folder `path`, drop the prefix cache and report `weight_version` from now on.

        Running requests are computed again and go on with the new weights; an engine that was paused stays paused.

        Raises:
            EngineRequestError: the engine refused the folder.
            EngineUnavailable: as in `generate`.
            EngineTimeout: no answer within `update_timeout_s`.
        """
        payload = {"model_path": path, "weight_version": str(weight_version), "flush_cache": True}
        async with self._standing_still("retract"):
            self._check_success(await self._call("POST", "/update_weights_from_disk", payload, self.update_timeout_s))

    @asynccontextmanager
    async def _standing_still(self, mode: str) -> AsyncIterator[None]:
        """Pause the engine for this block, even if it is paused in another mode; one that was paused stays so."""
        # Unpaused, SGLang first lets running requests end, which may take minutes. Paused in place, it loads the
        # weights, but cannot drop the cache that those requests use, and refuses to have succeeded.
        stays, well = self._paused, False
        try:
            await self.pause(mode)
            yield
            well = True
        finally:
            if not stays and well:
                await self.resume()
            elif not stays:
                with suppress(EngineError):
                    await self._call("POST", "/continue_generation", {}, _LAST_WORD_S, retries=0)
                self._paused = False

    async def update_weights_from_tensor(self, named_tensors: Mapping[str, Tensor], weight_version: int) -> None:
        """Send weights in the request. Understood by the embedded engine only (SGLang wants pickles)."""
        from safetensors.torch import save

        payload = {
            "serialized_named_tensors": [base64.b64encode(save(dict(named_tensors))).decode("ascii")],
            "load_format": "safetensors",
            "weight_version": str(weight_version),
            "flush_cache": True,
        }
        async with self._standing_still("retract"):
            self._check_success(await self._call("POST", "/update_weights_from_tensor", payload, self.update_timeout_s))

    async def update_call(self, path: str, payload: JsonDict, timeout_s: float) -> None:
        """One request of a weight update, sent once: see `weights.calls`.

        Raises:
            EngineRequestError: the engine refused it.
            EngineUnavailable: no connection, or 5xx.
            EngineTimeout: no answer within `timeout_s`.
        """
        self._check_success(await self._call("POST", path, payload, timeout_s, retries=0))

    async def close(self) -> None:
        """Close all connections, after giving aborts in progress up to 1 s."""
        if self._background:
            await asyncio.wait(self._background, timeout=1.0)
        for task in self._background:
            task.cancel()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _generate_with_retries(self, payload: JsonDict, base: str) -> Any:
        for attempt in range(self.retries + 1):
            # SGLang ends with a request also those whose ids begin with its id: the abort of `a` would end `a.2`.
            payload[self.rid_field] = base if attempt == 0 else f"{attempt + 1}.{base}"
            try:
                return await self._send("POST", self.generate_path, payload)
            except EngineUnavailable as error:
                if attempt == self.retries:
                    raise
                # The connection broke after the request was sent: the server may still be decoding it.
                if isinstance(error.__cause__, aiohttp.ClientError) and not _never_connected(error.__cause__):
                    self._abort_later(payload[self.rid_field])
                await self._back_off(attempt, error)
        raise AssertionError("unreachable")

    async def _call(
        self,
        method: str,
        path: str,
        payload: JsonDict | None = None,
        timeout_s: float | None = None,
        retries: int | None = None,
    ) -> Any:
        """One idempotent call, retried on connection failures, 429 and 5xx."""
        timeout_s = min(CONTROL_TIMEOUT_S, self.request_timeout_s) if timeout_s is None else timeout_s
        tries = (self.retries if retries is None else retries) + 1
        try:
            async with asyncio.timeout(timeout_s):
                for attempt in range(tries):
                    try:
                        return await self._send(method, path, payload)
                    except EngineUnavailable as error:
                        if attempt == tries - 1:
                            raise
                        await self._back_off(attempt, error)
        except TimeoutError:
            raise EngineTimeout(f"{self.address}{path} gave no answer within {timeout_s:g} s") from None

    async def _send(self, method: str, path: str, payload: JsonDict | None) -> Any:
        """One HTTP exchange.

        Raises:
            EngineUnavailable: no connection (the aiohttp error is its cause), 429 or 5xx.
            EngineRequestError: another 4xx.
        """
        data = None if payload is None else _own_bytes(orjson.dumps(payload, option=orjson.OPT_SERIALIZE_NUMPY))
        try:
            url, headers = self.address + path, trace_headers()
            async with self._open_session().request(method, url, data=data, headers=headers) as response:
                body = await response.read()
        except aiohttp.ClientError as error:
            raise EngineUnavailable(f"{self.address}{path}: {error or type(error).__name__}") from error
        if response.status < 300:
            return self._decode(path, body)
        message = f"{self.address}{path} answered {response.status}: {error_text(body)}"
        if response.status >= 500 or response.status == 429:
            raise EngineUnavailable(message)
        raise EngineRequestError(message)

    def _decode(self, path: str, body: bytes) -> Any:
        """The body as JSON if it is JSON; plain answers (`/health`) as they are."""
        if body[:1] not in (b"{", b"["):
            return body
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise EngineError(f"{self.address}{path} answered with broken JSON: {error}") from error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
                headers={"Content-Type": "application/json"},
            )
        return self._session

    def _check_success(self, body: Any) -> None:
        if not isinstance(body, dict) or not body.get("success"):
            raise EngineRequestError(f"{self.address} refused the weights: {str(body)[:500]}")

    async def _back_off(self, attempt: int, error: EngineUnavailable) -> None:
        delay = min(FIRST_BACKOFF_S * 2**attempt, MAX_BACKOFF_S)
        logger.debug("try %d failed, next in %.1f s: %s", attempt + 1, delay, error)
        await asyncio.sleep(delay)

    def _abort_later(self, rid: str) -> None:
        """Tell the engine to stop decoding for nobody, in the background; a failure is only logged."""

        async def abort() -> None:
            try:
                await self._call("POST", *self._abort_call(rid), _LAST_WORD_S, retries=0)
            except EngineError as error:
                logger.debug("cannot abort %s: %s", rid, error)

        task = asyncio.get_running_loop().create_task(abort())
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _own_bytes(body: bytes) -> bytes:
    """The same bytes in a block of their size: a body is held until its answer is there, by thousands of requests.

    orjson leaves them in the block in which it wrote them, which it doubled until all fitted and more: 65 kB for a body
    of 1.5 kB, 2 MB for one of 49 kB (version 3.13).
    """
    return bytes(memoryview(body))


def _never_connected(error: aiohttp.ClientError) -> bool:
    return isinstance(error, aiohttp.ClientConnectorError)
