"""The policy and its frozen reference, one rank of each. The training step is `policy_update.update_policy`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import torch

from agentrl.config.actor import FSDPConfig, OptimConfig
from agentrl.config.algorithm_checks import policy_loss_problems
from agentrl.config.root import RunConfig
from agentrl.data_proto import DataProto
from agentrl.errors import ConfigError
from agentrl.inference.weights.buckets import total_bytes
from agentrl.plugins import load_registrations
from agentrl.single_controller import Dispatch, register
from agentrl.workers.attention import choose_attention
from agentrl.workers.checkpoints import SavedWorker, WorkerCheckpoints
from agentrl.workers.flops import FlopCounter, peak_flops, utilization
from agentrl.workers.fsdp_model import FSDPModel, compute_dtype, frozen_dtype, weight_dtype
from agentrl.workers.hf_folder import write_hf_folder
from agentrl.workers.loading import DTYPES, start_causal_lm
from agentrl.workers.lora import adapters_off, start_adapter
from agentrl.workers.lora_checkpoint import export_adapter
from agentrl.workers.micro_batch_plan import MicroLimits
from agentrl.workers.micro_batches import ROW_COLUMNS, RowLayout
from agentrl.workers.micro_limits import log_prob_limits, update_limits
from agentrl.workers.mini_batches import ROW_ID, MiniBatchPlan
from agentrl.workers.on_policy import ON_POLICY, update_on_policy
from agentrl.workers.optim import learning_rate
from agentrl.workers.policy_update import update_policy
from agentrl.workers.profiled import ProfiledWorker
from agentrl.workers.rank import longest_response, memory_metrics, prepare_rank_of_run
from agentrl.workers.settling import settle
from agentrl.workers.shard_files import write_shards
from agentrl.workers.token_nets import PolicyNet, RowShape
from agentrl.workers.token_stats import EntropyMode
from agentrl.workers.weight_senders import SendJob, SendReport, WeightSender
from agentrl.workers.weight_source import WeightSource


class ActorRolloutRefWorker(SavedWorker, ProfiledWorker):
    """One rank of the policy (`actor`) or of the reference policy (`ref`).

    Args:
        config: the whole run.
        role: `actor` learns; `ref` is the initial model, frozen.
    """

    def __init__(self, config: RunConfig, role: Literal["actor", "ref"] = "actor") -> None:
        self.config = config
        self.role = role
        self.updates_done = self._steps_done = 0
        self.total_steps = 0
        self._sender: WeightSender | None = None

    @classmethod
    def copies_of(cls, config: RunConfig, role: str = "actor") -> int:
        """How many neighbouring ranks get the same rows."""
        policy = config.actor_rollout_ref
        return (policy.actor if role == "actor" else policy.ref).fsdp_config.copies

    @register(Dispatch.ONE_TO_ALL)
    def init_model(self, total_steps: int = 0) -> None:
        """Load, shard and, for the actor, set up the optimizer.

        Args:
            total_steps: training steps of the run, for the learning-rate schedule.

        Raises:
            ConfigError: the model cannot be used, or the section is contradictory.
        """
        prepare_rank_of_run(self, self.config)
        self.total_steps = total_steps
        policy, actor = self.config.actor_rollout_ref, self.config.actor_rollout_ref.actor
        fsdp = actor.fsdp_config if self.role == "actor" else policy.ref.fsdp_config
        learns = self.role == "actor"
        if learns:
            load_registrations(self.config.plugins)
            problems = list(policy_loss_problems(actor))
            if problems:
                raise ConfigError(problems)
        shape = self._load(fsdp, actor.optim if learns else None, actor.grad_clip)
        passes = policy.rollout if learns else policy.ref
        self._infer_limits = log_prob_limits(passes, self.device, shape, fsdp)
        self._ref_limits = log_prob_limits(policy.ref, self.device, shape, fsdp)
        if learns:
            self.checkpoints = WorkerCheckpoints(self.model, self._lm, policy.model, actor.checkpoint)
            self._limits = update_limits(actor, self.device, shape, "actor_rollout_ref.actor", fsdp)

    @register(Dispatch.DP_COMPUTE_PROTO)
    def compute_log_prob(self, batch: DataProto) -> DataProto:
        """Log-probs and entropies of the policy at the sampled tokens, 0 elsewhere.

        Returns:
            `old_log_probs` and `entropys`, (B, R) float32.
        """
        return self._log_probs(batch, "old_log_probs", EntropyMode.VALUE)

    @register(Dispatch.DP_COMPUTE_PROTO)
    def compute_ref_log_prob(self, batch: DataProto) -> DataProto:
        """The same as `ref_log_prob`: of the role `ref`, or of the actor without its LoRA adapters."""
        with adapters_off(self._lm):
            return self._log_probs(batch, "ref_log_prob", EntropyMode.NONE, self._ref_limits)

    @register(Dispatch.DP_COMPUTE_PROTO)
    def update_actor(self, batch: DataProto) -> DataProto:
        """One training step: all epochs and mini-batches of the batch.

        Args:
            batch: `input_ids, attention_mask, responses, loss_mask, old_log_probs, advantages`, and
                `ref_log_prob` with `use_kl_loss`, `rollout_is_weights` and `row_id` where there are any. With
                `on_policy.ON_POLICY` in its `meta_info`, `old_log_probs` are those of this step.

        Returns:
            No rows or, on-policy, `old_log_probs`; `meta_info["metrics"]` holds `actor/*` and `perf/*`, the same on
            every rank.
        """
        actor, on_policy = self.config.actor_rollout_ref.actor, bool(batch.meta_info.get(ON_POLICY))
        columns = [*([] if on_policy else ["old_log_probs"]), *(["ref_log_prob"] if actor.use_kl_loss else [])]
        columns.append("advantages")
        optional = [name for name in (ROW_ID, "rollout_is_weights") if name in batch.batch]
        batch = batch.select([*ROW_COLUMNS, "loss_mask", *columns, *optional])
        lr = learning_rate(actor.optim, self.updates_done, self.total_steps)
        seed = [self.config.trainer.seed, self.updates_done]

        def update(rows: DataProto, own_log_probs: torch.Tensor | None = None) -> dict[str, float]:
            return update_policy(
                self.model,
                rows,
                self._plan(rows, seed),
                self._limits,
                actor,
                scale=float(longest_response(self.config)),
                lr=lr,
                seed=seed,
                correction=None if on_policy else self.config.algorithm.rollout_correction,
                own_log_probs=own_log_probs,
            )

        began, tensors = time.perf_counter(), {}
        with self.model.residence.in_use():
            if on_policy:
                metrics, tensors["old_log_probs"] = update_on_policy(batch, update)
            else:
                metrics = update(batch)
        used = utilization(
            actor.ppo_epochs * self._flops(batch.batch["attention_mask"].sum(1)) / self.model.copies,
            time.perf_counter() - began,
            self._peak,
        )
        self.updates_done, self._steps_done = self.updates_done + 1, self.model.steps_begun
        named = {f"actor/{name}": value for name, value in {**metrics, "lr": lr}.items()}
        if actor.use_kl_loss:
            named["actor/kl_coef"] = actor.kl_loss_coef
        if self._counts is not None:
            used["perf/trainable_parameters"] = float(self._counts.trainable)
        return DataProto(tensors, meta_info={"metrics": {**named, **used, **memory_metrics(self.device)}})

    @register(Dispatch.ONE_TO_ALL)
    def count_updates(self) -> int | None:
        """The updates that the weights have taken; None: in the middle of one, which has begun an optimizer step."""
        return self.updates_done if self.model.steps_begun == self._steps_done else None

    @register(Dispatch.ONE_TO_ALL)
    def export_weights(self, folder: str) -> None:
        """Write the weights in the form and data type that the engines read, a file per rank."""
        source, bucket = WeightSource(self.model, self._lm), self.config.actor_rollout_ref.rollout.sync_bucket_bytes
        write_shards(folder, source, self._lm.config, bucket, self._engine_dtype())

    @register(Dispatch.ONE_TO_ALL)
    def export_bytes(self) -> int:
        """Bytes of the files that `export_weights` of all ranks writes, but for small ones."""
        plan = WeightSource(self.model, self._lm).plan(2**30, self._engine_dtype())
        return sum(total_bytes(unit.specs) for units in plan for unit in units)

    @register(Dispatch.ONE_TO_ALL)
    def send_weights(self, job: SendJob) -> SendReport:
        """Bring the weights to engines that have begun an update, in the data type that they use."""
        if self._sender is None:
            source = WeightSource(self.model, self._lm)
            self._sender = WeightSender(source, self._engine_dtype(), self.device)
        return self._sender.send(job)

    def close(self) -> None:
        """Leave the groups of this rank."""
        if self._sender is not None:
            self._sender.close()
        super().close()

    @register(Dispatch.ONE_TO_ALL)
    def export_adapter(self, folder: str) -> None:
        """Rank 0 writes the LoRA adapter as peft and the engines read it."""
        export_adapter(Path(folder), self.model, self._lm, self.config.actor_rollout_ref.model)

    @register(Dispatch.ONE_TO_ALL)
    def export_hf(self, folder: str) -> None:
        """Write a complete Hugging Face folder: weights, configuration, tokenizer, chat template."""
        write_hf_folder(folder, self.model, self._lm, self.config.actor_rollout_ref.model)

    def _plan(self, batch: DataProto, seed: list[int]) -> MiniBatchPlan:
        actor = self.config.actor_rollout_ref.actor
        rows = actor.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        return MiniBatchPlan(batch, rows, actor.ppo_epochs, seed if actor.shuffle else None, self.model.copies)

    def _log_probs(
        self, batch: DataProto, name: str, entropy: EntropyMode, limits: MicroLimits | None = None
    ) -> DataProto:
        layout = RowLayout(batch, "response_mask", self.device)
        columns = [torch.zeros(layout.mask.shape, device=self.device) for _ in range(2)]
        micros = layout.micro_batches(None, limits or self._infer_limits)
        for micro, outputs in self.model.infer(micros, entropy):
            for column, values in zip(columns, outputs, strict=True):
                if values is not None:
                    column[micro.rows, : micro.mask.shape[1]] = micro.spread(values)
        tensors = {name: columns[0].cpu()}
        if entropy is not EntropyMode.NONE:
            tensors["entropys"] = columns[1].cpu()
        return DataProto(tensors)

    def _load(self, fsdp: FSDPConfig, optim: OptimConfig | None, grad_clip: float) -> RowShape:
        """Make the sharded model; returns the shape in which it reads rows."""
        model = self.config.actor_rollout_ref.model
        dtype = compute_dtype(fsdp, self.device)
        learns, adapts = self.role == "actor", self.role == "actor" and model.adapts
        sp = fsdp.ulysses_sequence_parallel_size
        attention = choose_attention(self.device, dtype, remove_padding=model.use_remove_padding, sp=sp)
        kept = weight_dtype(fsdp, learns=not adapts) if learns else frozen_dtype(fsdp, self.device)
        self._lm, weights = start_causal_lm(model, kept)
        self._counts = start_adapter(self._lm, model, "actor_rollout_ref.model") if adapts else None
        if learns:
            self._flops, self._peak = FlopCounter(self._lm), peak_flops(self.device, dtype)
        net = PolicyNet(self._lm, self.config.actor_rollout_ref.rollout.temperature)
        self.model = FSDPModel(net, self.device, fsdp, optim, grad_clip, weights)
        return settle(self.model, self._lm, attention, head_of=model.path)

    def _engine_dtype(self) -> torch.dtype:
        name = self.config.actor_rollout_ref.rollout.dtype
        if name == "auto":
            name = "bfloat16" if self.device.type == "cuda" else "float32"
        return DTYPES[name]
