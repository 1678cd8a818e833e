"""The client of engines that serve the policy as a LoRA adapter beside its model (`rollout.weight_sync: adapter`)."""

from __future__ import annotations

from contextlib import suppress

from agentrl.errors import EngineRequestError
from agentrl.inference.client import EngineClient
from agentrl.types import JsonDict

ADAPTER_NAME = "agentrl-policy"
"""Under which the engines know the adapter."""


class AdapterClient(EngineClient):
    """As `EngineClient`, by SGLang's requests for adapters: new weights are a new adapter of the same name."""

    async def update_weights_from_disk(self, path: str, weight_version: int) -> None:
        """Load the adapter in folder `path` in place of the last one, and report `weight_version` from now on.

        SGLang waits with an unload until no request uses the adapter: those that run are aborted. It knows no versions
        of adapters: the server's own version is set. Errors as in `EngineClient`.
        """
        limit = self.update_timeout_s
        async with self._standing_still("abort"):
            with suppress(EngineRequestError):  # a fresh server has none
                await self._call("POST", "/unload_lora_adapter", {"lora_name": ADAPTER_NAME}, limit)
            load = {"lora_name": ADAPTER_NAME, "lora_path": path}
            self._check_success(await self._call("POST", "/load_lora_adapter", load, limit))
            version = {"new_version": str(weight_version), "abort_all_requests": False}
            self._check_success(await self._call("POST", "/update_weight_version", version, limit))
            await self.flush_cache()

    def _payload(self, prompt_ids: list[int], sampling_params: JsonDict) -> JsonDict:
        return {**super()._payload(prompt_ids, sampling_params), "lora_path": ADAPTER_NAME}
