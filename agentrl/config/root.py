"""`RunConfig`, the whole run YAML, and its sections besides `data` and `actor_rollout_ref`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from agentrl.config.actor import (
    ActorRolloutRefConfig,
    BackboneConfig,
    FSDPConfig,
    KLKind,
    LossAggMode,
    MicroBatchSection,
    OptimConfig,
)
from agentrl.config.base import InputPath, Names, OutputPath, Section
from agentrl.config.data import DataConfig
from agentrl.config.health import HealthConfig


class CriticConfig(MicroBatchSection):
    """The value model of PPO; used when `algorithm.adv_estimator` is gae."""

    model: BackboneConfig = Field(default_factory=BackboneConfig)
    """The value model; an empty path: the policy's."""
    optim: OptimConfig = Field(default_factory=lambda: OptimConfig(lr=1e-5))
    """Optimizer."""
    fsdp_config: FSDPConfig = Field(default_factory=FSDPConfig)
    """Sharding and precision."""
    ppo_mini_batch_size: int | None = Field(default=None, ge=1)
    """Prompts per optimizer step; null: the actor's."""
    ppo_epochs: int | None = Field(default=None, ge=1)
    """Passes over each batch; null: the actor's."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest gradient norm."""
    cliprange_value: float = Field(default=0.5, gt=0)
    """Clip range of the value loss."""
    loss_agg_mode: LossAggMode = "token-mean"
    """How token losses become one number."""


class CombineConfig(Section):
    """What a trajectory's reward is made of: `outcome * score + turn * sum(turn_scores) + tool * sum(tool_rewards)`."""

    outcome: float = 1.0
    """Weight of the score function's score; 0: no score function is needed or called."""
    turn: float = 0.0
    """Weight of the scores that the interaction gave the turns."""
    tool: float = 0.0
    """Weight of the rewards that the tools gave their calls."""
    level: Literal["trajectory", "turn"] = "trajectory"
    """trajectory: all of it on the last sampled token; turn: turn scores and tool rewards on the last sampled token of
    their own turn."""


class SandboxFusionConfig(Section):
    """The sandbox service that runs the tests of coding tasks."""

    url: str | None = None
    """Address of `agentrl serve sandbox`, or of any service that speaks SandboxFusion's protocol, with or without
    `/run_code`; needed by rows whose `data_source` is codecontests, apps, codeforces or taco."""
    max_concurrent: int = Field(default=64, ge=1)
    """Requests to it at the same time, of all agent-loop workers together."""
    memory_limit_mb: int = Field(default=1024, ge=1)
    """Memory of each test."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Sent with every request, for example `{Authorization: "Bearer TOKEN"}`."""


class RewardModelConfig(Section):
    """Scoring of trajectories."""

    reward_manager: str = "naive"
    """naive: one call of the score function per trajectory, side by side; batch: one for several; prime, which verl's
    coding recipes name: the same as naive; or a plug-in's."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Deadline of one score."""
    combine: CombineConfig = Field(default_factory=CombineConfig)
    """What a trajectory's reward is made of."""
    sandbox_fusion: SandboxFusionConfig = Field(default_factory=SandboxFusionConfig)
    """The sandbox service that runs the tests of coding tasks."""


class CustomRewardFunction(Section):
    """A score function of the user's own."""

    path: InputPath | None = None
    """Python file, dotted module, or the registered name of a score function."""
    name: str = "compute_score"
    """Function in that file or module."""
    reward_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to every call."""


class KLControlConfig(Section):
    """Weight of the KL in the reward."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """Fixed, or steered towards `target_kl`."""
    kl_coef: float = Field(default=0.001, ge=0)
    """Weight, or its start value."""
    target_kl: float = Field(default=0.1, gt=0)
    """Target of the adaptive controller."""
    horizon: int = Field(default=10000, ge=1)
    """Its time constant, in trajectories."""


class RolloutCorrectionConfig(Section):
    """Where old log-probs come from, and what bridges rollout and trainer."""

    bypass_old_log_prob: bool = False
    """Take the rollout's log-probs as old log-probs instead of computing them again."""
    is_level: Literal["token", "sequence"] | None = None
    """Truncated importance sampling at this level; null: none."""
    is_threshold: float = Field(default=2.0, gt=0)
    """Largest weight."""
    rs: tuple[float, float] | None = None
    """Rejection bounds of a row's mean ratio; null: none."""


class AlgorithmConfig(Section):
    """Advantages and KL."""

    adv_estimator: str = "grpo"
    """Name in `agentrl.algorithms.ADVANTAGE_ESTIMATORS`."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """GAE lambda."""
    norm_adv_by_std_in_grpo: bool = True
    """False: Dr.GRPO."""
    use_kl_in_reward: bool = False
    """Subtract the KL to the reference policy from the token rewards."""
    kl_penalty: KLKind = "kl"
    """Its estimator."""
    kl_ctrl: KLControlConfig = Field(default_factory=KLControlConfig)
    """Its weight."""
    filter_zero_variance_groups: bool = False
    """Leave groups whose rewards are all equal out of the update (they carry no GRPO gradient)."""
    max_gen_batches: int | None = Field(default=1, ge=0)
    """With `filter_zero_variance_groups`: batches of prompts that a step rolls out until `data.train_batch_size` groups
    are left; 1: groups that are left out are not replaced; null or 0: as many as there are rows for."""
    rollout_correction: RolloutCorrectionConfig = Field(default_factory=RolloutCorrectionConfig)
    """Old log-probs and mismatch."""


class TrainerConfig(Section):
    """The run: how long, where, what is logged and saved."""

    backend: Literal["ray", "local"] = "ray"
    """Where workers run: Ray actors, or this process."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Auto: cuda where there is one."""
    nnodes: int = Field(default=1, ge=1)
    """Machines."""
    n_gpus_per_node: int = Field(default=1, ge=1)
    """Training ranks per machine (processes on CPU)."""
    total_epochs: int = Field(default=1, ge=1)
    """Passes over the training rows."""
    total_training_steps: int | None = Field(default=None, ge=1)
    """Steps; null: `total_epochs` decides."""
    project_name: str = "agentrl"
    """Project in the trackers."""
    experiment_name: str = "default"
    """Run in the trackers."""
    logger: Names = Field(default_factory=lambda: ["console", "jsonl"])
    """`console`, `jsonl`, `tensorboard`, `wandb`, `mlflow`; one name may stand without a list."""
    default_local_dir: OutputPath = "outputs/${trainer.project_name}/${trainer.experiment_name}"
    """Run folder: resolved config, checkpoints, logs."""
    rollout_data_dir: OutputPath | None = None
    """Folder of rollout dumps, one jsonl per step; null: none."""
    validation_data_dir: OutputPath | None = None
    """Folder of validation dumps; null: none."""
    log_val_generations: int = Field(default=0, ge=0)
    """How many validation conversations the trackers show."""
    health: HealthConfig = Field(default_factory=HealthConfig)
    """Alarms on a run that goes wrong while its reward still looks fine."""
    val_before_train: bool = True
    """Validate before the first step."""
    val_only: bool = False
    """Validate, then stop."""
    test_freq: int = -1
    """Validate every so many steps, and after the last; -1: never."""
    save_freq: int = -1
    """Save every so many steps, and after the last; -1: never."""
    max_ckpt_to_keep: int | None = Field(default=None, ge=1)
    """Checkpoints to keep; null: all."""
    resume_mode: Literal["auto", "disable", "resume_path"] = "auto"
    """Auto: go on from the newest checkpoint in the run folder, if there is one."""
    resume_from_path: InputPath | None = None
    """Checkpoint folder (`…/global_step_N`) for `resume_mode: resume_path`."""
    critic_warmup: int = Field(default=0, ge=0)
    """Steps in which only the critic learns."""
    balance_batch: bool = True
    """Give every rank about the same number of tokens."""
    deterministic: bool = False
    """Same numbers on every run: a seed per request, an engine whose numbers do not depend on batching. Slower."""
    seed: int = 1
    """Seed of initialisation and sampling."""
    threads_per_rank: int | None = Field(default=None, ge=1)
    """CPU threads of a training rank; null: cores divided by ranks (1 in deterministic mode)."""


class RayInitConfig(Section):
    """`ray.init`."""

    num_cpus: int | None = Field(default=None, ge=1)
    """CPUs that Ray may use; null: all."""
    address: str | None = None
    """Address of a running cluster; null: a private one for this run."""


class RunConfig(Section):
    """A whole training run."""

    data: DataConfig = Field(default_factory=DataConfig)
    """Datasets and batches."""
    actor_rollout_ref: ActorRolloutRefConfig = Field(default_factory=ActorRolloutRefConfig)
    """The policy."""
    critic: CriticConfig = Field(default_factory=CriticConfig)
    """The value model."""
    reward_model: RewardModelConfig = Field(default_factory=RewardModelConfig)
    """Scoring."""
    custom_reward_function: CustomRewardFunction = Field(default_factory=CustomRewardFunction)
    """A score function of the user's own."""
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig)
    """Advantages and KL."""
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    """The run."""
    ray_init: RayInitConfig = Field(default_factory=RayInitConfig)
    """Ray."""
    plugins: list[InputPath] = Field(default_factory=list)
    """Python modules and files that every process imports first, so that what they `@register` has a name."""

    @property
    def needs_critic(self) -> bool:
        """Whether advantages come from a value model."""
        return self.algorithm.adv_estimator == "gae"

    @property
    def needs_reference(self) -> bool:
        """Whether the KL to the reference policy is used."""
        return self.algorithm.use_kl_in_reward or self.actor_rollout_ref.actor.use_kl_loss
