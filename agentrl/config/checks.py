"""Combinations of values that cannot work, one function each. `CHECKS` at the end is the list of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from agentrl.config.algorithm_checks import check_algorithms
from agentrl.config.chosen import GROUP_ESTIMATORS
from agentrl.config.lora_checks import check_lora
from agentrl.config.machine_checks import MACHINE_CHECKS
from agentrl.config.parallel_checks import check_parallel
from agentrl.config.reward_checks import REWARD_CHECKS
from agentrl.config.reward_model_checks import check_reward_model
from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError, UserInputError, suggest
from agentrl.files import find_file

Problems = Iterator[str]

TOKEN_ESTIMATORS = frozenset({"gae", "reinforce_plus_plus", "remax"})
"""Advantage estimators whose result depends on the token that a reward is placed on."""


def check_required(config: RunConfig) -> Problems:
    """A model and rows are given."""
    if not config.actor_rollout_ref.model.path:
        yield "actor_rollout_ref.model.path: not given, wanted a model folder"
    if not config.data.train_files and not config.trainer.val_only:
        yield "data.train_files: not given, wanted a parquet file, a list of files or a glob"


def check_files(config: RunConfig) -> Problems:
    """Files that the run names exist."""
    rollout = config.actor_rollout_ref.rollout
    named = {
        "actor_rollout_ref.rollout.multi_turn.tool_config_path": rollout.multi_turn.tool_config_path,
        "actor_rollout_ref.rollout.multi_turn.interaction_config_path": rollout.multi_turn.interaction_config_path,
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": rollout.agent.agent_loop_config_path,
    }
    for name, tools in rollout.multi_turn.tool_envs.items():
        named[f"actor_rollout_ref.rollout.multi_turn.tool_envs.{name}"] = tools
    score = config.custom_reward_function.path
    if score is not None and score.endswith(".py"):  # else a dotted module
        named["custom_reward_function.path"] = score
    for key, path in named.items():
        try:
            if path is not None:
                find_file(path)
        except ConfigError as error:
            yield f"{key}: {error}"


def check_names(config: RunConfig) -> Problems:
    """The names of trackers are known."""
    from agentrl.observability.trackers import make_trackers

    try:
        make_trackers(config.trainer.logger)
    except ConfigError as error:
        yield from error.problems


def check_plugins(config: RunConfig) -> Problems:
    """The tool-call format and the default agent loop exist."""
    from agentrl.plugins import load_agent_loops, resolve

    rollout = config.actor_rollout_ref.rollout
    try:
        resolve("tool_parsers", rollout.multi_turn.format)
    except UserInputError as error:
        yield f"actor_rollout_ref.rollout.multi_turn.format: {error}"
    path = rollout.agent.agent_loop_config_path
    if path is not None and not os.path.exists(path):
        return  # `check_files` says so
    try:
        loops = load_agent_loops(path)
    except UserInputError as error:
        yield f"actor_rollout_ref.rollout.agent.agent_loop_config_path: {error}"
        return
    name = rollout.agent.default_agent_loop
    if name not in loops:
        yield f"actor_rollout_ref.rollout.agent.default_agent_loop: got '{name}'.{suggest(name, loops)}"


def check_search(config: RunConfig) -> Problems:
    """A run that searches has something to search in."""
    if config.do_search and config.searches and not config.has_tools:
        yield (
            "do_search: got true, but the run has no tool to search with: set retriever.url, or "
            "actor_rollout_ref.rollout.multi_turn.tool_config_path to a YAML with a tool named search"
        )
    url = config.retriever.url
    if url is not None and not url.startswith(("http://", "https://")):
        yield f"retriever.url: got '{url}', wanted http://host:port"


def check_reward_manager(config: RunConfig) -> Problems:
    """A reward manager of the user's own has a place and a name."""
    own, module = config.reward_manager, config.reward_manager.module
    if own.source == "importlib":
        named = module.name or own.name
        for key, value, wanted in (("path", module.path, "a Python file or module"), ("name", named, "a class")):
            if not value:
                yield f"reward_manager.module.{key}: not given, wanted {wanted}: reward_manager.source is importlib"
        if module.path is not None and module.path.endswith(".py"):
            try:
                find_file(module.path)
            except ConfigError as error:
                yield f"reward_manager.module.path: {error}"


def check_validation(config: RunConfig) -> Problems:
    """Settings of validation have rows to act on."""
    if config.data.val_files:
        return
    trainer = config.trainer
    given = {
        "trainer.val_only": trainer.val_only,
        "trainer.test_freq": trainer.test_freq > 0,
        "trainer.validation_data_dir": trainer.validation_data_dir is not None,
        "trainer.log_val_generations": trainer.log_val_generations > 0,
        "data.val_batch_size": config.data.val_batch_size is not None,
        "data.val_max_samples": config.data.val_max_samples >= 0,
    }
    for key, asked in given.items():
        if asked:
            fix = ": give it, or set trainer.test_freq=-1 to never validate" if key == "trainer.test_freq" else ""
            yield f"{key}: needs validation rows, but data.val_files is not given{fix}"


def check_dataset_weights(config: RunConfig) -> Problems:
    """Every training file has a weight."""
    weights, files = config.data.dataset_weights, config.data.train_files
    if weights is None or not files:
        return
    count = 1 if isinstance(files, str) else len(files)
    if len(weights) != count and not any("*" in file for file in ([files] if isinstance(files, str) else files)):
        yield f"data.dataset_weights: got {len(weights)} weights for {count} files in data.train_files, wanted one each"
    if min(weights, default=0) < 0 or not sum(weights) > 0:
        yield f"data.dataset_weights: got {weights}, wanted weights of at least 0, at least one of them above 0"


def check_batches(config: RunConfig) -> Problems:
    """A mini-batch is not larger than the batch; more prompts than a batch are rolled out only to be chosen from."""
    size, rolled_out = config.data.train_batch_size, config.data.rollout_batch_size
    if rolled_out != size and not config.algorithm.filter_zero_variance_groups and not config.trainer.val_only:
        yield (
            f"data.gen_batch_size: got {rolled_out}, but data.train_batch_size is {size}, and a step trains on every "
            "prompt that it rolls out: leave it out, or set algorithm.filter_zero_variance_groups=true"
        )
    mini = {"actor_rollout_ref.actor.ppo_mini_batch_size": config.actor_rollout_ref.actor.ppo_mini_batch_size}
    if config.needs_critic and config.critic.ppo_mini_batch_size is not None:
        mini["critic.ppo_mini_batch_size"] = config.critic.ppo_mini_batch_size
    for key, value in mini.items():
        if value > size:
            yield f"{key}: got {value}, wanted at most data.train_batch_size ({size})"


def check_micro_batches(config: RunConfig) -> Problems:
    """If micro-batches are not split by tokens, their number of rows is given."""
    policy = config.actor_rollout_ref
    sections = {
        "actor_rollout_ref.actor": (policy.actor.use_dynamic_bsz, policy.actor.ppo_micro_batch_size_per_gpu, ""),
        "actor_rollout_ref.rollout": (
            policy.rollout.log_prob_use_dynamic_bsz,
            policy.rollout.log_prob_micro_batch_size_per_gpu,
            "log_prob_",
        ),
    }
    if config.needs_reference:
        ref = policy.ref
        sections["actor_rollout_ref.ref"] = (
            ref.log_prob_use_dynamic_bsz,
            ref.log_prob_micro_batch_size_per_gpu,
            "log_prob_",
        )
    if config.needs_critic:
        sections["critic"] = (config.critic.use_dynamic_bsz, config.critic.ppo_micro_batch_size_per_gpu, "")
    for key, (dynamic, rows, prefix) in sections.items():
        if not dynamic and rows is None:
            name = f"{prefix or 'ppo_'}micro_batch_size_per_gpu"
            yield f"{key}.{name}: not given, but needed because {key}.{prefix}use_dynamic_bsz is false"


def check_group_size(config: RunConfig) -> Problems:
    """Estimators that compare the rollouts of a prompt have at least two of them."""
    name, n = config.algorithm.adv_estimator, config.actor_rollout_ref.rollout.n
    if name in GROUP_ESTIMATORS and n < 2 and not config.trainer.val_only:
        yield f"actor_rollout_ref.rollout.n: got {n}, wanted at least 2: adv_estimator {name} compares rollouts"
    elif config.algorithm.filter_zero_variance_groups and n < 2 and not config.needs_greedy_rollouts:
        yield (
            f"algorithm.filter_zero_variance_groups: got true, but with actor_rollout_ref.rollout.n {n} no group has "
            "any variance, so every row would be left out"
        )


def check_critic(config: RunConfig) -> Problems:
    """Whether there is a critic is for the estimator to say; it warms up only where there is one."""
    name, enable = config.algorithm.adv_estimator, config.critic.enable
    if enable is not None and enable != config.needs_critic:
        which = "has a critic" if config.needs_critic else "has no critic: set algorithm.adv_estimator=gae"
        yield f"critic.enable: got {str(enable).lower()}, but algorithm.adv_estimator {name} {which}"
    if config.trainer.critic_warmup > 0 and not config.needs_critic:
        yield f"trainer.critic_warmup: got {config.trainer.critic_warmup}, but adv_estimator {name} has no critic"


def check_kl(config: RunConfig) -> Problems:
    """An adaptive KL weight is used with a KL in the reward."""
    if config.algorithm.kl_ctrl.type == "adaptive" and not config.algorithm.use_kl_in_reward:
        yield "algorithm.kl_ctrl.type: got 'adaptive', but algorithm.use_kl_in_reward is false: no KL to control"


def check_old_log_probs(config: RunConfig) -> Problems:
    """Rollout log-probs replace old ones only if they belong to the distribution that tokens were sampled from."""
    correction, rollout = config.algorithm.rollout_correction, config.actor_rollout_ref.rollout
    if not correction.bypass_old_log_prob:
        return
    key = "algorithm.rollout_correction.bypass_old_log_prob"
    neutral = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    for name, value in neutral.items():
        if getattr(rollout, name) != value:
            yield (
                f"{key}: got true, but engines report log-probs before truncation, so with "
                f"actor_rollout_ref.rollout.{name} {getattr(rollout, name)} they do not belong to the distribution "
                "that was sampled from"
            )
    if correction.is_level is not None and correction.loss_type == "ppo_clip":
        yield (
            f"{key}: got true, so algorithm.rollout_correction.is_level has nothing to correct: the ratio of the loss "
            "is policy / rollout already. Unset one of the two, or set loss_type=reinforce"
        )


def check_rollout_correction(config: RunConfig) -> Problems:
    """Kinds of rejection are known, and thresholds fit them."""
    from agentrl.algorithms import REJECTION_KINDS

    section, correction = "algorithm.rollout_correction", config.algorithm.rollout_correction
    unknown = [kind for kind in correction.kinds if kind not in REJECTION_KINDS]
    for kind in unknown:
        yield f"{section}.rollout_rs: got '{kind}'.{suggest(kind, REJECTION_KINDS)}"
    for key, problem in correction.problems():
        if not (unknown and key == "rollout_rs_threshold"):
            yield f"{section}.{key}: {problem}"


def check_validation_sampling(config: RunConfig) -> Problems:
    """Several validation rollouts of a prompt are sampled, so that they can differ."""
    kwargs = config.actor_rollout_ref.rollout.val_kwargs
    if kwargs.n > 1 and (not kwargs.do_sample or kwargs.temperature == 0):
        yield (
            f"actor_rollout_ref.rollout.val_kwargs.n: got {kwargs.n}, but greedy rollouts are all equal: set "
            "val_kwargs.do_sample=true and a temperature above 0"
        )


def check_resume(config: RunConfig) -> Problems:
    """`resume_path` and its path are given together."""
    yield from resume_problems(config.trainer.resume_mode, config.trainer.resume_from_path)


def resume_problems(mode: str, path: str | None) -> Problems:
    """What does not fit together in `trainer.resume_mode` and `resume_from_path`."""
    if mode == "resume_path" and not path:
        yield "trainer.resume_from_path: not given, but trainer.resume_mode is resume_path"
    if mode != "resume_path" and path:
        yield f"trainer.resume_from_path: given, but trainer.resume_mode is {mode}, not resume_path"


def check_tool_cache(config: RunConfig) -> Problems:
    """A folder for recorded tool results is given."""
    cache = config.actor_rollout_ref.rollout.multi_turn.tool_cache
    if cache.mode != "off" and not cache.path:
        key = "actor_rollout_ref.rollout.multi_turn.tool_cache.path"
        yield f"{key}: not given, wanted a folder for `mode: {cache.mode}`"


def check_combine(config: RunConfig) -> Problems:
    """Some reward has a weight, and rewards are placed on turns only if the estimator looks at single tokens."""
    combine, estimator = config.reward_model.combine, config.algorithm.adv_estimator
    if combine.outcome == combine.turn == combine.tool == 0 and not config.reward_model.scores_by_model:
        yield "reward_model.combine: outcome, turn and tool are all 0, wanted at least one weight that is not 0"
    if combine.level == "turn" and estimator in GROUP_ESTIMATORS:  # one of the user's own gets the tokens' rewards
        yield (
            f"reward_model.combine.level: turn has no effect with algorithm.adv_estimator {estimator}, which uses only "
            f"a trajectory's sum: set level to trajectory, or the estimator to {' or '.join(sorted(TOKEN_ESTIMATORS))}"
        )


CHECKS: tuple[Callable[[RunConfig], Problems], ...] = (
    check_required,
    check_files,
    check_algorithms,
    check_names,
    check_plugins,
    check_search,
    check_reward_manager,
    check_validation,
    check_dataset_weights,
    check_batches,
    check_micro_batches,
    check_group_size,
    check_critic,
    check_kl,
    check_old_log_probs,
    check_rollout_correction,
    check_validation_sampling,
    check_resume,
    check_tool_cache,
    check_combine,
    *REWARD_CHECKS,
    check_lora,
    check_parallel,
    check_reward_model,
    *MACHINE_CHECKS,
)
