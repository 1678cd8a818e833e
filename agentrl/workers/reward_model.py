"""The reward model, one rank: a frozen classifier that scores whole conversations."""

from __future__ import annotations

import torch

from agentrl.config.root import RunConfig
from agentrl.data_proto import DataProto
from agentrl.single_controller import Dispatch, register
from agentrl.workers.attention import choose_attention
from agentrl.workers.classifier import (
    ScoreNet,
    WholeClassifierNet,
    is_plain,
    load_whole_classifier,
    read_classifier,
    require_whole,
    start_classifier,
)
from agentrl.workers.fsdp_model import FSDPModel, compute_dtype, frozen_dtype
from agentrl.workers.meta_start import MetaWeights
from agentrl.workers.micro_batches import RowLayout
from agentrl.workers.micro_limits import reward_model_limits
from agentrl.workers.profiled import ProfiledWorker
from agentrl.workers.rank import memory_metrics, prepare_rank_of_run
from agentrl.workers.settling import settle
from agentrl.workers.token_nets import RowShape

SCORED = "scored"
"""The mask of a batch of conversations: of its one response token, which stands for what follows the conversation."""


class RewardModelWorker(ProfiledWorker):
    """One rank of the reward model. It never learns, so that no checkpoint holds it.

    Args:
        config: the whole run.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.role = "reward_model"

    @classmethod
    def copies_of(cls, config: RunConfig) -> int:
        """How many neighbouring ranks get the same conversations."""
        return config.reward_model.fsdp_config.copies

    @register(Dispatch.ONE_TO_ALL)
    def init_model(self, total_steps: int = 0) -> None:
        """Load and shard.

        Args:
            total_steps: as every role gets it; not used.

        Raises:
            ConfigError: the model cannot be used.
        """
        prepare_rank_of_run(self, self.config)
        section = self.config.reward_model
        fsdp, model = section.fsdp_config, section.model
        dtype, sp = compute_dtype(fsdp, self.device), fsdp.ulysses_sequence_parallel_size
        attention = choose_attention(self.device, dtype, remove_padding=model.use_remove_padding, sp=sp)
        info, weight = read_classifier(model), frozen_dtype(fsdp, self.device)
        net, weights = start_classifier(model, info, weight)
        self.model = self._sharded(net, weights)
        if info.is_generic and not self.model.probe(lambda net: is_plain(net.classifier, info)):
            net = load_whole_classifier(model, info, weight)
            self.model = self._sharded(net, None)
        whole = isinstance(net, WholeClassifierNet)
        shape = RowShape.ROWS if whole else settle(self.model, net.classifier, attention)
        self._limits = reward_model_limits(section, self.device, shape)

    def _sharded(self, net: ScoreNet, weights: MetaWeights | None) -> FSDPModel:
        section = self.config.reward_model
        if isinstance(net, WholeClassifierNet):
            require_whole(section.model, section.fsdp_config)
        return FSDPModel(net, self.device, section.fsdp_config, weights=weights)

    @register(Dispatch.DP_COMPUTE_PROTO)
    def compute_rm_score(self, batch: DataProto) -> DataProto:
        """`model_scores` (B,) float32: the score of each conversation.

        Args:
            batch: as `conversation_batch` makes it.

        Returns:
            The scores; `meta_info["metrics"]` holds `perf/*`.
        """
        layout = RowLayout(batch, SCORED, self.device)
        scores = torch.zeros(len(batch), device=self.device)
        for micro, outputs in self.model.infer(layout.micro_batches(None, self._limits)):
            scores[micro.rows] = outputs
        return DataProto({"model_scores": scores.cpu()}, meta_info={"metrics": memory_metrics(self.device)})


def conversation_batch(conversations: list[list[int]]) -> DataProto:
    """Conversations as rows for `compute_rm_score`.

    Each is the prompt of a response of one token, so that what "predicts" that token is the state of the conversation's
    last one, at which a classifier reads its score::

        input_ids   p p c c c | 0        p: padding
        scored                  1        the run is `c c c`; its last token is the source
    """
    width = max(map(len, conversations))
    ids = torch.zeros(len(conversations), width + 1, dtype=torch.long)
    attention = torch.zeros_like(ids)
    for row, tokens in enumerate(conversations):
        ids[row, width - len(tokens) : width] = torch.tensor(tokens)
        attention[row, width - len(tokens) :] = 1
    one = torch.ones(len(conversations), 1, dtype=torch.long)
    return DataProto({"input_ids": ids, "attention_mask": attention, "responses": ids[:, width:], SCORED: one})
