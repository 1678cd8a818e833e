"""A decoder for Llama, Qwen2 and Qwen3 over a slot KV cache: one call computes the tokens of many requests.

Tokens of all requests are packed along one axis, so every matrix product serves all of them. Only attention tells them
apart: rows that add one or a few tokens read the cache slots in place; rows that add more (prefill) are padded to a
block. Shapes in names: N tokens of the step, R rows, T tokens per padded row, L cached tokens, H query heads, K key
heads, D features of a head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from agentrl.inference.embedded import weights
from agentrl.inference.embedded.kv_cache import KVCache
from agentrl.inference.embedded.model_spec import ModelSpec
from agentrl.inference.embedded.native_ops import best_ops
from agentrl.inference.embedded.ops import DirectRows, TorchOps, turn_and_store
from agentrl.inference.embedded.picture_rows import PictureRows
from agentrl.inference.embedded.rope import pairing, rotation_table
from agentrl.inference.embedded.vision import VisionTower
from agentrl.inference.embedded.weights import Target


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """Prompt tokens of some slots, of about the same number each."""

    slots: Tensor
    """`(R,)`."""
    index: Tensor
    """`(tokens,)` place of each token in the padded block `(R, T)`, flattened."""
    width: int
    """T."""
    bias: Tensor
    """`(R, 1, T, L)`: 0 where a token may look, -inf elsewhere."""


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass: ids, positions and slots of all tokens `(N,)`, direct rows first."""

    ids: Tensor
    positions: Tensor
    slots: Tensor
    outputs: Tensor | None
    """Indices of the tokens whose logits are wanted; None: all."""
    direct: DirectRows | None = None
    prefill: tuple[PrefillRows, ...] = ()
    turns: Tensor | None = None
    """Complex `(N, D / 2)` rotation of each token; None: that of its position."""
    pictures: PictureRows | None = None
    """What the decoder reads in the place of placeholders."""


@dataclass(slots=True)
class Layer:
    """Fused weights of one layer."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    """`(H + K, D)`: norm weights of queries and keys, per head."""
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(slots=True)
class Decoder:
    """The model: fused weights, rotations, and the forward pass."""

    spec: ModelSpec
    dtype: torch.dtype
    device: torch.device
    embed: Tensor
    norm: Tensor
    head: Tensor
    layers: list[Layer]
    rotations: Tensor
    ops: TorchOps
    vision: VisionTower | None = None
    targets: dict[str, Target] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        spec: ModelSpec,
        folder: str | Path,
        context: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        native: bool = True,
    ) -> Decoder:
        """Build the model and read its weights from a Hugging Face folder."""
        ops = best_ops(spec, dtype, device) if native else TorchOps()
        model = cls._empty(spec, context, dtype, device, ops)
        model.targets = _targets(model)
        if spec.pictures is not None:
            model.vision = VisionTower(spec, dtype, device)
            model.targets |= model.vision.targets
        model.load_folder(folder)
        return model

    @classmethod
    def _empty(cls, spec: ModelSpec, context: int, dtype: torch.dtype, device: torch.device, ops: TorchOps) -> Decoder:
        def new(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        def layer() -> Layer:
            hidden, ff = spec.hidden_size, spec.intermediate_size
            heads, kv = spec.num_heads, spec.num_kv_heads
            qkv_rows = (heads + 2 * kv) * spec.head_dim
            return Layer(
                input_norm=new(hidden),
                qkv=new(qkv_rows, hidden),
                qkv_bias=new(qkv_rows) if spec.qkv_bias else None,
                qk_norm=new(heads + kv, spec.head_dim) if spec.qk_norm else None,
                out=new(hidden, heads * spec.head_dim),
                out_bias=new(hidden) if spec.o_bias else None,
                mlp_norm=new(hidden),
                gate_up=new(2 * ff, hidden),
                gate_up_bias=new(2 * ff) if spec.mlp_bias else None,
                down=new(hidden, ff),
                down_bias=new(hidden) if spec.mlp_bias else None,
            )

        embed = new(spec.vocab_size, spec.hidden_size)
        head = embed if spec.tie_word_embeddings else new(spec.vocab_size, spec.hidden_size)
        rotations = rotation_table(spec, context, device)
        layers = [layer() for _ in range(spec.num_layers)]
        return cls(spec, dtype, device, embed, new(spec.hidden_size), head, layers, rotations, ops)

    def load_folder(self, folder: str | Path) -> None:
        """Replace all weights; see `weights.load_folder`."""
        weights.load_folder(self.targets, folder, ignore=self._ignored())
        self._forget_pictures()

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Replace the given weights; see `weights.load_tensors`."""
        weights.load_tensors(self.targets, tensors, ignore=self._ignored())
        self._forget_pictures()

    def tensors(self) -> list[Tensor]:
        """All weights, as parts of the fused tensors."""
        return [target.view for target in self.targets.values()]

    def _forget_pictures(self) -> None:
        if self.vision is not None:
            self.vision.forget()

    def _ignored(self) -> tuple[str, ...]:
        return ("lm_head.weight",) if self.spec.tie_word_embeddings else ()

    def forward(self, step: Step, cache: KVCache) -> Tensor:
        """Compute a step, store its keys and values, return float32 logits `(outputs, vocab)`."""
        ops, eps = self.ops, self.spec.rms_norm_eps
        x = F.embedding(step.ids, self.embed)
        shown = step.pictures
        if shown is not None:
            x[shown.index] = shown.states
        for number, layer in enumerate(self.layers):
            attended = self._attention(layer, ops.rms_norm(x, layer.input_norm, eps), step, cache, number)
            x = torch.addmm(x, attended, layer.out.t())
            if layer.out_bias is not None:
                x += layer.out_bias
            gate_up = F.linear(ops.rms_norm(x, layer.mlp_norm, eps), layer.gate_up, layer.gate_up_bias)
            x = torch.addmm(x, ops.swiglu(gate_up), layer.down.t())
            if layer.down_bias is not None:
                x += layer.down_bias
            if shown is not None and number < len(shown.deeper):
                x[shown.index] += shown.deeper[number]
        if step.outputs is not None:
            x = x[step.outputs]
        return F.linear(ops.rms_norm(x, self.norm, eps), self.head).float()

    def _attention(self, layer: Layer, x: Tensor, step: Step, cache: KVCache, number: int) -> Tensor:
        # The step's own keys and values are written to the cache before attention reads it: a token sees itself and, in
        # a prefill, the tokens before it in the same step. Results are in the order of the step's tokens: direct first.
        s, ops = self.spec, self.ops
        rotated = s.num_heads + s.num_kv_heads
        qkv = F.linear(x, layer.qkv, layer.qkv_bias).view(-1, rotated + s.num_kv_heads, s.head_dim)
        if layer.qk_norm is not None:
            qk = qkv[:, :rotated]
            qk.copy_(F.rms_norm(qk, (s.head_dim,), None, s.rms_norm_eps) * layer.qk_norm)
        keys, values = cache.data[number, 0], cache.data[number, 1]
        if step.turns is None:
            ops.rotate_and_store(qkv, self.rotations, step.slots, step.positions, keys, values)
        else:
            turn_and_store(qkv, step.turns, step.slots, step.positions, keys, values)
        if step.direct is None:
            done, parts = 0, []
        else:
            done = step.direct.count
            parts = [ops.attention(qkv, keys, values, step.slots, step.positions, step.direct)]
        for rows in step.prefill:
            end = done + rows.index.shape[0]
            parts.append(_prefill_attention(qkv[done:end, : s.num_heads], keys, values, rows))
            done = end
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _prefill_attention(q: Tensor, keys: Tensor, values: Tensor, rows: PrefillRows) -> Tensor:
    """Attention of several tokens per slot `(tokens, H, D)` -> `(tokens, H * D)`."""
    count, length = rows.slots.shape[0], rows.bias.shape[3]
    block = q.new_zeros((count * rows.width, *q.shape[1:])).index_copy_(0, rows.index, q)
    block = block.view(count, rows.width, *q.shape[1:]).transpose(1, 2)
    k, v = keys[rows.slots, :, :length], values[rows.slots, :, :length]
    out = F.scaled_dot_product_attention(block, k, v, attn_mask=rows.bias, scale=1.0, enable_gqa=True)
    return out.transpose(1, 2).reshape(count * rows.width, -1)[rows.index]


def _targets(model: Decoder) -> dict[str, Target]:
    """Map Hugging Face names to views of the fused tensors.

    The attention scale is folded into the query projection, or into the query norm if the model has one.
    """
    s = model.spec
    targets = {"model.embed_tokens.weight": Target(model.embed), "model.norm.weight": Target(model.norm)}
    if not s.tie_word_embeddings:
        targets["lm_head.weight"] = Target(model.head)
    pairs, scale, width = pairing(s.head_dim), s.head_dim**-0.5, s.head_dim

    def head_order(heads: int) -> Tensor:
        return (torch.arange(heads)[:, None] * width + pairs).flatten()

    q_end, k_end = s.num_heads * width, (s.num_heads + s.num_kv_heads) * width
    q_order, k_order, q_scale = head_order(s.num_heads), head_order(s.num_kv_heads), 1.0 if s.qk_norm else scale
    for number, layer in enumerate(model.layers):
        here = f"model.layers.{number}."
        for kind, fused in (("weight", layer.qkv), ("bias", layer.qkv_bias)):
            if fused is not None:
                targets[f"{here}self_attn.q_proj.{kind}"] = Target(fused[:q_end], q_order, q_scale)
                targets[f"{here}self_attn.k_proj.{kind}"] = Target(fused[q_end:k_end], k_order)
                targets[f"{here}self_attn.v_proj.{kind}"] = Target(fused[k_end:])
        for kind, fused in (("weight", layer.gate_up), ("bias", layer.gate_up_bias)):
            if fused is not None:
                targets[f"{here}mlp.gate_proj.{kind}"] = Target(fused[: s.intermediate_size])
                targets[f"{here}mlp.up_proj.{kind}"] = Target(fused[s.intermediate_size :])
        plain = {"self_attn.o_proj.weight": layer.out, "self_attn.o_proj.bias": layer.out_bias}
        plain |= {"mlp.down_proj.weight": layer.down, "mlp.down_proj.bias": layer.down_bias}
        plain |= {"input_layernorm.weight": layer.input_norm, "post_attention_layernorm.weight": layer.mlp_norm}
        targets |= {here + name: Target(tensor) for name, tensor in plain.items() if tensor is not None}
        if layer.qk_norm is not None:
            norms = layer.qk_norm
            targets[f"{here}self_attn.q_norm.weight"] = Target(norms[: s.num_heads], pairs, scale, per_head=True)
            targets[f"{here}self_attn.k_norm.weight"] = Target(norms[s.num_heads :], pairs, per_head=True)
    return targets
