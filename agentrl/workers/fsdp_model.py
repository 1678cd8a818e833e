"""One FSDP2 model on one rank: forward passes over micro-batches, optimizer steps, full weights.

The policy, the reference and the critic are all this class around another `TokenNet`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from agentrl.config.actor import FSDPConfig, OptimConfig
from agentrl.config.parallel_checks import model_problems
from agentrl.errors import ConfigError
from agentrl.workers.collectives import max_over_ranks
from agentrl.workers.loading import DTYPES
from agentrl.workers.lora import Added, adapted_layers, layer_names, own_state, plain_state
from agentrl.workers.mesh import make_mesh
from agentrl.workers.meta_start import MetaWeights
from agentrl.workers.micro_batches import MicroBatch, MicroBatches
from agentrl.workers.muon import make_optimizer
from agentrl.workers.residence import Residence
from agentrl.workers.token_nets import TokenNet

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimizer step: the gradient norm before clipping, and False if nothing changed (it is not finite, or 0)."""

    grad_norm: float
    taken: bool


def compute_dtype(config: FSDPConfig, device: torch.device) -> torch.dtype:
    """The data type of forward and backward passes."""
    if config.compute_dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" or config.model_dtype == "bfloat16" else torch.float32
    return DTYPES[config.compute_dtype]


def weight_dtype(config: FSDPConfig, *, learns: bool) -> torch.dtype:
    """The data type in which weights are kept: float32 if they learn.

    A bfloat16 number near 0.1 is 0.0005 from the next one: adding a step of 1e-6 to it changes nothing, however often.
    """
    return torch.float32 if learns else DTYPES[config.model_dtype]


def frozen_dtype(config: FSDPConfig, device: torch.device) -> torch.dtype:
    """The data type in which the weights of a model are kept that never learns, such as the reference.

    Passes in bfloat16 see weights that were rounded to bfloat16, whether that is done when they are loaded or each time
    when FSDP gathers them: they are loaded so, in half the memory. Beside LoRA adapters, frozen weights keep what
    `model_dtype` says, since a merged weight is rounded once.
    """
    kept, computed = DTYPES[config.model_dtype], compute_dtype(config, device)
    return computed if computed.itemsize < kept.itemsize else kept


class FSDPModel:
    """A sharded `TokenNet` with its optimizer.

    Every rank must make the same calls in the same order, even a rank without rows.

    Args:
        net: the module, on the CPU or the meta device, equal on all ranks, in its `weight_dtype`; what is frozen in it
            (the weights beside LoRA adapters) stays frozen.
        device: where it runs. The default process group must exist.
        config: sharding and precision.
        optim: None for a frozen model.
        grad_clip: largest gradient norm.
        weights: what fills a net on the meta device once it is sharded; None: it has its weights.
    """

    def __init__(
        self,
        net: TokenNet,
        device: torch.device,
        config: FSDPConfig,
        optim: OptimConfig | None = None,
        grad_clip: float = 1.0,
        weights: MetaWeights | None = None,
    ) -> None:
        self.net = net
        self.steps_begun = 0
        """Optimizer steps that may have changed weights."""
        self.device = device
        self.adapted = any(True for _ in adapted_layers(net))
        """Only LoRA adapters learn, and what stands beside the model, such as a value head."""
        net.train(optim is not None)
        if optim is None:
            net.requires_grad_(False)
        if config.copies > 1 and (problems := list(model_problems("fsdp_config", config, net.backbone.config))):
            raise ConfigError(problems)
        mesh = make_mesh(device, config)
        self.copies = mesh.copies
        """How many neighbouring ranks get the same rows."""
        net.sequence = mesh.sequence
        if mesh.tp is not None:
            net.cut(mesh.tp)
        _shard(net, device, config, mesh.fsdp)
        if weights is not None:
            offloaded = config.offload_policy and device.type == "cuda"
            weights.fill(net, torch.device("cpu") if offloaded else device, device)
        leaves = [getattr(config, key) and _gpu_only(key, device) for key in ("param_offload", "optimizer_offload")]
        parameters, moments = (each and not config.offload_policy for each in leaves)
        self.optimizer = None if optim is None else make_optimizer(net, optim, grad_clip, on_host=moments)
        self.residence = Residence(net, self.optimizer, device, parameters=parameters, moments=moments)
        """Where parameters and moments are between two uses."""
        with self.residence.in_use():  # they leave the device with its end
            pass

    @torch.no_grad()
    def probe(self, look: Callable[[TokenNet], T]) -> T:
        """Look at the net, which may run parts of itself, in a forward pass without a gradient. A collective call."""
        net, training = self.net, self.net.training
        net.eval()
        net.forward = lambda: look(net)  # type: ignore[method-assign,misc,assignment]
        try:
            with self.residence.in_use():
                return cast(T, net())
        finally:
            del net.forward
            net.train(training)
            _reshard(self.net)

    @torch.no_grad()
    def infer(self, micros: MicroBatches, *args: Any) -> Iterator[tuple[MicroBatch, Any]]:
        """Run the net on each micro-batch without a gradient. `args` are passed to every forward pass."""
        spare = self._placeholders(micros)
        with self.residence.in_use():
            for micro in micros.batches:
                yield micro, self.net(micro, *args)
            for micro in spare:
                self.net(micro, *args)
            _reshard(self.net)

    def passes(self, micros: MicroBatches, *args: Any) -> Iterator[tuple[MicroBatch, Any]]:
        """Run the net on each micro-batch with a gradient: call `backward` on each loss before the next one is taken.

        Gradients are summed over all micro-batches of all ranks, so the losses must add up to the mini-batch's loss.
        `step` then applies them.

        Args:
            micros: this rank's part of a mini-batch; may be empty.
            *args: passed to every forward pass.
        """
        spare = self._placeholders(micros)
        with self.residence.in_use():
            for micro in micros.batches:
                yield micro, self.net(micro, *args)
            for micro in spare:
                torch.autograd.backward(_first_tensor(self.net(micro, *args)).sum() * 0.0)

    def step(self, lr: float) -> StepReport:
        """Clip and apply the gradients of all ranks, unless they are not finite, and forget them."""
        if self.optimizer is None:
            raise RuntimeError("a frozen model cannot be updated")
        self.steps_begun += 1
        with self.residence.in_use():
            self.residence.bring_moments()
            norm, taken = self.optimizer.step(lr)
        if not taken:
            logger.warning("the gradient norm is %s: optimizer step skipped", norm)
        return StepReport(norm, taken)

    def skip_step(self) -> StepReport:
        """Forget the gradients of a mini-batch that has nothing to learn from."""
        self.net.zero_grad()
        return StepReport(0.0, False)

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint keeps: live parameters and persistent buffers by name, each tied parameter once.

        Of a model with adapters only what learns: its other weights are those of the model folder.
        """
        _reshard(self.net)
        state = _named_state(self.net)
        return own_state(state) if self.adapted else state

    def full_weights(
        self, module: nn.Module | None = None, dtype: torch.dtype | None = None
    ) -> dict[str, torch.Tensor]:
        """Whole tensors on the CPU of rank 0, nothing on other ranks. A collective call.

        With one rank on a CPU they are the live parameters, not copies. Adapters are merged into their weights.

        Args:
            module: a part of the net, whose own names are used; None: the net.
            dtype: what floating tensors are cast to; None: as they are.
        """
        return {name: tensor for part in self.weight_parts(module, dtype) for name, tensor in part.items()}

    def weight_parts(
        self, module: nn.Module | None = None, dtype: torch.dtype | None = None
    ) -> Iterator[dict[str, torch.Tensor]]:
        """What `full_weights` gives: at once, or of a model with adapters one decoder layer after the other.

        Merged weights are new tensors: a dictionary of all of them would be a second model beside the live one.
        """
        with self.residence.in_use():
            _reshard(self.net)
            whole = module or self.net
            state = _named_state(whole)
            for names in layer_names(list(state)) if self.adapted else [list(state)]:
                part: dict[str, torch.Tensor] = {}
                for name, tensor, added in plain_state(whole, {name: state[name] for name in names}):
                    full = _gathered(tensor) if added is None else _merged(tensor, added)
                    if dist.get_rank() == 0:
                        cast_to = (dtype or tensor.dtype) if full.is_floating_point() else None
                        part[name] = full.detach().to(device="cpu", dtype=cast_to).contiguous()
                yield part

    def gathered_own(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """Whole tensors of what learns in a part of a net with adapters, on the CPU. A collective call."""
        _reshard(self.net)
        with self.residence.in_use():
            own = own_state(_named_state(module))
            return {name: _gathered(tensor).detach().to("cpu") for name, tensor in own.items()}

    def _placeholders(self, micros: MicroBatches) -> list[MicroBatch]:
        """As many passes of nothing as the busiest rank has micro-batches more.

        FSDP gathers parameters in every forward pass and reduces gradients in every backward pass, and all ranks must
        take part: with 3 and 5 micro-batches, the first rank runs 2 placeholders. Asked before the first pass: while
        one rank asked and another still ran a pass, each would wait for the other.
        """
        own = len(micros.batches)
        return [micros.placeholder(self.device)] * (int(max_over_ranks([float(own)])[0]) - own)


def _shard(net: TokenNet, device: torch.device, config: FSDPConfig, mesh: DeviceMesh) -> None:
    """FSDP2 over a mesh: one group per decoder layer, one for the rest.

    Gradients are summed, not averaged, and in float32. Weights are cast to the compute type when they are gathered:
    frozen ones that are kept in bfloat16, and the float32 ones of adapters beside them.
    """
    dtype = compute_dtype(config, device)
    policy = MixedPrecisionPolicy()
    if any(parameter.dtype != dtype for parameter in net.parameters()):
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    offload = config.offload_policy and _gpu_only("offload_policy", device)
    offload_policy = CPUOffloadPolicy() if offload else OffloadPolicy()
    for block in net.blocks():
        fully_shard(
            block,
            mesh=mesh,
            reshard_after_forward=config.reshard_after_forward,
            mp_policy=policy,
            offload_policy=offload_policy,
        )
    fully_shard(net, mesh=mesh, mp_policy=policy, offload_policy=offload_policy)
    if dist.get_world_size() > 1:
        for module in net.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)


def _gpu_only(key: str, device: torch.device) -> bool:
    if device.type == "cuda":
        return True
    logger.warning("fsdp_config.%s has no effect on a CPU: everything is in host memory already", key)
    return False


def _reshard(module: nn.Module) -> None:
    """Free what a forward pass without a backward pass left gathered; afterwards parameters are shards again."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def _named_state(module: nn.Module) -> dict[str, torch.Tensor]:
    parameters: dict[str, torch.Tensor] = dict(module.named_parameters())
    aliases = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    buffers = {name: tensor for name, tensor in module.state_dict().items() if name not in aliases}
    return {**parameters, **buffers}


def _gathered(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, DTensor):
        return tensor
    # One rank holds everything; asking DTensor to gather it would take longer than writing it to disk.
    return tensor.to_local() if dist.get_world_size() == 1 else tensor.full_tensor()


@torch.no_grad()
def _merged(weight: torch.Tensor, added: Added) -> torch.Tensor:
    """A whole weight with its adapter, in float32 so that it is rounded once. A collective call."""
    whole, a, b = (_gathered(tensor) for tensor in (weight, added.a, added.b))
    return added.to(whole, a, b) if dist.get_rank() == 0 else whole


def _first_tensor(outputs: Any) -> torch.Tensor:
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    assert isinstance(first, torch.Tensor)
    return first
