"""One rank of `agentrl sft`: the same sharded model, micro-batches, optimizer and checkpoints as the policy's."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from agentrl.config.sft import SFTConfig
from agentrl.data_proto import DataProto
from agentrl.single_controller import Dispatch, Worker, register
from agentrl.workers.attention import PACKED, choose_attention
from agentrl.workers.checkpoints import SavedWorker, WorkerCheckpoints
from agentrl.workers.collectives import sum_over_ranks
from agentrl.workers.flops import FlopCounter, peak_flops, utilization
from agentrl.workers.fsdp_model import FSDPModel, compute_dtype, weight_dtype
from agentrl.workers.hf_folder import folder_bytes, write_hf_folder
from agentrl.workers.loading import start_causal_lm
from agentrl.workers.lora import start_adapter
from agentrl.workers.lora_checkpoint import export_adapter
from agentrl.workers.micro_batch_plan import MicroLimits
from agentrl.workers.micro_batches import ROW_COLUMNS, MicroBatches, RowLayout
from agentrl.workers.micro_limits import OVERHEAD_TOKENS
from agentrl.workers.optim import learning_rate
from agentrl.workers.rank import memory_metrics, prepare_rank
from agentrl.workers.settling import settle
from agentrl.workers.token_nets import DemonstrationNet

LOSS_MASK = "loss_mask"


class SFTWorker(SavedWorker, Worker):
    """One rank of a model that learns demonstrations.

    Args:
        config: the whole run.
    """

    def __init__(self, config: SFTConfig) -> None:
        self.config = config
        self.updates_done = 0

    @classmethod
    def copies_of(cls, config: SFTConfig) -> int:
        """How many neighbouring ranks get the same rows."""
        return config.model.fsdp_config.copies

    @register(Dispatch.ONE_TO_ALL)
    def init_model(self, total_steps: int) -> None:
        """Load, shard and set up the optimizer.

        Args:
            total_steps: of the run, for the learning-rate schedule.

        Raises:
            ConfigError: the model cannot be used.
        """
        model, data, trainer = self.config.model, self.config.data, self.config.trainer
        prepare_rank(self, trainer.seed, deterministic=trainer.deterministic)
        self._total_steps = total_steps
        dtype = compute_dtype(model.fsdp_config, self.device)
        sp = model.fsdp_config.ulysses_sequence_parallel_size
        attention = choose_attention(self.device, dtype, remove_padding=model.use_remove_padding, sp=sp)
        self._lm, weights = start_causal_lm(model, weight_dtype(model.fsdp_config, learns=not model.adapts))
        self._counts = start_adapter(self._lm, model, "model") if model.adapts else None
        self._flops, self._peak = FlopCounter(self._lm), peak_flops(self.device, dtype)
        rows = None if data.use_dynamic_bsz else data.micro_batch_size_per_gpu
        overhead = OVERHEAD_TOKENS[self.device.type]
        packed = attention in PACKED
        self._limits = MicroLimits(data.max_token_len * sp, rows, packed, overhead_tokens=overhead)
        optim = self.config.optim
        net = DemonstrationNet(self._lm, 1.0)
        self.model = FSDPModel(net, self.device, model.fsdp_config, optim, optim.grad_clip, weights)
        settle(self.model, self._lm, attention, head_of=model.path)
        self.checkpoints = WorkerCheckpoints(self.model, self._lm, model, trainer.checkpoint)

    @register(Dispatch.DP_COMPUTE_PROTO)
    def update(self, batch: DataProto) -> DataProto:
        """One optimizer step: the mean loss over the chosen tokens of all ranks' rows.

        Args:
            batch: `input_ids, attention_mask, responses, loss_mask`.

        Returns:
            No rows; `meta_info["metrics"]`, the same on every rank: sums over tokens, to be divided by `tokens`.
        """
        began = time.perf_counter()
        layout, micros = self._cut(batch)
        copies = self.model.copies
        tokens = sum_over_ranks([float(layout.mask.sum())], copies)[0]
        loss, right = self._zero(), self._zero()
        lr = learning_rate(self.config.optim, self.updates_done, self._total_steps)
        with self.model.residence.in_use():
            for _, (log_probs_K, hits_K) in self.model.passes(micros):
                # Each rank divides by the tokens of all: the sum of their gradients is that of one rank with all rows.
                micro_loss = -log_probs_K.sum()
                torch.autograd.backward(micro_loss / max(tokens, 1.0))
                loss += micro_loss.detach()
                right += hits_K.sum()
            report = self.model.step(lr)
        self.updates_done += 1
        flops = self._flops(layout.run_lengths) / copies
        sums = sum_over_ranks([float(loss), float(right)], copies)
        metrics = {
            "loss": sums[0],
            "right": sums[1],
            "tokens": tokens,
            "grad_norm": report.grad_norm if report.taken else 0.0,
            "skipped": float(not report.taken),
            "lr": lr,
            **utilization(flops, time.perf_counter() - began, self._peak),
            **memory_metrics(self.device),
        }
        if self._counts is not None:
            metrics["perf/trainable_parameters"] = float(self._counts.trainable)
        return DataProto(meta_info={"metrics": metrics})

    @register(Dispatch.DP_COMPUTE_PROTO)
    def evaluate(self, batch: DataProto) -> DataProto:
        """`loss`, `right` and `tokens` of rows, as `update` gives them, without learning."""
        layout, micros = self._cut(batch)
        loss, right = self._zero(), self._zero()
        for _, (log_probs_K, hits_K) in self.model.infer(micros):
            loss -= log_probs_K.sum()
            right += hits_K.sum()
        sums = sum_over_ranks([float(loss), float(right), float(layout.mask.sum())], self.model.copies)
        return DataProto(meta_info={"metrics": dict(zip(("loss", "right", "tokens"), sums, strict=True))})

    @register(Dispatch.ONE_TO_ALL)
    def export_bytes(self) -> int:
        """Bytes of the weights that `export_hf` of all ranks writes."""
        return folder_bytes(self.model, self._lm, self.config.model)

    @register(Dispatch.ONE_TO_ALL)
    def export_hf(self, folder: str) -> None:
        """Write a complete Hugging Face folder: weights, configuration, tokenizer, chat template."""
        write_hf_folder(folder, self.model, self._lm, self.config.model)

    @register(Dispatch.ONE_TO_ALL)
    def export_adapter(self, folder: str) -> None:
        """Rank 0 writes the LoRA adapter as peft reads it."""
        export_adapter(Path(folder), self.model, self._lm, self.config.model)

    def _cut(self, batch: DataProto) -> tuple[RowLayout, MicroBatches]:
        layout = RowLayout(batch.select([*ROW_COLUMNS, LOSS_MASK]), LOSS_MASK, self.device)
        return layout, layout.micro_batches(None, self._limits)

    def _zero(self) -> torch.Tensor:
        return torch.zeros((), dtype=torch.float64, device=self.device)
