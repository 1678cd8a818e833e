"""`actor_rollout_ref.{model,actor,ref}` and the optimizer and FSDP sections that `critic` shares."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from agentrl.config.base import DtypeSpelling, InputPath, ModelPath, PluginName, RowsDecide, Section, TokenizerPath
from agentrl.config.checkpoint import CheckpointConfig
from agentrl.config.lora import LoraKeys
from agentrl.config.rollout import RolloutConfig

LossAggMode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
KLKind = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "k1+", "k2+", "k3+", "low_var_kl+"]


RECOMPUTE_FROM = 1_000_000_000
"""Weights of a model from which on activations are recomputed by default. In a micro-batch of 16,384 tokens the layers
of Qwen2.5-1.5B keep roughly 40 GB of them, and with recomputation 1.5 GB."""


class BackboneConfig(Section):
    """Which weights, and how they are loaded."""

    path: ModelPath = ""
    """Hugging Face folder with weights, configuration and tokenizer; or a checkpoint of a run, which has one in it."""
    enable_gradient_checkpointing: bool | None = None
    """Recompute activations in the backward pass: less memory, about a third slower; null: for models of 1 billion
    weights or more."""
    use_remove_padding: bool = True
    """Pack sequences if the attention kernel skips masked blocks; on CPU, use micro-batches of similar lengths."""
    trust_remote_code: bool = False
    """Run model code that comes with the model folder."""

    def recomputes_activations(self, weights: int) -> bool:
        """Whether a model with this number of weights recomputes activations when it learns."""
        asked = self.enable_gradient_checkpointing
        return weights >= RECOMPUTE_FROM if asked is None else asked


class ModelConfig(LoraKeys, BackboneConfig):
    """The policy's model, its tokenizer and its chat template."""

    tokenizer_path: TokenizerPath | None = None
    """Folder of the tokenizer; null: the model's."""
    chat_template: InputPath | None = None
    """A Jinja chat template (text, or path of a `.jinja` file) that replaces the tokenizer's own."""


class CriticModelConfig(LoraKeys, BackboneConfig):
    """Which weights, and how they are loaded."""


class OptimConfig(Section):
    """AdamW and its schedule."""

    lr: float = Field(default=1e-6, gt=0)
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the first and second moment."""
    eps: float = 1e-8
    """Added to the square root of the second moment."""
    weight_decay: float = 0.01
    """Decoupled weight decay of matrices."""
    lr_warmup_steps: int = -1
    """Number of linear warm-up steps; -1: `lr_warmup_steps_ratio` of all steps."""
    lr_warmup_steps_ratio: float = Field(default=0.0, ge=0, le=1)
    """Share of all steps used for the warm-up."""
    warmup_style: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule after the warm-up, down to `min_lr_ratio` at the last step."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate as a share of the peak."""
    total_training_steps: int = -1
    """Length of the schedule; -1: the trainer's own number of steps."""


class FSDPConfig(Section):
    """Sharding and precision."""

    param_offload: bool = False
    """Parameters are on the GPU while the model computes, and else in host memory (GPU only)."""
    optimizer_offload: bool = False
    """The optimizer's moments come to the GPU with the first optimizer step of an update, and leave it when the update
    ends (GPU only)."""
    offload_policy: bool = False
    """FSDP2's own offloading (GPU only): parameters, gradients and moments stay in host memory, each layer's parameters
    come to the GPU when it computes, and the CPU takes the optimizer steps. Slowest, with the least GPU memory; then
    `param_offload` and `optimizer_offload` have no effect."""
    reshard_after_forward: bool = True
    """Free gathered parameters after the forward pass."""
    model_dtype: Annotated[Literal["float32", "bfloat16"], DtypeSpelling] = "float32"
    """Data type of frozen weights (the reference; all but the adapters of LoRA), and of the computation where
    `compute_dtype` is auto. Weights that learn, their gradients and the optimizer state are always float32, 16 bytes a
    weight: bfloat16 loses small steps."""
    compute_dtype: Annotated[Literal["auto", "float32", "bfloat16"], DtypeSpelling] = "auto"
    """Data type of the forward and backward pass; auto: bfloat16 on GPU, on CPU `model_dtype`."""
    fsdp_size: int = Field(default=-1, ge=-1)
    """Ranks that each parameter is sharded over, as in verl; the others hold copies. -1 or 0: all ranks."""
    ulysses_sequence_parallel_size: int = Field(default=1, ge=1)
    """Ranks that share the tokens of each row (Ulysses). They get the same rows, so as many times the tokens of
    `…max_token_len_per_gpu` fit into a micro-batch."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """Ranks that share each layer's matrices, by the plan that transformers has for the model."""

    @property
    def copies(self) -> int:
        """Neighbouring ranks that get the same rows."""
        return self.ulysses_sequence_parallel_size * self.tensor_parallel_size


class MicroBatchSection(RowsDecide):
    """How a mini-batch is split into micro-batches. Never changes the result."""

    rows_key: ClassVar[str] = "ppo_micro_batch_size_per_gpu"
    dynamic_key: ClassVar[str] = "use_dynamic_bsz"
    use_dynamic_bsz: bool = True
    """Split by tokens (`ppo_max_token_len_per_gpu`) instead of by rows."""
    ppo_max_token_len_per_gpu: int = Field(default=16384, ge=1)
    """Most tokens of a micro-batch, padding included."""
    ppo_micro_batch_size_per_gpu: int | None = Field(default=None, ge=1)
    """Rows of a micro-batch. Where it is given, `use_dynamic_bsz` is false unless it is given too."""


class PolicyLossOptions(Section):
    """Options of single policy losses; null: the loss's own default. One that the chosen loss lacks is an error."""

    tau_pos: float | None = Field(default=None, gt=0)
    """`sapo`: temperature of the gate where the advantage is positive."""
    tau_neg: float | None = Field(default=None, gt=0)
    """`sapo`: temperature of the gate elsewhere."""
    clip_cov_ratio: float | None = Field(default=None, ge=0, le=1)
    """`clip_cov`: share of a mini-batch's tokens that get no gradient; they are found by one more forward pass."""
    clip_cov_lb: float | None = None
    """`clip_cov`: only tokens with a covariance above it."""
    clip_cov_ub: float | None = None
    """`clip_cov`: only tokens with a covariance below it."""
    kl_cov_ratio: float | None = Field(default=None, ge=0, le=1)
    """`kl_cov`: share of a mini-batch's tokens that get the penalty; they are found by one more forward pass."""
    ppo_kl_coef: float | None = Field(default=None, ge=0)
    """`kl_cov`: weight of the penalty."""

    def given(self) -> dict[str, float]:
        """Those that are not null."""
        options = {
            "tau_pos": self.tau_pos,
            "tau_neg": self.tau_neg,
            "clip_cov_ratio": self.clip_cov_ratio,
            "clip_cov_lb": self.clip_cov_lb,
            "clip_cov_ub": self.clip_cov_ub,
            "kl_cov_ratio": self.kl_cov_ratio,
            "ppo_kl_coef": self.ppo_kl_coef,
        }
        return {name: value for name, value in options.items() if value is not None}


class ActorConfig(MicroBatchSection):
    """The policy update."""

    ppo_mini_batch_size: int = Field(default=256, ge=1)
    """Prompts per optimizer step, each with all its rollouts, as in verl. Where it is not given, at most
    `data.train_batch_size`."""
    ppo_epochs: int = Field(default=1, ge=1)
    """Passes over each batch."""
    shuffle: bool = False
    """Shuffle the rows of a batch, seeded, before they are split into mini-batches."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Gradients are clipped to this norm; a step whose norm is not finite is skipped and counted."""
    clip_ratio: float = Field(default=0.2, ge=0)
    """PPO clip range, both sides."""
    clip_ratio_low: float | None = Field(default=None, ge=0)
    """Lower clip range; null: `clip_ratio`."""
    clip_ratio_high: float | None = Field(default=None, ge=0)
    """Upper clip range; null: `clip_ratio`."""
    clip_ratio_c: float = Field(default=3.0, gt=1)
    """Dual-clip bound for negative advantages."""
    loss_agg_mode: LossAggMode = "token-mean"
    """How token losses are combined into one number; independent of micro-batches and ranks."""
    policy_loss: PluginName = "vanilla"
    """Name in `agentrl.algorithms.POLICY_LOSSES`; verl's `{loss_mode: NAME, OPTION: VALUE}` is read too. Or a function
    of your own: a registered name, an entry point, a dotted path or `file.py:name`."""
    policy_loss_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keywords of a policy loss of your own."""
    policy_loss_options: PolicyLossOptions = Field(default_factory=PolicyLossOptions)
    """What that loss takes beside the clip ratios."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus."""
    use_kl_loss: bool = False
    """Add the KL to the reference policy to the loss."""
    kl_loss_coef: float = 0.001
    """Weight of that KL."""
    kl_loss_type: KLKind = "low_var_kl"
    """Estimator of that KL."""
    optim: OptimConfig = Field(default_factory=OptimConfig)
    """Optimizer."""
    fsdp_config: FSDPConfig = Field(default_factory=FSDPConfig)
    """Sharding and precision."""
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    """What a checkpoint holds of the policy."""

    @property
    def clip_ratios(self) -> dict[str, float]:
        """The clip ratios under the names by which every policy loss takes them."""
        low, high = self.clip_ratio_low, self.clip_ratio_high
        return {
            "clip_ratio_low": self.clip_ratio if low is None else low,
            "clip_ratio_high": self.clip_ratio if high is None else high,
            "clip_ratio_c": self.clip_ratio_c,
        }


class LogProbSection(RowsDecide):
    """How batches are split into micro-batches for log-probs without a gradient."""

    rows_key: ClassVar[str] = "log_prob_micro_batch_size_per_gpu"
    dynamic_key: ClassVar[str] = "log_prob_use_dynamic_bsz"
    log_prob_use_dynamic_bsz: bool = True
    """Split by tokens instead of by rows."""
    log_prob_max_token_len_per_gpu: int = Field(default=16384, ge=1)
    """Most tokens of a micro-batch, padding included."""
    log_prob_micro_batch_size_per_gpu: int | None = Field(default=None, ge=1)
    """Rows of a micro-batch. Where it is given, `log_prob_use_dynamic_bsz` is false unless it is given too."""


class RefConfig(LogProbSection):
    """The reference policy: the initial model, frozen."""

    fsdp_config: FSDPConfig = Field(default_factory=FSDPConfig)
    """Sharding and precision. Sizes of the mesh that are not given are those of the actor."""


class ActorRolloutRefConfig(Section):
    """The policy: its model, its update, its rollouts and its reference."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    """The policy's model."""
    actor: ActorConfig = Field(default_factory=ActorConfig)
    """The policy update."""
    ref: RefConfig = Field(default_factory=RefConfig)
    """The reference policy."""
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    """Generation and agent loops."""
    nccl_timeout: int | None = Field(default=None, ge=1)
    """Seconds that a training rank waits for the others in a collective; null: 1800."""
