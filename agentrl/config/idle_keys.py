"""Which keys cannot act in a run, and why: `IDLE_KEYS`. A note tells those that the user wrote.

A key whose effect depends on another key has a row here::

    critic.optim.lr     idle while    algorithm.adv_estimator is grpo, which has no critic

`tests/config/test_every_key.py` walks all keys: one that has neither an effect nor a row fails it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentrl.config.actor import ActorRolloutRefConfig, OptimConfig
from agentrl.config.idle import Idle, value_at
from agentrl.config.idle_correction_keys import OF_ROLLOUT_CORRECTION
from agentrl.config.idle_engine_keys import IDLE_ENGINE_KEYS
from agentrl.config.idle_machine_keys import OF_MICRO_BATCHES, OF_THE_MACHINE
from agentrl.config.lora_checks import IDLE_LORA
from agentrl.config.reward_checks import IDLE_REWARD_KEYS
from agentrl.config.reward_model_checks import IDLE_REWARD_MODEL_KEYS
from agentrl.config.root import RunConfig

USES_GAMMA = frozenset({"gae", "reinforce_plus_plus"})
USES_LAMBDA = frozenset({"gae"})
DIVIDES_BY_STD = frozenset({"grpo", "grpo_passk"})
"""Advantage estimators that read `algorithm.gamma`, `lam` and `norm_adv_by_std_in_grpo`."""
NO_CLIP = frozenset({"gpg", "sapo", "kl_cov"})
"""Policy losses without a clip range."""
DUAL_CLIP = frozenset({"vanilla"})
"""Policy losses that read `clip_ratio_c`."""
SHOWS_CONVERSATIONS = frozenset({"console", "tensorboard", "wandb", "mlflow"})
"""Trackers that show validation conversations."""

_AR = "actor_rollout_ref."
_ACTOR, _ROLLOUT, _MODEL = f"{_AR}actor.", f"{_AR}rollout.", f"{_AR}model."


def schedule(section: str) -> tuple[Idle[Any], ...]:
    """Parts of a learning-rate schedule that the others switch off."""

    def optim(run: Any) -> OptimConfig:
        found: OptimConfig = value_at(run, section)
        return found

    def has_no_length(run: Any) -> bool:
        own = optim(run)
        return own.warmup_style == "constant" and (own.lr_warmup_steps >= 0 or own.lr_warmup_steps_ratio == 0)

    return (
        Idle(
            (f"{section}.lr_warmup_steps_ratio",),
            lambda run: optim(run).lr_warmup_steps >= 0,
            f"{section}.lr_warmup_steps is {{{section}.lr_warmup_steps}}",
        ),
        Idle(
            (f"{section}.min_lr_ratio",),
            lambda run: optim(run).warmup_style == "constant",
            f"{section}.warmup_style is constant, so the learning rate does not fall",
        ),
        Idle(
            (f"{section}.total_training_steps",),
            has_no_length,
            f"{section}.warmup_style is constant and there is no lr_warmup_steps_ratio, so the schedule has no length",
        ),
    )


def _policy(run: RunConfig) -> ActorRolloutRefConfig:
    return run.actor_rollout_ref


def _validates(run: RunConfig) -> bool:
    trainer = run.trainer
    return trainer.val_only or trainer.val_before_train or trainer.test_freq > 0


def _only_alarms_off(run: RunConfig) -> bool:
    alarms = (name for name in type(run.trainer.health).model_fields if name not in ("window", "action"))
    return all(getattr(run.trainer.health, name) is None for name in alarms)


def _estimator_reads(run: RunConfig, key: str, used: frozenset[str]) -> bool:
    """Whether the advantage estimator reads `gamma`, `lam` or the like: it is one of these, or the user's own asks."""
    from agentrl.algorithms import ADVANTAGE_ESTIMATORS
    from agentrl.plugins.own_algorithms import own_takes

    name = run.algorithm.adv_estimator
    if name in ADVANTAGE_ESTIMATORS:
        return name in used
    return any(own_takes("advantages", name, each) for each in (key, key.removesuffix("_in_grpo")))


def _loss_reads(run: RunConfig, reads: Callable[[str], bool], *parameters: str) -> bool:
    """Whether the policy loss reads any of these: as `reads` says of agentrl's, or the user's own asks for it."""
    from agentrl.algorithms import POLICY_LOSSES
    from agentrl.plugins.own_algorithms import own_takes

    name = _policy(run).actor.policy_loss
    if name in POLICY_LOSSES:
        return reads(name)
    return any(own_takes("policy_losses", name, parameter) for parameter in parameters)


_OF_TRAINING: tuple[Idle[RunConfig], ...] = (
    Idle(
        ("critic.*",),
        lambda run: not run.needs_critic,
        "algorithm.adv_estimator is {algorithm.adv_estimator}, which has no critic (gae has one)",
        but=("critic.enable",),
    ),
    Idle(
        (
            *("algorithm.*", f"{_ACTOR}*", f"{_AR}ref.*", "critic.*", f"{_ROLLOUT}n", f"{_ROLLOUT}log_prob_*"),
            *(f"{_ROLLOUT}multi_turn.trainable_turns", f"{_ROLLOUT}multi_turn.mask_tool_call_args"),
            *("data.train_batch_size", "data.gen_batch_size", "data.dataset_weights", "data.shuffle", "data.seed"),
            *("trainer.total_*", "trainer.test_freq", "trainer.val_before_train"),
            *("trainer.save_freq", "trainer.max_ckpt_to_keep", "trainer.critic_warmup", "trainer.balance_batch"),
            *("trainer.async_save", f"{_ROLLOUT}free_cache_engine"),
            *("trainer.rollout_data_dir", "trainer.health.*", "trainer.max_skipped_steps", "trainer.profile_*"),
            *("trainer.log_train_generations", "trainer.otlp_endpoint"),
        ),
        lambda run: run.trainer.val_only,
        "trainer.val_only is true, so nothing is trained",
        but=("algorithm.adv_estimator", f"{_ACTOR}fsdp_config.*"),
    ),
    Idle(
        tuple(f"{_ROLLOUT}{name}" for name in ("temperature", "top_p", "top_k", "min_p")),
        lambda run: run.trainer.val_only,
        "trainer.val_only is true, and validation samples as rollout.val_kwargs says",
    ),
    Idle(
        (f"{_AR}ref.*",),
        lambda run: not run.needs_reference,
        "no KL to the reference policy is used (algorithm.use_kl_in_reward and actor.use_kl_loss are false)",
    ),
    Idle(
        ("algorithm.kl_penalty", "algorithm.kl_ctrl.*"),
        lambda run: not run.algorithm.use_kl_in_reward,
        "algorithm.use_kl_in_reward is false",
    ),
    Idle(
        ("algorithm.kl_ctrl.target_kl", "algorithm.kl_ctrl.horizon"),
        lambda run: run.algorithm.kl_ctrl.type == "fixed",
        "algorithm.kl_ctrl.type is fixed",
    ),
    Idle(
        (f"{_ACTOR}kl_loss_coef", f"{_ACTOR}kl_loss_type"),
        lambda run: not _policy(run).actor.use_kl_loss,
        "actor.use_kl_loss is false",
    ),
    *(
        Idle(
            (f"algorithm.{key}",),
            lambda run, used=used, key=key: not _estimator_reads(run, key, used),  # type: ignore[misc]
            f"algorithm.adv_estimator is {{algorithm.adv_estimator}}, not {' or '.join(sorted(used))}",
        )
        for key, used in (
            ("gamma", USES_GAMMA),
            ("lam", USES_LAMBDA),
            ("norm_adv_by_std_in_grpo", DIVIDES_BY_STD),
        )
    ),
    Idle(
        ("algorithm.max_gen_batches", "algorithm.filter_metric"),
        lambda run: not run.algorithm.filter_zero_variance_groups,
        "algorithm.filter_zero_variance_groups is false",
    ),
    *OF_ROLLOUT_CORRECTION,
    Idle(
        (f"{_ACTOR}clip_ratio*",),
        lambda run: not _loss_reads(run, lambda loss: loss not in NO_CLIP, "clip_ratio_low", "clip_ratio_high"),
        "actor.policy_loss is {actor_rollout_ref.actor.policy_loss}, which has no clip range",
    ),
    Idle(
        (f"{_ACTOR}clip_ratio_c",),
        lambda run: not _loss_reads(run, lambda loss: loss in DUAL_CLIP, "clip_ratio_c"),
        "actor.policy_loss is {actor_rollout_ref.actor.policy_loss}, which has no dual clip (vanilla has it)",
    ),
    Idle(
        (f"{_ACTOR}clip_ratio",),
        lambda run: None not in (_policy(run).actor.clip_ratio_low, _policy(run).actor.clip_ratio_high),
        "actor.clip_ratio_low and clip_ratio_high are given",
    ),
)
_OF_ROLLOUTS: tuple[Idle[RunConfig], ...] = (
    Idle((f"{_ROLLOUT}max_refills",), lambda run: not _policy(run).rollout.refill, "rollout.refill is false"),
    Idle(
        (f"{_ROLLOUT}outage.backoff_s", f"{_ROLLOUT}outage.wait_s"),
        lambda run: _policy(run).rollout.outage.failures == 0,
        "rollout.outage.failures is 0, so no service ever counts as down",
    ),
    Idle(
        (f"{_ROLLOUT}multi_turn.tool_cache.path",),
        lambda run: _policy(run).rollout.multi_turn.tool_cache.mode == "off",
        "rollout.multi_turn.tool_cache.mode is off",
    ),
    Idle(
        (
            f"{_ROLLOUT}multi_turn.tool_cache.*",
            *(f"{_ROLLOUT}multi_turn.max_{name}" for name in ("tool_calls", "parallel_calls", "tool_response_length")),
            f"{_ROLLOUT}multi_turn.mask_tool_call_args",
        ),
        lambda run: not run.has_tools,
        "the run has no tools (rollout.multi_turn.tool_config_path)",
    ),
    Idle(
        ("retriever.topk",),
        lambda run: not run.has_tools,
        "retriever.url is not given, and the run has no tools (rollout.multi_turn.tool_config_path)",
    ),
    Idle(
        ("do_search",),
        lambda run: not run.searches,
        "rollout.agent.default_agent_loop is {actor_rollout_ref.rollout.agent.default_agent_loop}",
    ),
    Idle(
        ("max_turns",),
        lambda run: not run.searches,
        "do_search is false; agents with tools have rollout.multi_turn.max_assistant_turns",
    ),
    Idle(
        (f"{_ROLLOUT}multi_turn.tool_response_truncate_side",),
        lambda run: _policy(run).rollout.multi_turn.max_tool_response_length is None,
        "rollout.multi_turn.max_tool_response_length is null, so nothing is cut",
    ),
    *(
        Idle(
            (f"data.max_{part}_length",),
            lambda run, key=key: getattr(_policy(run).rollout, key) is not None,  # type: ignore[misc]
            f"rollout.{key} is {{{_ROLLOUT}{key}}}",
        )
        for part, key in (("prompt", "prompt_length"), ("response", "response_length"))
    ),
    Idle(
        (
            *("custom_reward_function.*", "reward_model.sandbox_fusion.*"),
            *("reward_model.reward_manager", "reward_model.timeout_s", "reward_manager.*"),
            *("reward_model.overlong_buffer.*", "reward_model.num_processes"),
        ),
        lambda run: run.reward_model.combine.outcome == 0,
        "reward_model.combine.outcome is 0, so no score function is called",
    ),
    Idle(
        ("reward_manager.module.*",),
        lambda run: run.reward_manager.source == "register",
        "reward_manager.source is register, so the manager is found by its name",
    ),
    Idle(
        ("reward_model.reward_manager",),
        lambda run: run.reward_manager.source == "importlib",
        "reward_manager.source is importlib, so reward_manager.module names the manager",
    ),
    Idle(
        ("reward_manager.name",),
        lambda run: run.reward_manager.source == "importlib" and run.reward_manager.module.name is not None,
        "reward_manager.source is importlib, so reward_manager.module names the manager",
    ),
    *IDLE_REWARD_KEYS,
    Idle(
        ("reward_model.combine.level",),
        lambda run: run.reward_model.combine.turn == run.reward_model.combine.tool == 0,
        "reward_model.combine.turn and tool are 0, so the outcome is the whole reward",
    ),
    Idle(
        ("reward_model.sandbox_fusion.*",),
        lambda run: run.custom_reward_function.path is not None,
        "custom_reward_function.path names your own score function, which runs no tests in this sandbox",
    ),
    Idle(
        ("reward_model.sandbox_fusion.*",),
        lambda run: run.reward_model.sandbox_fusion.url is None,
        "reward_model.sandbox_fusion.url is not given",
    ),
    Idle(
        ("custom_reward_function.name",),
        lambda run: run.custom_reward_function.path is None,
        "custom_reward_function.path is not given",
    ),
)
_OF_THE_TRAINER: tuple[Idle[RunConfig], ...] = (
    Idle(
        (f"{_ROLLOUT}val_kwargs.*", "trainer.val_before_train"),
        lambda run: not run.data.val_files,
        "data.val_files is not given, so nothing is validated",
    ),
    Idle(
        (*(f"{_ROLLOUT}val_kwargs.*", "data.val_*", "trainer.validation_data_dir", "trainer.log_val_generations"),),
        lambda run: not _validates(run),
        "the run never validates (trainer.test_freq is {trainer.test_freq}, val_before_train is false)",
    ),
    Idle(
        (f"{_ROLLOUT}val_kwargs.temperature", f"{_ROLLOUT}val_kwargs.top_*", f"{_ROLLOUT}val_kwargs.min_p"),
        lambda run: not _policy(run).rollout.val_kwargs.do_sample,
        "rollout.val_kwargs.do_sample is false, so validation is greedy",
    ),
    Idle(
        (f"{_ROLLOUT}val_kwargs.do_sample", f"{_ROLLOUT}val_kwargs.top_*", f"{_ROLLOUT}val_kwargs.min_p"),
        lambda run: _policy(run).rollout.val_kwargs.temperature == 0,
        "rollout.val_kwargs.temperature is 0, so validation is greedy",
    ),
    Idle(
        ("trainer.log_val_generations", "trainer.log_train_generations"),
        lambda run: not SHOWS_CONVERSATIONS & set(run.trainer.logger),
        f"none of trainer.logger shows conversations ({', '.join(sorted(SHOWS_CONVERSATIONS))} do)",
    ),
    Idle(
        ("trainer.profile_tool", "trainer.profile_dir"),
        lambda run: not run.trainer.profile_steps,
        "trainer.profile_steps names no step",
    ),
    Idle(
        ("trainer.total_epochs",),
        lambda run: run.trainer.total_training_steps is not None,
        "trainer.total_training_steps is {trainer.total_training_steps}",
    ),
    Idle(
        (
            *("trainer.max_ckpt_to_keep", "trainer.async_save"),
            *(f"{section}checkpoint.save_contents" for section in (_ACTOR, "critic.")),
        ),
        lambda run: run.trainer.save_freq <= 0,
        "trainer.save_freq is {trainer.save_freq}, so no checkpoint is saved",
    ),
    Idle(
        ("trainer.health.window", "trainer.health.action"),
        _only_alarms_off,
        "every alarm of trainer.health is null",
    ),
    Idle(
        ("data.shuffle",),
        lambda run: run.data.dataset_weights is not None,
        "data.dataset_weights is given, so rows are drawn",
    ),
    Idle(
        ("data.seed",),
        lambda run: not run.data.shuffle and run.data.dataset_weights is None,
        "data.shuffle is false",
    ),
    *schedule(f"{_AR}actor.optim"),
    *schedule("critic.optim"),
)
IDLE_KEYS: tuple[Idle[RunConfig], ...] = (
    *_OF_TRAINING,
    *IDLE_LORA,
    *OF_MICRO_BATCHES,
    *IDLE_REWARD_MODEL_KEYS,
    *OF_THE_MACHINE,
    *IDLE_ENGINE_KEYS,
    *_OF_ROLLOUTS,
    *_OF_THE_TRAINER,
)
"""The first row that fits a key tells why it is idle."""
