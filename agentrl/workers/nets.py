"""What FSDP wraps: modules that map a micro-batch to one number per trained token."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from agentrl.workers.micro_batches import MicroBatch
from agentrl.workers.token_stats import EntropyMode, token_log_probs


class TokenNet(nn.Module):
    """A transformer without its head, read at the positions that predict a trained token."""

    @property
    def backbone(self) -> Any:
        """The transformer."""
        raise NotImplementedError

    def states(self, micro: MicroBatch) -> torch.Tensor:
        """Hidden states (K, H) at `micro.sources`."""
        out = self.backbone(
            input_ids=micro.input_ids,
            attention_mask=None,
            position_ids=micro.position_ids,
            use_cache=False,
            **micro.kernel_args,
        )
        return cast(torch.Tensor, out.last_hidden_state).flatten(0, 1).index_select(0, micro.sources)

    def blocks(self) -> list[nn.Module]:
        """The decoder layers, each sharded on its own."""
        names = set(self.backbone._no_split_modules or ())
        return [module for module in self.backbone.modules() if type(module).__name__ in names]


class PolicyNet(TokenNet):
    """Log-probs of the trained tokens under a causal language model.

    Args:
        lm: a transformers causal language model.
        temperature: log-probs are those of logits divided by it, as the engine reports them.
    """

    def __init__(self, lm: Any, temperature: float) -> None:
        super().__init__()
        self.lm = lm
        self.temperature = temperature

    @property
    def backbone(self) -> Any:
        """The transformer."""
        return self.lm.base_model

    def forward(self, micro: MicroBatch, entropy: EntropyMode) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probs (K,) and entropies (K,) or None."""
        head = self.lm.get_output_embeddings()
        return token_log_probs(
            head,
            self.states(micro),
            micro.labels,
            head.weight.shape[0],
            temperature=self.temperature,
            entropy=entropy,
        )


class ValueNet(TokenNet):
    """Values of the states that predict each trained token. Starts at 0 everywhere."""

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.base = backbone
        weight = next(backbone.parameters())
        self.score = nn.Linear(backbone.config.hidden_size, 1, dtype=weight.dtype)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    @property
    def backbone(self) -> Any:
        """The transformer."""
        return self.base

    def forward(self, micro: MicroBatch) -> torch.Tensor:
        """Values (K,) in float32."""
        return cast(torch.Tensor, self.score(self.states(micro))).float().sum(-1)
