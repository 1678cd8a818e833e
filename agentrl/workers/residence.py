"""Where the tensors of a model are: on the GPU while they are used, else in host memory, as `fsdp_config` asks.

On one GPU with `param_offload` and `optimizer_offload`, over a step whose update has two mini-batches::

                  log-probs   update: forward and backward, step, forward and backward, step   rollout
    parameters    GPU         GPU                           GPU   GPU                   GPU    host
    moments       host        host                          GPU   GPU                   GPU    host

Moments come with the first optimizer step, so that the log-probs and the first backward pass have their room.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from agentrl.workers.optim import AdamW


class Residence:
    """Brings a model's tensors to its device, and back to host memory.

    On a CPU everything is in host memory already: it only counts.

    Args:
        net: the sharded module. Its parameters (with gradients) and buffers move.
        optimizer: its moments move too; None: a frozen model.
        device: where the model computes.
        parameters: whether parameters leave the device between uses.
        moments: whether the optimizer's moments do.
    """

    def __init__(
        self, net: nn.Module, optimizer: AdamW | None, device: torch.device, *, parameters: bool, moments: bool
    ) -> None:
        self._net, self._optimizer, self._device = net, optimizer, device
        self._parameters, self._moments = parameters, moments and optimizer is not None
        self._users = 0
        self._kept = False
        self._here = True
        self.trips = 0
        """How often the model came to its device."""

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """With the parameters on the device; afterwards all leave it, unless somebody else still uses them."""
        self._users += 1
        try:
            self._come()
            yield
        finally:
            self._users -= 1
            self._leave()

    def keep(self) -> None:
        """From the next use on parameters stay on the device until `yield_device`, for several uses."""
        self._kept = True

    def yield_device(self) -> None:
        """Leave the device as far as the configuration asks, for others who share it."""
        self._kept = False
        self._leave()
        self._free()

    def bring_moments(self) -> None:
        """Bring the moments to their parameters: a step follows."""
        if self._moments and self._optimizer is not None:
            self._optimizer.state_to_parameters()

    def _come(self) -> None:
        if self._here:
            return
        self._here = True
        self.trips += 1
        if self._parameters:
            self._net.cuda(self._device)

    def _leave(self) -> None:
        if self._users:
            return
        if self._moments and self._optimizer is not None:
            self._optimizer.state_to_host()
        if self._here and not self._kept:
            self._here = False
            if self._parameters:
                self._net.cpu()
        if self._parameters or self._moments or self._kept:
            self._free()

    def _free(self) -> None:
        """Roles and engines on one GPU are processes of their own: what torch keeps in one, no other can have."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
