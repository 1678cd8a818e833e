"""How weights reach the engines of a run: what `rollout.weight_sync` means on its machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from agentrl.config.idle import Idle
from agentrl.config.machine import OWN_ENGINES, engine_name, uses_cuda
from agentrl.config.parallel_checks import model_config
from agentrl.config.root import RunConfig

Transport = Literal["disk", "ipc", "distributed", "tensor", "adapter"]
_ROLLOUT = "actor_rollout_ref.rollout."
_KEY = f"{_ROLLOUT}weight_sync"


IDLE_TRANSPORT_KEYS: tuple[Idle[RunConfig], ...] = (
    Idle(
        (f"{_ROLLOUT}tensor_model_parallel_size",),
        lambda run: bool(run.actor_rollout_ref.rollout.server.addresses) and _asked(run) != "distributed",
        "rollout.server.addresses names running servers, so this run starts none",
    ),
    Idle(
        (f"{_ROLLOUT}weight_sync_dir",),
        lambda run: _asked(run) in ("ipc", "distributed", "tensor"),
        "with this rollout.weight_sync weights reach the engines without files",
    ),
    Idle(
        (f"{_ROLLOUT}update_weights_bucket_megabytes",),
        lambda run: _asked(run) == "adapter",
        "rollout.weight_sync is adapter, which travels whole",
    ),
)
"""Keys that cannot act with the transport of the run."""


def _asked(config: RunConfig) -> str:
    return config.actor_rollout_ref.rollout.weight_sync


def weight_transport(config: RunConfig) -> Transport:
    """The transport of a run.

    `auto` is `disk` on CPUs, for servers given by address and for engines other than SGLang; on GPUs `ipc` where
    engines have the ranks' GPUs, `distributed` where they have their own.
    """
    rollout = config.actor_rollout_ref.rollout
    if rollout.weight_sync != "auto":
        return rollout.weight_sync
    if rollout.server.addresses is not None or not uses_cuda(config) or engine_name(config) != "sglang":
        return "disk"
    return "ipc" if shares_gpus(config) else "distributed"


def shares_gpus(config: RunConfig) -> bool:
    """Whether started engines are on the GPUs of the actor's ranks."""
    rollout = config.actor_rollout_ref.rollout
    return rollout.placement == "colocated" or (rollout.placement == "auto" and rollout.n_gpus is None)


def check_weight_sync(config: RunConfig) -> Iterator[str]:
    """The engine understands the transport that is asked for, and can reach what it is told of."""
    rollout = config.actor_rollout_ref.rollout
    asked = rollout.weight_sync
    if asked not in ("tensor", "ipc", "distributed"):
        return
    # Of given servers nobody knows what `auto` is: a real SGLang, or an embedded engine.
    given = rollout.server.addresses is not None
    engine = rollout.name if given else engine_name(config)
    chosen = f"actor_rollout_ref.rollout.name is {rollout.name}" + (
        f", here {engine}" if engine != rollout.name else ""
    )
    if asked == "tensor" and engine in ("sglang", "vllm"):
        yield f"{_KEY}: got tensor, which only the embedded engine understands, but {chosen}: use disk"
    elif engine == "vllm":
        yield f"{_KEY}: got {asked}, which vLLM does not take, but {chosen}: use disk"
    elif asked == "ipc" and given and (uses_cuda(config) or engine not in OWN_ENGINES):
        yield f"{_KEY}: got ipc, but servers given by address may have other GPUs: use distributed or disk"
    elif asked == "ipc" and engine == "sglang" and not uses_cuda(config):
        yield (
            f"{_KEY}: got ipc, which ends an SGLang server on a CPU (memory is shared between GPU processes only): use "
            "distributed or disk"
        )
    elif asked == "ipc" and uses_cuda(config) and not shares_gpus(config):
        yield f"{_KEY}: got ipc, but engines have GPUs of their own: use distributed or disk"
    elif asked == "distributed" and not given and uses_cuda(config) and shares_gpus(config):
        yield (
            f"{_KEY}: got distributed, but engines are on the GPUs of the ranks, and NCCL refuses a group with one GPU "
            "twice (rank 0's, which the first engine has too): use ipc or disk, or give engines GPUs of their own "
            f"({_ROLLOUT}placement=split)"
        )
    if engine == "hf" and (family := _computed_family(config)):
        yield (
            f"{_KEY}: got {asked}, but transformers computes the weights of '{family}' from a whole checkpoint, which "
            "the engine hf gets by disk alone: use disk"
        )


def _computed_family(config: RunConfig) -> str | None:
    """The type of a model whose weights transformers does more to than to stack, join and transpose those of files."""
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    own = model_config(config.actor_rollout_ref.model)
    family = "" if own is None else str(own.model_type)
    converters = get_checkpoint_conversion_mapping(family) or []
    made_by = {type(operation).__name__ for each in converters for operation in getattr(each, "operations", ())}
    return family if made_by - {"MergeModulelist", "Concatenate", "Transpose"} else None
