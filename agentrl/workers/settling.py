"""What is found out about a model once it is sharded and has its weights, before its first rows."""

from __future__ import annotations

from typing import Any

from agentrl.workers.fsdp_model import FSDPModel
from agentrl.workers.loading import require_plain_head, with_attention
from agentrl.workers.token_nets import RowShape, TokenNet, row_shape


def settle(model: FSDPModel, transformer: Any, attention: str, head_of: str | None = None) -> RowShape:
    """Check the head, find out in which shape rows are read, and switch to the attention of training.

    The looks run through torch's own attention: kernels for GPUs do not run everywhere. A collective call.

    Args:
        model: sharded, with its weights.
        transformer: the transformers model in it.
        attention: see `choose_attention`; not for a model that sees pictures.
        head_of: path of a model with a language-model head, which is checked.

    Raises:
        ConfigError: the model changes its logits after the head.
    """

    def look(net: TokenNet) -> RowShape:
        if head_of is not None:
            require_plain_head(transformer, head_of)
        return row_shape(net, attention)

    shape = model.probe(look)
    if model.net.pictures is None:
        with_attention(transformer, attention)
    return shape
