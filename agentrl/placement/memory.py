"""How much memory one model of a run needs on one rank: weights, gradients, optimizer, activations, logits.

Weights that learn are float32, as are their gradients and both of Adam's moments: 16 bytes a weight, sharded over the
ranks. Beside them FSDP gathers one layer after the other in the data type of the computation. Qwen2.5-7B on 8 GPUs::

    weights, gradients, optimizer   7.62e9 * 16 / 8              14.2 GiB on each
    gathered                        embedding and head, 2 layers   2.9 GiB
    activations of 16,384 tokens    28 layers * 2 * 3584 bytes     3.1 GiB, and one layer's 5.8 with checkpointing
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.placement.model_shape import ModelShape

LOGITS_AT_A_TIME = 2**26
"""Most logits of a chunk (`workers/token_stats.py`); two float32 tensors of this size exist at once."""
ADAM_BYTES, GRADIENT_BYTES, MASTER_BYTES = 8, 4, 4
"""Per weight that learns."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How a model lies on the ranks of its pool.

    Attributes:
        shard: ranks that each parameter is sharded over (shard x sp of the mesh).
        sp: ranks that share the tokens of a row.
        tp: ranks that share the matrices of a layer, but not experts.
        groups: groups of ranks that get rows of their own.
        reshard: gathered layers are freed behind the forward pass.
    """

    shard: int = 1
    sp: int = 1
    tp: int = 1
    groups: int = 1
    reshard: bool = True

    def share(self, shape: ModelShape) -> float:
        """The part of the model that one rank holds."""
        whole = shape.all_experts / shape.parameters
        return (whole + (1 - whole) / self.tp) / self.shard


@dataclass(frozen=True, slots=True)
class Kept:
    """What a model keeps on a rank between passes, in bytes."""

    weights: float
    gradients: float = 0.0
    optimizer: float = 0.0


def kept_by(shape: ModelShape, spread: Spread, *, learns: bool, frozen_bytes: int, adapter: int = 0) -> Kept:
    """What a rank holds of a model.

    Args:
        shape: of the model.
        spread: over the ranks.
        learns: the actor and the critic do.
        frozen_bytes: of a weight that does not learn.
        adapter: weights of a LoRA adapter, which alone learn then; 0: there is none.
    """
    own = shape.parameters * spread.share(shape)
    if not learns:
        return Kept(own * frozen_bytes)
    if adapter:
        mine = adapter / spread.shard
        return Kept(own * frozen_bytes + mine * MASTER_BYTES, mine * GRADIENT_BYTES, mine * ADAM_BYTES)
    return Kept(own * MASTER_BYTES, own * GRADIENT_BYTES, own * ADAM_BYTES)


def adapter_weights(shape: ModelShape, rank: int) -> int:
    """Weights of a LoRA adapter beside every matrix of every layer; experts get none."""
    width = shape.intermediate if not shape.num_experts else shape.shared_width
    ends = [(shape.hidden, shape.q_width)] * 2 + [(shape.hidden, shape.kv_width)] * 2 + [(shape.hidden, width)] * 3
    return shape.layers * rank * sum(one + other for one, other in ends if other)


def saved_by_layer(shape: ModelShape, bytes_each: int, tp: int = 1) -> float:
    """Bytes per token that autograd keeps of one layer.

    Norms keep their input in float32, the scaled input and their output; attention its queries, keys, values and
    output; an MLP four tensors of its width. In float32 that is (6 H + 2 q + 2 kv + 4 I) * 4 bytes.
    """
    norms = 2 * (4 + 2 * bytes_each) * shape.hidden
    attention = (2 * shape.q_width + 2 * shape.kv_width) / tp * bytes_each
    if shape.qk_norm:
        attention += (4 + bytes_each) * (shape.q_width + shape.kv_width) / tp
    if not shape.num_experts:
        return norms + attention + 4 * shape.intermediate / tp * bytes_each
    mixture = shape.experts_per_token * (3 * shape.hidden + 5 * shape.expert_width)
    return norms + attention + (mixture + 4 * shape.shared_width) * bytes_each


def passing(shape: ModelShape, bytes_each: int, tp: int = 1) -> float:
    """Bytes per token that exist for a moment in one layer: gradients on the way back, or a forward pass alone."""
    width = shape.intermediate / tp if not shape.num_experts else 2 * shape.experts_per_token * shape.expert_width
    return (3 * width + 3 * shape.hidden) * bytes_each


def activations(shape: ModelShape, tokens: float, bytes_each: int, *, checkpointing: bool, tp: int = 1) -> float:
    """Bytes of activations at the start of the backward pass, one layer's passing ones included.

    Args:
        shape: of the model.
        tokens: of a micro-batch on this rank.
        bytes_each: of a number of the computation.
        checkpointing: only the input of each layer is kept, and one layer at a time computed again.
        tp: ranks that share a layer's matrices.
    """
    layer = saved_by_layer(shape, bytes_each, tp)
    kept = shape.layers * shape.hidden * bytes_each + layer if checkpointing else shape.layers * layer
    return tokens * (kept + passing(shape, bytes_each, tp))


def logits(shape: ModelShape, positions: float, *, gradient: bool) -> float:
    """Bytes of a chunk of logits: two float32 tensors, and with a gradient a third if the only chunk is kept."""
    every = positions * shape.vocab
    one = min(every, float(LOGITS_AT_A_TIME)) * 4
    return one * (3 if gradient and every <= LOGITS_AT_A_TIME else 2)


def gathered(shape: ModelShape, spread: Spread, bytes_each: int) -> float:
    """Bytes of gathered weights: embedding and head all the time, and two layers; or all of them, if they are kept."""
    layer = (shape.experts + (shape.layer - shape.experts) / spread.tp) * bytes_each
    layers = 2 if spread.reshard else shape.layers
    return shape.ends / spread.tp * bytes_each + min(layers, shape.layers) * layer


def gradients_on_the_way(shape: ModelShape, spread: Spread, bytes_each: int) -> float:
    """Bytes of gradients that are not sharded yet: of the head, and of a layer with its float32 copy to be added up."""
    layer = shape.experts + (shape.layer - shape.experts) / spread.tp
    return shape.vocab * shape.hidden / spread.tp * bytes_each + layer * (bytes_each + 4)


def gradients_at_the_end(shape: ModelShape, spread: Spread, bytes_each: int) -> float:
    """Bytes of gradients of embedding and head at the end of the backward pass, with their float32 copy."""
    return shape.ends / spread.tp * (bytes_each + 4)
