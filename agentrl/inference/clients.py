"""Which client talks to the engines of a run."""

from __future__ import annotations

from agentrl.config.root import RunConfig
from agentrl.inference.adapter_client import AdapterClient
from agentrl.inference.client import EngineClient
from agentrl.inference.vllm_client import VLLMClient


def client_class(config: RunConfig) -> type[EngineClient]:
    """`VLLMClient` for `rollout.name=vllm`; all other engines speak SGLang's API, with or without an adapter."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.name == "vllm":
        return VLLMClient
    return AdapterClient if rollout.weight_sync == "adapter" else EngineClient
