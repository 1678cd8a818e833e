"""Spreads the matrices of each layer over the ranks of a `tp` axis, by the plan that transformers has for the model.

A plan names modules and how each is cut; qwen2's is::

    layers.*.self_attn.q_proj   colwise     its rows, so its outputs: rank 0 computes the first half of the heads
    layers.*.self_attn.o_proj   rowwise     its columns, so its inputs; the sum over ranks is its output
    layers.*.self_attn.q_norm   replicated_with_grad_allreduce       (qwen3) whole, on this rank's heads

Parameters become DTensors on the axis, and FSDP then shards them further. What no plan names is whole on every rank,
with equal gradients: norms of hidden states, routers, experts. A parameter beside cut matrices sees only this rank's
heads or columns, so there the plan must name it. The embeddings and the head are cut over the vocabulary where it
divides; log-probs are then computed from each rank's part of the logits (`token_stats.VocabPart`).
"""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from agentrl.config.parallel_checks import WHOLE_STYLES, tp_plan_of
from agentrl.errors import ConfigError
from agentrl.workers.token_stats import VocabPart


def cut_layers(backbone: Any, mesh: DeviceMesh) -> None:
    """Cut the matrices of a transformer without its head. A collective call, before FSDP shards them.

    Raises:
        ConfigError: parameters beside cut matrices are in no plan.
    """
    plan = tp_plan_of(backbone.config)
    named = {name: module for name, module in backbone.named_modules() if name}
    styles: dict[str, ParallelStyle] = {}
    for name in named:
        kind = next((kind for pattern, kind in plan.items() if fnmatchcase(name, pattern)), None)
        if kind is not None and kind not in WHOLE_STYLES:
            styles[name] = _STYLES[kind]()
    require_whole_plan(backbone, styles.keys(), mesh.size())
    parallelize_module(backbone, mesh, styles, src_data_rank=None)


def require_whole_plan(backbone: Any, cut: Collection[str], tp: int) -> None:
    """Refuse parameters that act on a part of the heads or columns, with gradients that nothing would add up.

    Args:
        backbone: the transformer.
        cut: names of the modules that its plan cuts, or names as working on single heads.
        tp: ranks of the axis.

    Raises:
        ConfigError: modules that hold cut ones have such parameters.
    """
    holders = tuple({f"{name.rpartition('.')[0]}." for name in cut})
    inside = tuple(f"{name}." for name in cut)
    names = [
        name for name, _ in backbone.named_parameters() if name.startswith(holders) and not name.startswith(inside)
    ]
    if names:
        raise ConfigError(
            f"tensor_parallel_size: got {tp}, but transformers' plan for '{backbone.config.model_type}' leaves out "
            f"{len(names)} weights beside matrices that it cuts, among them {', '.join(names[:2])}: each rank would "
            "learn them from its own heads or columns; wanted 1"
        )


def cut_vocabulary(lm: Any, mesh: DeviceMesh) -> VocabPart | None:
    """Cut embeddings and head over the vocabulary; None: it does not divide, so they stay whole. A collective call."""
    embedding, head = lm.get_input_embeddings(), lm.get_output_embeddings()
    count, tied = head.weight.shape[0], head.weight is embedding.weight
    if count % mesh.size() or getattr(head, "bias", None) is not None:
        return None
    # Its logits stay cut: this rank's columns, as a plain tensor.
    parallelize_module(head, mesh, ColwiseParallel(), src_data_rank=None)
    if tied or embedding.weight.shape[0] % mesh.size() == 0:
        parallelize_module(embedding, mesh, RowwiseParallel(input_layouts=Replicate()), src_data_rank=None)
    if tied:
        head.weight = embedding.weight
    return VocabPart(mesh.get_group(), mesh.get_local_rank() * (count // mesh.size()))


class _OnHeads(ParallelStyle):
    """A module that works on single heads, with one weight for all of them: gradients are added over ranks."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        # What the functions return replaces inputs and outputs, whatever torch's types say.
        return distribute_module(module, device_mesh, _replicate, _heads_in, _heads_out)  # type: ignore[arg-type]


def _replicate(_name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        whole = distribute_tensor(parameter, mesh, [Replicate()], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(whole, requires_grad=parameter.requires_grad))


def _heads_in(_module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
    """(…, heads of this rank, D) -> a part of (…, heads, D)."""
    placed: list[Placement] = [Shard(inputs[0].ndim - 2)]
    return (DTensor.from_local(inputs[0], mesh, placed, run_check=False), *inputs[1:])


def _heads_out(_module: nn.Module, outputs: Any, _mesh: DeviceMesh) -> torch.Tensor:
    local: torch.Tensor = outputs.to_local()
    return local


_STYLES: dict[str, type[ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "replicated_with_grad_allreduce": _OnHeads,
}
