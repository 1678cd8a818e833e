"""Muon (momentum orthogonalised by Newton-Schulz) for the matrices of a model, AdamW for the rest, one schedule.

After K. Jordan's description (kellerjordan.github.io/posts/muon), in the type of the gradients. `torch.optim.Muon`
iterates in bfloat16, which processors without bfloat16 units emulate: measured at 15 times the time of float32 on one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from agentrl.config.actor import OptimConfig
from agentrl.config.sft import SFTOptimConfig
from agentrl.workers.optim import AdamW

BUFFER = "momentum_buffer"
_NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NS_STEPS = 5


def make_optimizer(net: nn.Module, config: OptimConfig, grad_clip: float, *, on_host: bool = False) -> AdamW:
    """The optimizer that the configuration names, over the parameters of a net that is sharded already.

    Args:
        net: the module.
        config: hyper-parameters.
        grad_clip: largest gradient norm.
        on_host: its state begins in host memory.
    """
    if isinstance(config, SFTOptimConfig) and config.name == "muon":
        return MuonAdamW(net, config, grad_clip, on_host=on_host)
    return AdamW(net.named_parameters(), config, grad_clip, on_host=on_host)


class MuonAdamW(AdamW):
    """Muon for the matrices inside the layers; AdamW for embeddings, the output head, norms and biases.

    Every rank orthogonalises the whole matrices, which it gathers, and takes its part of the result.

    Args:
        net: the module, sharded or not.
        config: hyper-parameters; `lr` is AdamW's peak, `muon_lr` Muon's, and both follow one schedule.
        grad_clip: largest gradient norm.
        on_host: as in `AdamW`.
    """

    def __init__(self, net: nn.Module, config: SFTOptimConfig, grad_clip: float, *, on_host: bool = False) -> None:
        self._config = config
        self.matrices = inner_matrices(net)
        super().__init__(net.named_parameters(), config, grad_clip, on_host=on_host)
        for parameter in self.matrices:
            self.state[parameter] = {BUFFER: self._zeros(parameter)}

    def _own(self) -> list[nn.Parameter]:
        taken = set(map(id, self.matrices))
        return [parameter for parameter in self.parameters.values() if id(parameter) not in taken]

    def _apply(self, lr: float) -> None:
        super()._apply(lr)
        buffers = {parameter: self.state[parameter][BUFFER] for parameter in self.matrices}
        muon_step(buffers, lr / self._config.lr * self._config.muon_lr, self._config.muon_momentum)


def inner_matrices(net: nn.Module) -> list[nn.Parameter]:
    """The matrices that learn, without those of embeddings and of the output head."""
    outer = {id(p) for module in net.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    for module in net.modules():
        head = getattr(module, "get_output_embeddings", lambda: None)()
        outer |= {id(p) for p in head.parameters()} if head is not None else set()
    return [p for p in net.parameters() if p.requires_grad and p.ndim == 2 and id(p) not in outer]


@torch.no_grad()
def muon_step(buffers: Mapping[nn.Parameter, torch.Tensor], lr: float, momentum: float) -> None:
    """One update of every matrix that has a gradient; those of equal shape are orthogonalised together.

    Args:
        buffers: the momentum of each matrix, updated too.
        lr: learning rate; a matrix with more rows than columns moves `sqrt(rows / columns)` times as far.
        momentum: decay of the momentum (Nesterov's form).
    """
    by_shape: dict[tuple[int, ...], list[tuple[nn.Parameter, torch.Tensor]]] = defaultdict(list)
    for parameter, buffer in buffers.items():
        if parameter.grad is not None:
            direction = _lying(_whole(_direction(parameter.grad, buffer, momentum)))
            by_shape[tuple(direction.shape)].append((parameter, direction))
    for members in by_shape.values():
        updates = orthogonalize(torch.stack([direction for _, direction in members]))
        for (parameter, _), update in zip(members, updates, strict=True):
            rows, columns = parameter.shape
            update = update if rows <= columns else update.mT
            _local(parameter).add_(_part(update, parameter), alpha=-lr * math.sqrt(max(1.0, rows / columns)))


def orthogonalize(matrices: torch.Tensor) -> torch.Tensor:
    """Replace the singular values of (N, rows, columns) matrices, rows <= columns, by numbers near 1.

    Five steps of the quintic Newton-Schulz iteration `X <- aX + (bA + cA^2)X` with `A = X X^T`; its coefficients trade
    exactness (values land in about 0.7 to 1.2) for speed.
    """
    a, b, c = _NS_COEFFICIENTS
    x: torch.Tensor = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_NS_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _direction(gradient: torch.Tensor, buffer: torch.Tensor, momentum: float) -> torch.Tensor:
    """Nesterov momentum of the gradient, sharded as it is."""
    _local(buffer).lerp_(_local(gradient), 1.0 - momentum)
    direction = _local(gradient).lerp(_local(buffer), momentum)
    if not isinstance(gradient, DTensor) or gradient.device_mesh.size() == 1:
        return direction
    mesh, placements = gradient.device_mesh, gradient.placements
    return DTensor.from_local(direction, mesh, placements, shape=gradient.shape, stride=gradient.stride())


def _lying(matrix: torch.Tensor) -> torch.Tensor:
    """No more rows than columns."""
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _part(update: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """This rank's part of a whole matrix."""
    if not isinstance(parameter, DTensor) or parameter.device_mesh.size() == 1:
        return update
    mesh = parameter.device_mesh
    whole = DTensor.from_local(update.contiguous(), mesh, [Replicate()] * mesh.ndim, run_check=False)
    return whole.redistribute(placements=parameter.placements).to_local()
