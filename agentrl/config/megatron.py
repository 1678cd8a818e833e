"""What asks for Megatron in a recipe of verl, and the keys that do the same here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

REASON = "Megatron is not supported: models are sharded by FSDP2"
STRATEGY = "megatron"
"""The value of a `strategy` that asks for it."""

_SAME = {
    "tensor_model_parallel_size": "fsdp_config.tensor_parallel_size",
    "context_parallel_size": "fsdp_config.ulysses_sequence_parallel_size",
    "param_offload": "fsdp_config.param_offload",
    "grad_offload": "fsdp_config.param_offload",
    "optimizer_offload": "fsdp_config.optimizer_offload",
    "dtype": "fsdp_config.compute_dtype",
    "optimizer.lr": "optim.lr",
}
"""Keys of a `megatron` section by their names here, in the section around it."""
_MODEL = {
    "override_transformer_config.recompute_granularity": "enable_gradient_checkpointing",
    "override_transformer_config.recompute_method": "enable_gradient_checkpointing",
    "override_transformer_config.recompute_num_layers": "enable_gradient_checkpointing",
}
"""Keys that a switch of the model's section stands for."""
_NOTHING = {
    "pipeline_model_parallel_size": "every layer is sharded over all ranks, which saves the same memory",
    "virtual_pipeline_model_parallel_size": "there are no pipelines",
    "expert_model_parallel_size": "experts are sharded like all weights",
    "expert_tensor_parallel_size": "experts are sharded like all weights",
    "sequence_parallel": "ulysses_sequence_parallel_size shares rows",
    "use_distributed_optimizer": "the optimizer's state is always sharded",
    "use_dist_checkpointing": "checkpoints are always sharded",
}
"""Keys without a counterpart, and why none is needed."""


def megatron_section(key: str) -> str:
    """The section around `….megatron.KEY` or `….strategy`."""
    return key.partition(".megatron.")[0].removesuffix(".strategy")


def instead(section: str, given: Mapping[str, Any]) -> str:
    """Completes a refusal: what to set in place of the keys of one section.

    Args:
        section: `actor_rollout_ref.actor`, `actor_rollout_ref.ref` or `critic`.
        given: what asks for Megatron there, by key.
    """
    keys = {name.partition(".megatron.")[2]: value for name, value in given.items() if ".megatron." in name}
    settings = list(dict.fromkeys(_settings(section, keys)))
    if not keys:
        settings.append(
            f"and, for what tensor_model_parallel_size and context_parallel_size are to Megatron, "
            f"{section}.fsdp_config.tensor_parallel_size and {section}.fsdp_config.ulysses_sequence_parallel_size"
        )
    rest = {key: _NOTHING.get(key, "") for key in keys if not _counterpart(section, key)}
    left = [f"{key} ({reason})" if reason else key for key, reason in rest.items()]
    set_these = f"set {' '.join(settings)}" if settings else ""
    leave = f"leave out {', '.join(left)}" if left else ""
    return f"{REASON}. {_sentence(set_these, leave)}"


def _settings(section: str, keys: Mapping[str, Any]) -> Iterator[str]:
    yield f"{section}.strategy=fsdp2"
    for key, value in keys.items():
        if (own := _counterpart(section, key)) is not None:
            yield f"{own}={'true' if key in _MODEL else _plain(value)}"


def _counterpart(section: str, key: str) -> str | None:
    if key in _MODEL:
        model = "critic.model" if section == "critic" else "actor_rollout_ref.model"
        return f"{model}.{_MODEL[key]}"
    return f"{section}.{_SAME[key]}" if key in _SAME else None


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sentence(*parts: str) -> str:
    text = ", and ".join(part for part in parts if part)
    return text[:1].upper() + text[1:]
