"""`RunConfig`, the whole run YAML, and its sections besides `data`, `actor_rollout_ref` and `trainer`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from agentrl.config.actor import (
    ActorRolloutRefConfig,
    CriticModelConfig,
    FSDPConfig,
    KLKind,
    LossAggMode,
    MicroBatchSection,
    OptimConfig,
)
from agentrl.config.base import InputPath, PluginName, Section
from agentrl.config.checkpoint import CheckpointConfig
from agentrl.config.chosen import choose
from agentrl.config.data import DataConfig
from agentrl.config.judge import JudgeConfig
from agentrl.config.reward_model import ClassifierSection, CombineConfig
from agentrl.config.rewards import (
    CustomRewardFunction,
    OverlongBufferConfig,
    RewardManagerConfig,
    SandboxFusionConfig,
)
from agentrl.config.rollout_correction import RolloutCorrectionConfig
from agentrl.config.trainer import RayInitConfig, TrainerConfig

SEARCH_LOOP = "search_r1_agent"
CHOOSES_TOKENS = ("clip_cov", "kl_cov")
"""Policy losses that compare a mini-batch's log-probs with the old ones before its update."""


class CriticOptimConfig(OptimConfig):
    """AdamW and its schedule."""

    lr: float = Field(default=1e-5, gt=0)
    """Peak learning rate."""


class CriticConfig(MicroBatchSection):
    """The value model of PPO; used when `algorithm.adv_estimator` is gae."""

    enable: bool | None = None
    """Whether there is a critic: null, or what `algorithm.adv_estimator` says anyway."""
    model: CriticModelConfig = Field(default_factory=CriticModelConfig)
    """The value model; an empty path: the policy's. With LoRA its adapters learn, and its value head."""
    optim: CriticOptimConfig = Field(default_factory=CriticOptimConfig)
    """Optimizer."""
    fsdp_config: FSDPConfig = Field(default_factory=FSDPConfig)
    """Sharding and precision."""
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    """What a checkpoint holds of the value model, which has no Hugging Face folder."""
    ppo_mini_batch_size: int | None = Field(default=None, ge=1)
    """Prompts per optimizer step; null: the actor's."""
    ppo_epochs: int | None = Field(default=None, ge=1)
    """Passes over each batch; null: the actor's."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Gradients are clipped to this norm."""
    cliprange_value: float = Field(default=0.5, gt=0)
    """Clip range of the value loss."""
    loss_agg_mode: LossAggMode = "token-mean"
    """How token losses are combined into one number."""


class RewardModelConfig(ClassifierSection):
    """Scoring of trajectories."""

    reward_manager: str = "naive"
    """naive: one call of the score function per trajectory, concurrently; batch: one call for several trajectories;
    prime: your own score function runs in a pool of processes, which are killed at its deadline (score 0); dapo: naive,
    with a penalty for long responses (`overlong_buffer`); or a plug-in: its name, `file.py:Class` or `module.Class`."""
    reward_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Options of a reward manager of your own. dapo takes `overlong_buffer_cfg` and `max_resp_len` here too, as in
    verl."""
    overlong_buffer: OverlongBufferConfig = Field(default_factory=OverlongBufferConfig)
    """The penalty for long responses of `reward_manager: dapo`."""
    num_processes: int | None = Field(default=None, ge=1)
    """Processes of `reward_manager: prime`, of all agent-loop workers together (each has at least one); null: one per
    processor."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Deadline of one call of the score function; its time in queues does not count."""
    combine: CombineConfig = Field(default_factory=CombineConfig)
    """The parts of a trajectory's reward."""
    judge: JudgeConfig = Field(default_factory=JudgeConfig)
    """A language model that scores trajectories by a rubric."""
    sandbox_fusion: SandboxFusionConfig = Field(default_factory=SandboxFusionConfig)
    """The sandbox service that runs the tests of coding tasks."""

    @property
    def has_judge(self) -> bool:
        """Whether a judge is asked."""
        return self.judge.base_url is not None and self.combine.judge != 0

    @property
    def scores_by_model(self) -> bool:
        """Whether a reward model or a judge scores trajectories, whatever the score function does."""
        return self.enable or self.has_judge


class RetrieverConfig(Section):
    """The search service behind the tool `search`; a run whose tool YAML has no such tool gets the built-in one."""

    url: str | None = None
    """Its address, with or without `/retrieve`; null: as the tool YAML says."""
    topk: int | None = Field(default=None, ge=1)
    """Documents per query; null: as the tool YAML says, else 3."""


class KLControlConfig(Section):
    """Weight of the KL in the reward."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """Fixed, or adapted towards `target_kl`."""
    kl_coef: float = Field(default=0.001, ge=0)
    """Weight; the initial weight if adaptive."""
    target_kl: float = Field(default=0.1, gt=0)
    """Target of the adaptive controller."""
    horizon: int = Field(default=10000, ge=1)
    """Time constant of the adaptive controller, in trajectories."""


class StateMaskingConfig(Section):
    """Markers around what the environment says. Its own tokens are never trained on, with or without these keys."""

    start_state_marker: str | None = Field(default=None, min_length=1)
    """`search_r1_agent` writes it before documents, and what the model itself writes between the markers is not trained
    on; null: `<information>` before documents, or where only the other marker is given."""
    end_state_marker: str | None = Field(default=None, min_length=1)
    """It follows the documents; null: `</information>`."""

    def markers(self) -> tuple[str, str] | None:
        """Both; None: none is given."""
        if self.start_state_marker is None and self.end_state_marker is None:
            return None
        return self.start_state_marker or "<information>", self.end_state_marker or "</information>"


class AlgorithmConfig(Section):
    """Advantages and KL."""

    adv_estimator: PluginName = "gae"
    """Name in `agentrl.algorithms.ADVANTAGE_ESTIMATORS`; gae has a critic, remax a greedy rollout of each prompt. Or a
    function of your own: a registered name, an entry point, a dotted path or `file.py:name`."""
    adv_estimator_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keywords of an estimator of your own."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount factor."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """GAE lambda."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide GRPO's advantages by the group's standard deviation; false: Dr.GRPO."""
    use_kl_in_reward: bool = False
    """Subtract the KL to the reference policy from the token rewards."""
    kl_penalty: KLKind = "kl"
    """Estimator of that KL."""
    kl_ctrl: KLControlConfig = Field(default_factory=KLControlConfig)
    """Weight of that KL."""
    filter_zero_variance_groups: bool = False
    """Leave groups whose rewards are all equal out of the update (they have no GRPO gradient)."""
    filter_metric: str | None = None
    """With `filter_zero_variance_groups`: the number that groups are compared by, of those that the score function or
    the reward manager reports, such as acc; null: the reward."""
    max_gen_batches: int | None = Field(default=1, ge=0)
    """With `filter_zero_variance_groups`: most batches of prompts that a step rolls out to keep `data.train_batch_size`
    groups; 1: groups that are left out are not replaced; null or 0: until the rows run out."""
    mask_truncated_completions: bool = False
    """Leave trajectories that the length limit cut out of the loss (DAPO's overlong filtering); they still count in
    their group."""
    state_masking: StateMaskingConfig = Field(default_factory=StateMaskingConfig)
    """Markers around what the environment says."""
    rollout_correction: RolloutCorrectionConfig = Field(default_factory=RolloutCorrectionConfig)
    """Old log-probs and mismatch."""


@dataclass(frozen=True, slots=True)
class _Untold:
    """All are equal: what was told about a configuration makes it no other one."""

    keys: list[str] | None = field(default=None, compare=False)


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
    reward_manager: RewardManagerConfig = Field(default_factory=RewardManagerConfig)
    """The reward manager, in another spelling."""
    custom_reward_function: CustomRewardFunction = Field(default_factory=CustomRewardFunction)
    """The user's own score function."""
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig)
    """Advantages and KL."""
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    """The run."""
    ray_init: RayInitConfig = Field(default_factory=RayInitConfig)
    """Ray."""
    retriever: RetrieverConfig = Field(default_factory=RetrieverConfig)
    """The search service."""
    do_search: bool = False
    """Rows are played by `search_r1_agent`, unless they or `rollout.agent.default_agent_loop` name another loop."""
    max_turns: int | None = Field(default=None, ge=0)
    """Most searches of a trajectory of `search_r1_agent`, where that is the default loop; null: 10, or as its YAML
    says."""
    plugins: list[InputPath] = Field(default_factory=list)
    """Python modules and files that every process imports first, to register plug-ins by name (`@register`)."""

    _untold: _Untold = PrivateAttr(default_factory=lambda: _Untold())

    @model_validator(mode="after")
    def _choose(self) -> Self:
        self.choose()
        return self

    def choose(self) -> None:
        """Give the keys that were not given the values that other keys decide."""
        for choice in choose(self.actor_rollout_ref, self.algorithm.adv_estimator, self.data.train_batch_size):
            choice.section.__dict__[choice.name] = choice.value  # an assignment would count as given

    @model_validator(mode="after")
    def _search_decides(self) -> Self:
        agent = self.actor_rollout_ref.rollout.agent
        if self.do_search and "default_agent_loop" not in agent.model_fields_set:
            agent.__dict__["default_agent_loop"] = SEARCH_LOOP  # an assignment would count as the user's
        return self

    @property
    def searches(self) -> bool:
        """Whether rows that name no loop are played by the search loop."""
        return self.actor_rollout_ref.rollout.agent.default_agent_loop == SEARCH_LOOP

    @property
    def has_tools(self) -> bool:
        """Whether the run offers any tool."""
        turns = self.actor_rollout_ref.rollout.multi_turn
        return bool(turns.tool_config_path or turns.tool_envs or self.retriever.url)

    @property
    def reward_manager_name(self) -> str:
        """The name, file or dotted path of the reward manager."""
        own = self.reward_manager
        if own.source == "register":
            return own.name or self.reward_model.reward_manager
        path = own.module.path or ""
        return f"{path}{':' if path.endswith('.py') else '.'}{own.module.name or own.name}"

    @property
    def choices(self) -> list[str]:
        """A note on each value that is neither given nor the default of its key, because other keys decide it."""
        if self.trainer.val_only:
            return []
        chosen = choose(self.actor_rollout_ref, self.algorithm.adv_estimator, self.data.train_batch_size)
        return [choice.why for choice in chosen if choice.why]

    @property
    def untold(self) -> list[str] | None:
        """Keys that the user wrote and of which no note says that they do nothing; None: nobody looked yet."""
        return self._untold.keys

    @untold.setter
    def untold(self, keys: list[str]) -> None:
        self._untold = _Untold(keys)

    @property
    def needs_critic(self) -> bool:
        """Whether advantages are computed with a value model."""
        return self.algorithm.adv_estimator == "gae"

    @property
    def needs_old_log_probs(self) -> bool:
        """Whether old log-probs are computed in a pass of their own.

        Not where the rollout's stand in for them; nor where a batch is one optimizer step, whose own log-probs they
        are, and nothing needs them before it: no correction, no KL in the reward, no choice of tokens by the loss.
        """
        algorithm, actor = self.algorithm, self.actor_rollout_ref.actor
        steps = actor.ppo_epochs * -(-self.data.train_batch_size // actor.ppo_mini_batch_size)
        needed = algorithm.rollout_correction.corrects or algorithm.use_kl_in_reward or self.trainer.critic_warmup > 0
        chooses = actor.policy_loss in CHOOSES_TOKENS
        return not algorithm.rollout_correction.bypass_old_log_prob and (steps > 1 or needed or chooses)

    @property
    def needs_greedy_rollouts(self) -> bool:
        """Whether every prompt has a greedy rollout beside its samples, whose reward is their baseline."""
        return self.algorithm.adv_estimator == "remax"

    @property
    def needs_reference(self) -> bool:
        """Whether the KL to the reference policy is used."""
        return self.algorithm.use_kl_in_reward or self.actor_rollout_ref.actor.use_kl_loss

    @property
    def has_adapters_off(self) -> bool:
        """Whether the reference policy is the actor without its LoRA adapters, and no model of its own."""
        return self.needs_reference and self.actor_rollout_ref.model.adapts and not self.trainer.val_only
