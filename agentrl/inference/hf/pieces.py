"""Where the weights of a checkpoint are in a model of transformers, which may hold several of them in one tensor.

::

    model.layers.0.mlp.experts.2.up_proj.weight (32, 64)    the second half of gate_up_proj[2]
    model.layers.0.mlp.experts.gate_up_proj     (4, 64, 64)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from agentrl.errors import UserInputError
from agentrl.inference.embedded import weights
from agentrl.inference.embedded.weights import Target, plain_name


class Pieces:
    """Views of all weights of a model, by the names and in the shapes of its checkpoint.

    Args:
        lm: the transformers model. Its weights may get other values later, but keep their memory.
    """

    def __init__(self, lm: Any) -> None:
        from transformers.core_model_loading import revert_weight_conversion

        state: dict[str, Tensor] = lm.state_dict()
        with _NoCopies():
            pieces: dict[str, Tensor] = revert_weight_conversion(lm, dict(state))
        own = {tensor.untyped_storage()._cdata for tensor in state.values()}
        self._targets: dict[str, Target] = {}
        self._copies: set[str] = set()
        for name, piece in pieces.items():
            if piece.untyped_storage()._cdata in own:
                self._targets[plain_name(name)] = Target(piece)
            else:
                self._copies.add(name)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the given weights; others keep their values.

        Raises:
            UserInputError: a name or a shape that the checkpoint does not have, or a weight that transformers computes
                with. The old weights are kept.
        """
        if computed := sorted(self._copies & tensors.keys()):
            raise UserInputError(
                f"weight '{computed[0]}': the model holds it in another form, which only a whole checkpoint is "
                "brought into: use actor_rollout_ref.rollout.weight_sync=disk"
            )
        with torch.no_grad():
            weights.load_tensors(self._targets, tensors)


class _NoCopies(TorchFunctionMode):
    """In which `contiguous` gives the tensor itself, so that cut and transposed tensors remain views."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is Tensor.contiguous else func(*args, **(kwargs or {}))
