"""Random trajectories as the padded batch that the trainer sends to its workers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agentrl.data_proto import DataProto


def random_batch(
    lengths: Sequence[tuple[int, int]],
    vocab_size: int,
    *,
    seed: int = 0,
    observation_share: float = 0.3,
    rollouts: int = 1,
) -> DataProto:
    """One row per (prompt length, response length): prompts padded on the left, responses on the right.

    A share of each response's tokens, never its last one, are observations (mask 0). Columns such as old log-probs,
    advantages and returns are random where the mask is 1 and 0 elsewhere. A response of length 0 trains nothing. The
    loss mask equals the response mask.

    Args:
        lengths: of each row, without padding.
        vocab_size: ids are drawn below it.
        seed: seed of all random numbers.
        observation_share: share of the response tokens that are observations.
        rollouts: size of the groups of rows that share the prompt of their first row.
    """
    lengths = [(lengths[row // rollouts * rollouts][0], response) for row, (_, response) in enumerate(lengths)]
    draw = torch.Generator().manual_seed(seed)
    rows, prompt_width, width = len(lengths), max(p for p, _ in lengths), max(max(r for _, r in lengths), 1)
    ids = torch.randint(0, vocab_size, (rows, prompt_width + width), generator=draw)
    ids[:, :prompt_width] = ids[torch.arange(rows) // rollouts * rollouts, :prompt_width]
    attention, mask = torch.zeros_like(ids), torch.zeros(rows, width, dtype=torch.long)
    for row, (prompt, response) in enumerate(lengths):
        attention[row, prompt_width - prompt : prompt_width + response] = 1
        sampled = torch.rand(response, generator=draw) >= observation_share
        mask[row, :response] = sampled.long()
        mask[row, response - 1 : response] = 1
    ids = torch.where(attention.bool(), ids, 0)

    def noise(scale: float, shift: float = 0.0) -> torch.Tensor:
        return (torch.randn(rows, width, generator=draw) * scale + shift) * mask

    advantages = torch.randn(rows, 1, generator=draw) * mask
    return DataProto(
        {
            "input_ids": ids,
            "attention_mask": attention,
            "position_ids": (attention.cumsum(1) - 1).clamp(min=0) * attention,
            "prompts": ids[:, :prompt_width],
            "responses": ids[:, prompt_width:],
            "response_mask": mask,
            "loss_mask": mask.clone(),
            "old_log_probs": noise(1.0, -5.0),
            "ref_log_prob": noise(1.0, -5.0),
            "advantages": advantages,
            "returns": noise(1.0),
            "values": noise(1.0),
        }
    )
