"""The value model of PPO, one rank."""

from __future__ import annotations

import torch

from agentrl.algorithms import aggregate_loss, value_loss
from agentrl.config.actor import CriticModelConfig
from agentrl.config.root import CriticConfig, RunConfig
from agentrl.data_proto import DataProto
from agentrl.single_controller import Dispatch, register
from agentrl.workers.attention import choose_attention
from agentrl.workers.checkpoints import SavedWorker, WorkerCheckpoints
from agentrl.workers.fsdp_model import FSDPModel, compute_dtype, weight_dtype
from agentrl.workers.loading import start_backbone
from agentrl.workers.lora import start_adapter
from agentrl.workers.micro_batches import ROW_COLUMNS, RowLayout
from agentrl.workers.micro_limits import update_limits
from agentrl.workers.mini_batches import ROW_ID, MiniBatchPlan, mini_batches
from agentrl.workers.optim import learning_rate
from agentrl.workers.profiled import ProfiledWorker
from agentrl.workers.rank import longest_response, memory_metrics, prepare_rank_of_run
from agentrl.workers.settling import settle
from agentrl.workers.token_nets import ValueNet
from agentrl.workers.update_report import UpdateReport


class CriticWorker(SavedWorker, ProfiledWorker):
    """One rank of the critic: the policy's architecture (or `critic.model`) with a value head that starts at 0.

    Args:
        config: the whole run.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.role = "critic"
        self.updates_done = self._steps_done = 0
        self.total_steps = 0

    @property
    def section(self) -> CriticConfig:
        """`critic.*`."""
        return self.config.critic

    @classmethod
    def copies_of(cls, config: RunConfig) -> int:
        """How many neighbouring ranks get the same rows."""
        return config.critic.fsdp_config.copies

    @register(Dispatch.ONE_TO_ALL)
    def init_model(self, total_steps: int = 0) -> None:
        """Load, shard and set up the optimizer.

        Args:
            total_steps: training steps of the run, for the learning-rate schedule.

        Raises:
            ConfigError: the model cannot be used, or the section is contradictory.
        """
        prepare_rank_of_run(self, self.config)
        self.total_steps = total_steps
        fsdp, model = self.section.fsdp_config, self._model_config()
        dtype, sp = compute_dtype(fsdp, self.device), fsdp.ulysses_sequence_parallel_size
        attention = choose_attention(self.device, dtype, remove_padding=model.use_remove_padding, sp=sp)
        backbone, weights = start_backbone(model, weight_dtype(fsdp, learns=not model.adapts))
        if model.adapts:
            start_adapter(backbone, model, "critic.model")
        optim, grad_clip = self.section.optim, self.section.grad_clip
        self.model = FSDPModel(ValueNet(backbone), self.device, fsdp, optim, grad_clip, weights)
        self.checkpoints = WorkerCheckpoints(self.model, backbone, model, self.section.checkpoint)
        self._limits = update_limits(self.section, self.device, settle(self.model, backbone, attention), "critic", fsdp)

    @register(Dispatch.DP_COMPUTE_PROTO)
    def compute_values(self, batch: DataProto) -> DataProto:
        """`values` (B, R) float32: the value of the state before each sampled token, 0 elsewhere."""
        layout = RowLayout(batch, "response_mask", self.device)
        values = torch.zeros(layout.mask.shape, device=self.device)
        for micro, outputs in self.model.infer(layout.micro_batches(None, self._limits)):
            values[micro.rows, : micro.mask.shape[1]] = micro.spread(outputs)
        return DataProto({"values": values.cpu()})

    @register(Dispatch.DP_COMPUTE_PROTO)
    def update_critic(self, batch: DataProto) -> DataProto:
        """One training step: all epochs and mini-batches of the batch.

        Args:
            batch: `input_ids, attention_mask, responses, loss_mask, values, returns`, and `row_id` where there is
                one.

        Returns:
            No rows; `meta_info["metrics"]` holds `critic/*`, the same on every rank.
        """
        optional = [name for name in (ROW_ID,) if name in batch.batch]
        batch = batch.select([*ROW_COLUMNS, "loss_mask", "values", "returns", *optional])
        policy = self.config.actor_rollout_ref
        prompts = self.section.ppo_mini_batch_size or policy.actor.ppo_mini_batch_size
        epochs = self.section.ppo_epochs or policy.actor.ppo_epochs
        plan = MiniBatchPlan(batch, prompts * policy.rollout.n, epochs, None, self.model.copies)
        lr = learning_rate(self.section.optim, self.updates_done, self.total_steps)
        with self.model.residence.in_use():
            metrics = self._update(batch, plan, lr)
        self.updates_done, self._steps_done = self.updates_done + 1, self.model.steps_begun
        named = {f"critic/{name}": value for name, value in {**metrics, "lr": lr}.items()}
        return DataProto(meta_info={"metrics": {**named, **memory_metrics(self.device)}})

    @register(Dispatch.ONE_TO_ALL)
    def count_updates(self) -> int | None:
        """The updates that the weights have taken; None: in the middle of one, which has begun an optimizer step."""
        return self.updates_done if self.model.steps_begun == self._steps_done else None

    def _update(self, batch: DataProto, plan: MiniBatchPlan, lr: float) -> dict[str, float]:
        """One optimizer step per mini-batch and epoch, as `policy_update.update_policy` takes them."""
        layout, batch = RowLayout(batch, "loss_mask", self.model.device), batch.to(self.model.device)
        scale, report = float(longest_response(self.config)), UpdateReport(self.model.copies)
        for micros, share in mini_batches(layout, plan, self._limits, scale):
            for micro, values_K in self.model.passes(micros):
                values, mask = micro.spread(values_K), micro.mask
                loss, clipped = value_loss(
                    values,
                    micro.column(batch, "returns"),
                    micro.column(batch, "values"),
                    mask,
                    cliprange=self.section.cliprange_value,
                    loss_agg_mode=self.section.loss_agg_mode,
                    tensor_metrics=True,
                    **share,
                )
                mean = aggregate_loss(values.detach(), mask, "token-mean", **share)
                report.add({"vf_loss": loss, "vf_clipfrac": clipped, "vpred_mean": mean})
                torch.autograd.backward(loss)
            report.add_step(self.model.step(lr))
        return report.metrics()

    def _model_config(self) -> CriticModelConfig:
        own = self.section.model
        return own if own.path else own.model_copy(update={"path": self.config.actor_rollout_ref.model.path})
