"""AdamW with decay of matrices only, its learning-rate schedule, and steps that skip gradients that are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from agentrl.config.actor import OptimConfig


def learning_rate(config: OptimConfig, updates_done: int, total_updates: int) -> float:
    """The learning rate of the next update.

    Warm-up is linear and reaches the peak with its last update. Then the rate stays (`constant`) or falls (`linear`,
    `cosine`), to `min_lr_ratio * lr` after the last update.

    Args:
        config: peak, warm-up and style.
        updates_done: updates so far (one per training step, regardless of its mini-batches).
        total_updates: of the whole run; `config.total_training_steps` replaces it when given.
    """
    total = config.total_training_steps if config.total_training_steps > 0 else total_updates
    warmup = config.lr_warmup_steps if config.lr_warmup_steps >= 0 else int(config.lr_warmup_steps_ratio * total)
    if updates_done < warmup:
        return config.lr * (updates_done + 1) / warmup
    if config.warmup_style == "constant":
        return config.lr
    progress = min(1.0, (updates_done - warmup) / max(1, total - warmup))
    falling = 1.0 - progress if config.warmup_style == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * falling)


class AdamW:
    """AdamW over sharded parameters; a subclass may give some of them to another rule.

    State exists from the start, so that a checkpoint of a model that has not learned yet restores like any other.

    Args:
        parameters: (name, parameter) pairs, sharded or not.
        config: hyper-parameters.
        grad_clip: largest gradient norm.
        on_host: the moments begin in host memory, and come with `state_to_parameters`.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        config: OptimConfig,
        grad_clip: float,
        *,
        on_host: bool = False,
    ) -> None:
        self.parameters = {name: parameter for name, parameter in parameters if parameter.requires_grad}
        self.grad_clip, self._on_host = grad_clip, on_host
        own = self._own()
        self.optimizer = torch.optim.AdamW(
            [
                {"params": part, "weight_decay": weight_decay}
                for parameters, weight_decay in (
                    ([p for p in own if p.ndim >= 2], config.weight_decay),
                    ([p for p in own if p.ndim < 2], 0.0),
                )
                for part in by_mesh(parameters)
            ],
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            fused=True,
        )
        self.state = self.optimizer.state
        """The moments of each parameter: the live tensors, by name."""
        for parameter in own:
            self.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": self._zeros(parameter),
                "exp_avg_sq": self._zeros(parameter),
            }

    def step(self, lr: float) -> tuple[float, bool]:
        """Clip, apply and clear the gradients.

        Returns:
            The norm of the gradient before clipping, over all ranks, and whether the step was taken: it is skipped if
            the norm is not finite.
        """
        parts = by_mesh([p for p in self.parameters.values() if p.grad is not None])
        norms = [_full(torch.nn.utils.get_total_norm([p.grad for p in part if p.grad is not None])) for part in parts]
        norm = torch.stack(norms).norm() if len(norms) > 1 else norms[0] if norms else torch.zeros(())
        value = float(norm)  # the one number of a step that the GPU is waited for
        finite = math.isfinite(value)
        if finite:
            for part in parts:
                torch.nn.utils.clip_grads_with_norm_(part, self.grad_clip, norm)
            self._apply(lr)
        for parameter in self.parameters.values():
            parameter.grad = None
        return value, finite

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Optimizer state by `exp_avg.NAME`, `exp_avg_sq.NAME`, `step.NAME`: the live tensors, not copies."""
        return {
            f"{key}.{name}": value
            for name, parameter in self.parameters.items()
            for key, value in self.state[parameter].items()
        }

    def state_to_parameters(self) -> None:
        """Move the moments to where their parameters are, which is the CPU where these are offloaded too."""
        self._move(lambda parameter: parameter.device)

    def state_to_host(self) -> None:
        """Move the moments (not the step counts) to host memory: optimizer offload."""
        self._move(lambda parameter: torch.device("cpu"))

    def _zeros(self, parameter: nn.Parameter) -> torch.Tensor:
        """A moment before the first step; beside the weights and an engine, all of them may not fit on the GPU."""
        zeros = torch.zeros_like(parameter)
        return zeros.cpu() if self._on_host else zeros

    def _own(self) -> list[nn.Parameter]:
        """The parameters that AdamW updates."""
        return list(self.parameters.values())

    def _apply(self, lr: float) -> None:
        """Take the step that the clipped gradients ask for."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()

    def _move(self, device_of: Callable[[torch.Tensor], torch.device]) -> None:
        for parameter in self.parameters.values():
            state = self.state[parameter]
            for key in state.keys() - {"step"}:
                # Not `non_blocking`: a checkpoint may read on the host what is still on its way there.
                state[key] = state[key].to(device_of(parameter))


def by_mesh(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters in lists of one mesh each: torch takes no list of tensors on several.

    With tensor parallelism the matrices of layers lie on (shard, tp), norms of hidden states on (shard) alone.
    """
    parts: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        parts.setdefault(mesh, []).append(parameter)
    return list(parts.values())


def _full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
