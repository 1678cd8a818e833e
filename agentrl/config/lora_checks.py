"""What cannot work with LoRA, and which of its keys do nothing in a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentrl.config.actor import FSDPConfig
from agentrl.config.idle import Idle, value_at
from agentrl.config.lora import LoraKeys
from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError
from agentrl.hub import ADAPTER_CONFIG, adapter_folder

POLICY = "actor_rollout_ref.model"


def lora_problems(section: str, keys: LoraKeys, fsdp_key: str, fsdp: FSDPConfig) -> Iterator[str]:
    """What does not fit together in the keys of one model, and in how it is spread over ranks."""
    if keys.lora_enable and not keys.adapts:
        yield f"{section}.lora_enable: got true, but {section}.lora_rank is 0: give a rank"
    if keys.adapts and keys.lora_dropout > 0:
        yield (
            f"{section}.lora_dropout: got {keys.lora_dropout:g}, wanted 0: with dropout, log-probs are not those of "
            "the policy that sampled"
        )
    if keys.adapts and fsdp.tensor_parallel_size > 1:
        yield (
            f"{fsdp_key}.tensor_parallel_size: got {fsdp.tensor_parallel_size}, but {section}.lora_rank is set, and "
            "layers with adapters are not cut: wanted 1 (ulysses_sequence_parallel_size may be above 1)"
        )


def check_lora(config: RunConfig) -> Iterator[str]:
    """LoRA of the policy, and of the critic where there is one."""
    policy = config.actor_rollout_ref
    yield from lora_problems(POLICY, policy.model, "actor_rollout_ref.actor.fsdp_config", policy.actor.fsdp_config)
    rollout = policy.rollout
    if rollout.weight_sync == "adapter":
        key = "actor_rollout_ref.rollout.weight_sync: got adapter, but "
        if not policy.model.adapts:
            yield f"{key}{POLICY}.lora_rank is 0: without LoRA there is no adapter to send"
        if rollout.name not in ("auto", "sglang", "embedded"):
            yield f"{key}rollout.name is {rollout.name}, and only SGLang and the embedded engine load them: use disk"
        yield from _sent_problems(policy.model.lora_adapter_path if policy.model.adapts else None)
    if config.needs_critic:
        critic = config.critic
        yield from lora_problems("critic.model", critic.model, "critic.fsdp_config", critic.fsdp_config)


def _sent_problems(path: str | None) -> Iterator[str]:
    """What in the adapter to start from engines cannot load; one that cannot be read is reported when it is loaded."""
    if path is None:
        return
    try:
        config = json.loads((adapter_folder(path) / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    except (ConfigError, OSError, ValueError):
        return
    for name in ("rank_pattern", "alpha_pattern", "use_rslora") if isinstance(config, dict) else ():
        if config.get(name):
            yield (
                f"actor_rollout_ref.rollout.weight_sync: got adapter, but the adapter in {POLICY}.lora_adapter_path "
                f"has {name} {config[name]}, and engines scale every layer by lora_alpha / r: use disk"
            )


def idle_lora(section: str) -> tuple[Idle[Any], ...]:
    """Keys of LoRA in a section that trains all weights, or begins with an adapter that has its own."""

    def keys(run: Any) -> LoraKeys:
        found: LoraKeys = value_at(run, section)
        return found

    own = tuple(f"{section}.{name}" for name in ("lora_alpha", "lora_dropout", "target_modules", "exclude_modules"))
    return (
        Idle(
            (*own, f"{section}.lora_rank", f"{section}.lora_adapter_path"),
            lambda run: keys(run).lora_enable is False,
            f"{section}.lora_enable is false, so all weights are trained",
        ),
        Idle(own, lambda run: not keys(run).adapts, f"{section}.lora_rank is 0, so all weights are trained"),
        Idle(
            (f"{section}.target_modules", f"{section}.exclude_modules"),
            lambda run: keys(run).lora_adapter_path is not None,
            f"{section}.lora_adapter_path is given, and that adapter has its own layers",
        ),
        Idle(
            (f"{section}.lora_enable",),
            lambda run: keys(run).lora_enable is not None and not _switches(keys(run)),
            f"{section}.lora_rank says the same",
        ),
    )


def _switches(keys: LoraKeys) -> bool:
    """Whether there would be LoRA, or none, without `lora_enable`."""
    given = "lora_rank" in keys.model_fields_set and keys.lora_rank > 0
    return bool(keys.lora_enable) != (given or keys.lora_adapter_path is not None)


IDLE_LORA: tuple[Idle[RunConfig], ...] = (
    *idle_lora(POLICY),
    *idle_lora("critic.model"),
    Idle(
        ("actor_rollout_ref.ref.fsdp_config.*", "trainer.role_pools.ref"),
        lambda run: run.actor_rollout_ref.model.adapts,
        "the policy has LoRA, so that the reference is the actor without its adapters",
    ),
)
