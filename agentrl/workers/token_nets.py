"""The modules that FSDP wraps: they map a micro-batch to one number per chosen token."""

from __future__ import annotations

import inspect
from enum import Enum
from functools import cached_property
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from agentrl.data_proto import DataProto
from agentrl.workers.attention import PACKED
from agentrl.workers.micro_batch_plan import Piece
from agentrl.workers.micro_batches import MicroBatch, RowLayout, SharedPrompts
from agentrl.workers.pictures import PictureReader
from agentrl.workers.sequence import SequenceRanks
from agentrl.workers.tensor_parallel import cut_layers, cut_vocabulary
from agentrl.workers.token_stats import EntropyMode, VocabPart, token_hits, token_log_probs


def _cache_argument(backbone: type[nn.Module]) -> str:
    """The keyword for keys and values: transformers renames it within its version 5."""
    return "cache" if "cache" in inspect.signature(backbone.forward).parameters else "past_key_values"


class RowShape(Enum):
    """The cheapest shape in which a model reads rows; see `micro_batches.py`."""

    ROWS = "rows"
    SHARED_PROMPTS = "shared prompts"
    PACKED = "packed"


class TokenNet(nn.Module):
    """A transformer without its head, read at the positions that predict a chosen token."""

    sequence: SequenceRanks | None = None
    """The ranks that share each row; None: this rank reads whole rows."""

    def forward(self, micro: MicroBatch, *args: Any) -> Any:
        """`values` of all chosen tokens, whichever rank of the row computes them."""
        if self.sequence is None:
            return self.values(micro, *args)
        part, own = self.sequence.part_of(micro)
        values, count = self.values(part, *args), len(micro.labels)
        if not isinstance(values, tuple):
            return self.sequence.join(values, own, count)
        return tuple(None if column is None else self.sequence.join(column, own, count) for column in values)

    def values(self, micro: MicroBatch, *args: Any) -> Any:
        """One number per chosen token (K,), or a tuple of such columns."""
        raise NotImplementedError

    def cut(self, mesh: DeviceMesh) -> None:
        """Spread the matrices of each layer over the ranks of a tensor-parallel axis. A collective call."""
        cut_layers(self.backbone, mesh)

    @property
    def backbone(self) -> Any:
        """The transformer."""
        raise NotImplementedError

    @cached_property
    def pictures(self) -> PictureReader | None:
        """How the model sees pictures; None: it reads text only."""
        return PictureReader.of(self.backbone)

    def states(self, micro: MicroBatch) -> torch.Tensor:
        """Hidden states (K, H) at `micro.sources`."""
        if micro.prompts is not None:
            return self._states_behind_prompts(micro, micro.prompts).index_select(0, micro.sources)
        if self.pictures is not None:
            return self._states_with_pictures(micro, self.pictures).index_select(0, micro.sources)
        out = self.backbone(
            input_ids=micro.input_ids,
            attention_mask=None,
            position_ids=micro.position_ids,
            use_cache=False,
            **micro.kernel_args,
        )
        return cast(torch.Tensor, out.last_hidden_state).flatten(0, 1).index_select(0, micro.sources)

    def _states_with_pictures(self, micro: MicroBatch, reader: PictureReader) -> torch.Tensor:
        """Hidden states of all row tokens: (b * T, H)."""
        arguments = reader.arguments(self.backbone, micro.input_ids, micro.media)
        states = self.backbone(attention_mask=None, use_cache=False, **arguments).last_hidden_state
        return cast(torch.Tensor, states).flatten(0, 1)

    def _states_behind_prompts(self, micro: MicroBatch, prompts: SharedPrompts) -> torch.Tensor:
        """Hidden states of all prompt tokens, then of all row tokens: (u * P + b * T, H)."""
        from transformers import DynamicCache

        kept = DynamicCache()
        passed = {_cache_argument(type(self.backbone)): kept, "use_cache": True}
        # Each prompt is read once. Its keys and values are then copied to every row that begins with it: owners
        # [0, 0, 1] give three rows of keys from two prompts.
        first = self.backbone(input_ids=prompts.input_ids, attention_mask=None, **passed)
        # Prompts of 2 and 3 tokens, rows 0 and 1 behind the first, row 2 behind the second, each row of 2 tokens:
        #   owners 0 0 1: now row i finds the keys of its own prompt at place i
        #   visible    row 0: 1 1 0 | 1 1    row 2: 1 1 1 | 1 1    (the padding of the shorter prompt is not seen)
        #   positions  row 0: 2 3            row 2: 3 4            (a row continues where its prompt ended)
        kept.reorder_cache(prompts.owners)
        lengths = prompts.lengths[prompts.owners][:, None]
        places = torch.arange(prompts.input_ids.shape[1], device=lengths.device)
        visible = torch.cat([places < lengths, torch.ones_like(micro.input_ids, dtype=torch.bool)], 1)
        second = self.backbone(
            input_ids=micro.input_ids,
            attention_mask=visible.long(),
            position_ids=lengths + torch.arange(micro.input_ids.shape[1], device=lengths.device),
            **passed,
        )
        return torch.cat([first.last_hidden_state.flatten(0, 1), second.last_hidden_state.flatten(0, 1)])

    def blocks(self) -> list[nn.Module]:
        """The decoder layers, each sharded on its own."""
        names = set(self.backbone._no_split_modules or ())
        return [module for module in self.backbone.modules() if type(module).__name__ in names]


def row_shape(net: TokenNet, attention: str) -> RowShape:
    """Find out how this model can read its rows. Of a sharded one in `FSDPModel.probe`.

    Sharing prompts needs full attention, keys and values that can be passed on, and no recomputation of layers. If the
    configuration allows it, it is tried on a few tokens: the states must equal those of plain rows.
    """
    config = net.backbone.config
    if net.pictures is not None:
        return RowShape.ROWS
    if attention in PACKED:
        return RowShape.PACKED
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    checkpointing = any(getattr(module, "gradient_checkpointing", False) for module in net.modules())
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None) is not None or checkpointing:
        return RowShape.ROWS
    return RowShape.SHARED_PROMPTS if _sharing_changes_nothing(net) else RowShape.ROWS


@torch.no_grad()
def _sharing_changes_nothing(net: TokenNet) -> bool:
    """Two prompts of two and three tokens with two responses each, read both ways."""
    ids = torch.tensor([[0, 0, 1, 1, 0, 1], [0, 0, 1, 0, 1, 0], [1, 0, 1, 1, 1, 0], [1, 0, 1, 0, 0, 0]])
    attention = torch.ones_like(ids)
    attention[:2, 0] = 0
    mask = torch.ones(4, 3, dtype=torch.long)
    mask[1:3, 2] = 0
    columns = {"input_ids": ids, "attention_mask": attention, "responses": ids[:, 3:], "mask": mask}
    layout = RowLayout(DataProto(columns).to(next(net.parameters()).device), "mask")
    rows = list(range(4))
    plain = layout.padded(rows)
    shared = layout.shared([Piece((0, 1), 2, 2), Piece((2, 3), 2, 3)])
    one, other = (net.states(micro).float() for micro in (plain, shared))
    return torch.allclose(one, other, rtol=1e-2, atol=1e-2 * float(one.abs().max()))


class PolicyNet(TokenNet):
    """Log-probs of the chosen tokens under a causal language model.

    Args:
        lm: a transformers causal language model.
        temperature: log-probs are those of logits divided by it, as the engine reports them.
    """

    def __init__(self, lm: Any, temperature: float) -> None:
        super().__init__()
        self.lm = lm
        self.temperature = temperature
        self.part: VocabPart | None = None
        """What this rank's head gives; None: all logits."""

    @property
    def backbone(self) -> Any:
        """The transformer."""
        return self.lm.base_model

    def cut(self, mesh: DeviceMesh) -> None:
        """As `TokenNet.cut`, with embeddings and head."""
        super().cut(mesh)
        self.part = cut_vocabulary(self.lm, mesh)

    def values(self, micro: MicroBatch, entropy: EntropyMode) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probs (K,) and entropies (K,) or None."""
        head = self.lm.get_output_embeddings()
        return token_log_probs(
            head,
            self.states(micro),
            micro.labels,
            head.weight.shape[0],
            temperature=self.temperature,
            entropy=entropy,
            part=self.part,
        )


class DemonstrationNet(PolicyNet):
    """Log-probs of demonstrated tokens, and whether each is the model's own first choice."""

    def values(self, micro: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        """Log-probs (K,) and hits (K,) bool."""
        head = self.lm.get_output_embeddings()
        return token_hits(head, self.states(micro), micro.labels, head.weight.shape[0], self.part)


class ValueNet(TokenNet):
    """Values of the states that predict each chosen token. Starts at 0 everywhere."""

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.base = backbone
        # The head learns, so it is float32 even on a frozen backbone in bfloat16.
        self.score = nn.Linear(backbone.config.get_text_config().hidden_size, 1, dtype=torch.float32)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    @property
    def backbone(self) -> Any:
        """The transformer."""
        return self.base

    def values(self, micro: MicroBatch) -> torch.Tensor:
        """Values (K,) in float32."""
        return cast(torch.Tensor, self.score(self.states(micro))).float().sum(-1)
