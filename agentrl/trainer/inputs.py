"""Loads and checks everything that a run needs before it starts: tokenizer, rows, plug-ins."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.chat.probe import probe_template
from agentrl.chat.renderer import ChatRenderer
from agentrl.config import RunConfig, check_run_config, note_idle
from agentrl.config.lora_checks import POLICY
from agentrl.data.dataset import RLHFDataset
from agentrl.data.loader import StatefulLoader
from agentrl.errors import ConfigError, PictureError, PluginError
from agentrl.hub import check_model
from agentrl.placement.of_run import check_places
from agentrl.rollout.setup import RolloutSetup
from agentrl.trainer.batch_columns import truncates_sampling
from agentrl.trainer.checkpoint import CheckpointManager
from agentrl.trainer.folders import check_folders, output_folders
from agentrl.trainer.model_scores import ModelScorer
from agentrl.trainer.row_keys import RowUse
from agentrl.trainer.shown_pictures import ShownPictures, check_seeing_model
from agentrl.types import Sample
from agentrl.workers.lora import LoraCounts, preview

_SHOWN_ROWS = 5
"""At most this many rows that cannot be scored are named."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunInputs:
    """Checked inputs of a run."""

    renderer: ChatRenderer
    loader: StatefulLoader
    val_samples: list[Sample]
    total_steps: int
    model_scorer: ModelScorer | None = None
    """Scores rollouts with the reward model; None: the run has none."""
    pictures: ShownPictures = field(default_factory=lambda: ShownPictures())
    """What the rows show besides text."""
    prompt_lengths: list[int] = field(default_factory=list)
    """Tokens of the prompts that are trained on."""


def prepare(config: RunConfig) -> RunInputs:
    """Load and check the inputs of a run; nothing is started.

    Raises:
        UserInputError: the configuration, the model folder, a row or a plug-in cannot be used.
    """
    check_run_config(config)
    check_places(config)
    _check_trainer(config)
    check_folders(output_folders(config))
    trainer = config.trainer
    CheckpointManager(Path(trainer.default_local_dir)).check(trainer.resume_mode, trainer.resume_from_path)
    setup = RolloutSetup.load(config)
    check_seeing_model(config, setup.renderer.vision)
    _check_models(config)
    model_scorer = ModelScorer.load(config, setup.renderer)
    tools = setup.tools or next(iter(setup.tool_envs.values()), [])
    after = [*(["tool"] if tools else []), *(["user"] if setup.interactions else [])]
    report = probe_template(setup.renderer, [tool.schema for tool in tools] or None, after)
    if report.message:
        logger.warning("%s", report.message)
    use, val_only, pictures = RowUse(setup), config.trainer.val_only, ShownPictures(config, setup.renderer.vision)
    train_files = config.data.train_files or config.data.val_files or []
    lengths: list[int] = []
    seen = None if val_only else use
    train = _load_rows(train_files, config.data.train_max_samples, setup, seen, pictures, lengths)
    val_samples = _validation_samples(setup, use, pictures)
    pictures.check()
    _check_use(config, use, _unread_variables(config, setup.renderer.template))
    batch_size = min(config.data.rollout_batch_size, len(train)) if val_only else config.data.rollout_batch_size
    data = config.data
    key = "data.train_batch_size" if data.gen_batch_size is None else "data.gen_batch_size"
    loader = StatefulLoader(train, batch_size, data.shuffle, data.seed, data.dataset_weights, key)
    return RunInputs(setup.renderer, loader, val_samples, _total_steps(config, loader), model_scorer, pictures, lengths)


def _check_models(config: RunConfig) -> None:
    """Look at the folders of the models that the run loads; the policy's tokenizer was loaded already.

    Raises:
        ConfigError: a path is no model.
    """
    models = {"actor_rollout_ref.model.path": config.actor_rollout_ref.model.path}
    if config.needs_critic and not config.trainer.val_only:
        models["critic.model.path"] = config.critic.model.path
    for key, path in models.items():
        try:
            if path:
                check_model(path)
        except ConfigError as error:
            raise ConfigError(f"{key}: {error}") from error
    lora_counts(config)


def lora_counts(config: RunConfig) -> dict[str, LoraCounts]:
    """What learns in each model that has LoRA, by its section; nothing is read but the models' configurations.

    Raises:
        ConfigError: no adapter can be built as the keys say.
    """
    policy, found = config.actor_rollout_ref.model, {}
    if policy.adapts:
        found[POLICY] = preview(policy.path, policy, POLICY, trust_remote_code=policy.trust_remote_code)
    critic = config.critic.model
    if config.needs_critic and not config.trainer.val_only and critic.adapts:
        path, code = critic.path or policy.path, critic.trust_remote_code
        found["critic.model"] = preview(path, critic, "critic.model", head=False, trust_remote_code=code)
    return found


def _check_trainer(config: RunConfig) -> None:
    if not config.needs_old_log_probs and not config.algorithm.rollout_correction.bypass_old_log_prob:
        logger.info("a batch is one optimizer step, so its own log-probs are the old ones: a forward pass less")
    cut = truncates_sampling(config.actor_rollout_ref.rollout)
    if cut and not config.trainer.val_only:
        logger.info(
            "sampling is truncated (%s): the engine's log-probs are not those of the distribution that it samples "
            "from, so the trainer computes old log-probs itself",
            ", ".join(cut),
        )


def _unread_variables(config: RunConfig, template: str) -> dict[str, str]:
    """Variables for the chat template that do not occur in its text, with the reason why they do nothing."""
    key, reason = "data.apply_chat_template_kwargs", "the chat template has no such variable"
    names = config.data.apply_chat_template_kwargs
    return {f"{key}.{name}": reason for name in names if re.search(rf"\b{re.escape(name)}\b", template) is None}


def _check_use(config: RunConfig, use: RowUse, unread: dict[str, str]) -> None:
    """Refuse rewards that no row can earn, and note keys that act on no row.

    Args:
        config: the run.
        use: what its rows use.
        unread: parts of keys that nothing reads, with the reason.

    Raises:
        ConfigError: every reward would be 0.
    """
    problems = list(use.problems(config))
    if problems:
        raise ConfigError(problems)
    note_idle(config, use.idle_keys(), use.idle_parts() | unread)


def _load_rows(
    files: str | list[str],
    max_samples: int,
    setup: RolloutSetup,
    use: RowUse | None,
    pictures: ShownPictures,
    lengths: list[int] | None = None,
) -> RLHFDataset:
    """Read rows and check each: its cells, its routing, its ground truth and the length of its prompt.

    Args:
        files: parquet files.
        max_samples: see `RLHFDataset`.
        setup: of the run.
        use: is shown every row that the run rolls out.
        pictures: counts and limits those of the rows.
        lengths: gets the tokens of each prompt that is not too long.
    """
    config = setup.config
    dataset = RLHFDataset(files, config.data, max_samples, sees_pictures=setup.renderer.vision is not None)
    unscorable: list[str] = []

    def count_tokens(sample: Sample) -> int:
        try:
            setup.check_rows([sample])
        except PluginError as error:  # the row's number is that in all files
            named = re.sub(rf"^row {sample.index}\b", lambda _: dataset.place(sample), str(error), flags=re.MULTILINE)
            raise PluginError(named) from error
        if (problem := setup.truth_problem(sample)) is not None:
            unscorable.append(f"{dataset.place(sample)}: {problem}")
        if use is not None:
            use.see(sample)
        try:
            count = len(setup.prompt_ids(sample))
        except PictureError as error:
            raise PictureError(f"{dataset.place(sample)}: {error}") from error
        pictures.see(sample, count, dataset.place(sample))
        if lengths is not None and count <= setup.limits.prompt_length:
            lengths.append(count)
        return count

    dataset.filter_overlong(count_tokens, setup.limits.prompt_length, config.data.filter_overlong_prompts)
    if unscorable:
        more = len(unscorable) - _SHOWN_ROWS
        raise PluginError("\n".join([*unscorable[:_SHOWN_ROWS], *([f"and {more} more rows"] if more > 0 else [])]))
    return dataset


def _validation_samples(setup: RolloutSetup, use: RowUse, pictures: ShownPictures) -> list[Sample]:
    data, trainer = setup.config.data, setup.config.trainer
    if not data.val_files or not (trainer.test_freq > 0 or trainer.val_before_train or trainer.val_only):
        return []
    rows = _load_rows(data.val_files, data.val_max_samples, setup, use, pictures)
    return [rows[position] for position in range(len(rows))]


def _total_steps(config: RunConfig, loader: StatefulLoader) -> int:
    return config.trainer.total_training_steps or config.trainer.total_epochs * loader.steps_per_epoch
