"""Muon (momentum orthogonalised by Newton-Schulz) for the matrices of a model, AdamW for the rest, one schedule."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import nn

from agentrl.config.sft import SFTOptimConfig

_NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NS_STEPS = 5


class Muon(torch.optim.Optimizer):
    """Muon after K. Jordan's description (kellerjordan.github.io/posts/muon), in the type of the gradients.

    `torch.optim.Muon` iterates in bfloat16, which processors without bfloat16 units emulate: measured at 15 times the
    time of float32 on one. Matrices of equal shape are orthogonalised together.

    Args:
        params: matrices only.
        lr: learning rate; a matrix with more rows than columns moves `sqrt(rows / columns)` times as far.
        momentum: decay of the momentum (Nesterov's form).
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})
        shapes = [tuple(p.shape) for group in self.param_groups for p in group["params"] if p.ndim != 2]
        if shapes:
            raise ValueError(f"Muon is for matrices, got parameters of shape {shapes[:3]}")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[tuple[nn.Parameter, torch.Tensor]]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    direction = self._direction(parameter, group["momentum"])
                    by_shape[tuple(direction.shape)].append((parameter, direction))
            for members in by_shape.values():
                updates = orthogonalize(torch.stack([direction for _, direction in members]))
                for (parameter, _), update in zip(members, updates, strict=True):
                    rows, columns = parameter.shape
                    update = update if rows <= columns else update.mT
                    parameter.add_(update, alpha=-group["lr"] * math.sqrt(max(1.0, rows / columns)))
        return loss

    def _direction(self, parameter: nn.Parameter, momentum: float) -> torch.Tensor:
        """Nesterov momentum of the gradient, lying: no more rows than columns."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer = state["momentum_buffer"].lerp_(parameter.grad, 1.0 - momentum)
        direction = parameter.grad.lerp(buffer, momentum)
        return direction if direction.shape[0] <= direction.shape[1] else direction.mT


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


def build_optimizers(model: nn.Module, config: SFTOptimConfig) -> list[torch.optim.Optimizer]:
    """The optimizers of a model, each with its peak learning rate as `base_lr` in its groups.

    Under Muon, the matrices inside the layers go to Muon; embeddings, the output head, norms and biases to AdamW.
    Weight decay applies to matrices under AdamW.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    outer = {id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    outer |= {id(p) for p in head.parameters()} if head is not None else set()
    inner = [p for _, p in named if p.ndim == 2 and id(p) not in outer] if config.name == "muon" else []
    taken = {id(p) for p in inner}
    rest = [p for _, p in named if id(p) not in taken]
    groups = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps)
    optimizers: list[torch.optim.Optimizer] = [adamw]
    if inner:
        optimizers.append(Muon(inner, lr=config.muon_lr, momentum=config.muon_momentum))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return optimizers
