"""Which client talks to the engines of a run."""

from __future__ import annotations

from agentrl.config.root import RunConfig
from agentrl.inference.client import EngineClient
from agentrl.inference.vllm_client import VLLMClient


def client_class(config: RunConfig) -> type[EngineClient]:
    """`VLLMClient` for `rollout.name=vllm`; all other engines speak SGLang's API."""
    return VLLMClient if config.actor_rollout_ref.rollout.name == "vllm" else EngineClient
