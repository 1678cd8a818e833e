"""The training loop: GRPO, PPO and their relatives over agent rollouts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.data_proto import DataProto
from agentrl.errors import AgentRLError, EngineError, FailureBudgetError, text_of
from agentrl.observability.degeneracy import degeneracy_metrics
from agentrl.observability.run_state import RunStateFile
from agentrl.observability.tracker import RunInfo, Tracker
from agentrl.observability.trackers import Trackers, make_trackers
from agentrl.rollout.report import causes_of
from agentrl.timeline import span_here
from agentrl.trainer import batch_columns
from agentrl.trainer import metrics as m
from agentrl.trainer.alarms import make_monitor
from agentrl.trainer.checkpoint import CheckpointManager
from agentrl.trainer.disk_space import Need
from agentrl.trainer.dumps import RolloutDumps
from agentrl.trainer.inputs import prepare
from agentrl.trainer.metrics_page import serve_metrics
from agentrl.trainer.passes import Passes
from agentrl.trainer.processes import RunProcesses
from agentrl.trainer.profiling import StepProfiler
from agentrl.trainer.saving import Saver
from agentrl.trainer.skipped_steps import SkippedSteps, nothing_to_train, without_optimizer_step
from agentrl.trainer.state import TrainerState, seed_everything
from agentrl.trainer.stopping import StopGuard
from agentrl.trainer.tracing import StepTracing
from agentrl.trainer.validation import Validator, conversations, sample_batch

logger = logging.getLogger(__name__)

FREE_TIMEOUT_S = 60.0
"""How long training workers may take to end their last call before the run ends without saving."""


class RayPPOTrainer:
    """Trains a policy on conversations.

    Building it checks everything that can be checked without starting a process.

    Args:
        config: the run.
        trackers: receive the run's events; None: those that `trainer.logger` names.

    Raises:
        UserInputError: the configuration, data, model folder or a plug-in cannot be used.
    """

    def __init__(self, config: RunConfig, trackers: Sequence[Tracker] | None = None) -> None:
        self.config = config
        given = make_trackers(config.trainer.logger) if trackers is None else trackers
        self.inputs = prepare(config)
        self.folder = Path(config.trainer.default_local_dir)
        self.run_state = RunStateFile(self.folder, self.inputs.total_steps)
        self.trackers = Trackers([*given, self.run_state])
        self.checkpoints = CheckpointManager(self.folder, config.trainer.max_ckpt_to_keep)
        controller = batch_columns.make_kl_controller(config.algorithm.kl_ctrl)
        self.state = TrainerState(self.inputs.loader, controller, make_monitor(config.trainer.health))
        self.validator = Validator(
            self.inputs.val_samples,
            n=config.actor_rollout_ref.rollout.val_kwargs.n,
            batch_size=config.data.val_batch_size,
            decode=self.inputs.renderer.decode,
            exact=self.inputs.renderer.encoder.decode,
            dump_folder=Path(folder) if (folder := config.trainer.validation_data_dir) is not None else None,
            show=config.trainer.log_val_generations,
        )
        self.dumps = RolloutDumps(config.trainer.rollout_data_dir, self.inputs.renderer)
        self.profile = StepProfiler(config, self.inputs.total_steps)
        self.tracing = StepTracing(config)
        self.skipped = SkippedSteps(config.trainer.max_skipped_steps)
        self._first_step = 0
        """The last finished step when the run began."""
        self._updating = False
        """An update is under way."""
        self._updates: list[set[int | None]] = []
        """How many the actor and the critic had taken, each of their ranks, when it began."""
        self._early: tuple[DataProto, Passes] | None = None
        """Rollouts, and passes over them that began while the reward model scored them."""

    def fit(self) -> None:
        """Train from the newest checkpoint, or from the start, to the last step.

        However it ends, everything is stopped, and the finished steps are saved where saving is on.

        Raises:
            InfrastructureError: an engine or worker failed for good.
            FailureBudgetError: too many trajectories of a step failed.
            HealthError: an alarm is on, and `trainer.health.action` is `stop`; or `trainer.max_skipped_steps` steps in
                a row changed no weight.
            CheckpointError: a checkpoint cannot be written or read.
            KeyboardInterrupt: Ctrl-C or SIGTERM; a second one stops without saving.
        """
        trainer = self.config.trainer
        seed_everything(trainer.seed)
        with ExitStack() as stack:
            stack.enter_context(self.run_state)
            stack.push(self._close_trackers)
            stack.callback(self.tracing.close)
            watching = stack.enter_context(serve_metrics(trainer, self.trackers))
            self.processes = stack.enter_context(
                RunProcesses(self.config, self.inputs.renderer.vocab_size, self.inputs.total_steps)
            )
            stack.enter_context(watching(self.processes))
            self.guard = stack.enter_context(StopGuard())
            learning, background = self.processes.learning, trainer.async_save
            self.saver = Saver(self.checkpoints, learning, self.state.save, background=background)
            self._resume()
            try:
                if trainer.val_only or (trainer.val_before_train and self.inputs.val_samples and self.state.step == 0):
                    self.trackers.log(self._validate(), self.state.step)
                while self.state.step < self.inputs.total_steps and not trainer.val_only:
                    with self.tracing(self.state.step + 1, self.processes):
                        self._step(self.state.step + 1)
                    self.saver.poll()
                    self.state.health.check()
                    self.skipped.check()
                self.saver.finish()
            except BaseException as error:
                self._save_at_end(error)
                raise

    def _close_trackers(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            self.trackers.close()
        except BaseException as second:
            if error is None:
                raise
            logger.warning("while the run ends: %s", text_of(second))  # and not instead of why it ends

    def _step(self, step: int) -> None:
        """One training step, with validation and saving if due; logged after its update, whatever happens then."""
        timer = m.StageTimer(partial(self.trackers.on_stage, step))
        metrics: m.Metrics = {}
        try:
            with self.profile(step, self.processes.groups):
                self._train(step, timer, metrics)
            self.dumps.write(step)
            last = step == self.inputs.total_steps
            if self.inputs.val_samples and _is_due(self.config.trainer.test_freq, step, last):
                with timer("testing"):
                    metrics |= self._validate()
            if _is_due(self.config.trainer.save_freq, step, last):
                with timer("save_checkpoint"):
                    self._save()
        finally:
            self.dumps.write(step)  # of a step that failed too
            if self.state.step == step:
                self.trackers.log(metrics | m.timing_metrics(timer, metrics, self.processes.num_ranks), step)

    def _train(self, step: int, timer: m.StageTimer, metrics: m.Metrics) -> None:
        """From rows to new weights on the engines; a step that has no token to train on changes nothing."""
        rollouts, kept = self._collect(step, timer, metrics)
        reason = nothing_to_train(rollouts, kept)
        if reason is None:
            batch = self._add_columns(kept, timer, metrics)
            reason = nothing_to_train(rollouts, batch)
        if reason is not None:
            self._finish_step(step, metrics, reason)
            return
        self.dumps.trains_on(kept, batch)
        metrics |= m.reward_metrics(batch)
        learns = step > self.config.trainer.critic_warmup
        with self.guard.deferred():
            self._updates, self._updating = self._count_updates(), True
            updates = self.processes.start_updates(batch, actor=learns)
            for stage in updates.stages:
                with timer(stage), span_here("update", stage):
                    updated = updates.result(stage)
                metrics |= updated.meta_info["metrics"] | batch_columns.after_update(batch, updated)
                self.dumps.updated(updated)
            self.state.weight_version += int(learns)
            # With its new weights the step is finished: should no engine take them, it is not lost.
            self._finish_step(step, metrics, without_optimizer_step(metrics, "actor" if learns else "critic"))
            self._updating = False
            if learns:
                with timer("update_weights"):
                    self._sync_weights()
        metrics |= self.processes.phases.take_seconds()

    def _collect(self, step: int, timer: m.StageTimer, metrics: m.Metrics) -> tuple[DataProto, DataProto]:
        """The rollouts of a step, and those of them that the step trains on."""
        policy = self.config.actor_rollout_ref
        rollouts, batches = self._roll_out(step, timer)
        metrics |= {"rollout/gen_batches": batches}
        metrics |= m.rollout_batch_metrics(rollouts, policy.rollout.prompt_length or self.config.data.max_prompt_length)
        metrics |= degeneracy_metrics(rollouts)
        metrics |= {"training/global_step": step, "training/epoch": self.inputs.loader.epoch}
        self._show_rollouts(rollouts, step)
        with timer("reward"):  # scores were computed while rollouts ran: what is left is to look at them by group
            algorithm, most = self.config.algorithm, self.config.data.train_batch_size
            by = algorithm.filter_metric if algorithm.filter_zero_variance_groups else None
            kept, counts = batch_columns.choose_rows(rollouts, algorithm.filter_zero_variance_groups, most, by)
        metrics |= counts
        return rollouts, kept

    def _add_columns(self, kept: DataProto, timer: m.StageTimer, metrics: m.Metrics) -> DataProto:
        """The batch of an update: log-probs, values and advantages of the rows."""
        config, processes, algorithm = self.config, self.processes, self.config.algorithm
        batch, balance = self._for_workers(kept)
        reasons = list(kept.non_tensor_batch["stop_reason"])
        metrics |= balance | batch_columns.mask_truncated(batch, reasons, algorithm.mask_truncated_completions)
        with timer("old_log_prob"):
            computes, bypass = config.needs_old_log_probs, algorithm.rollout_correction.bypass_old_log_prob
            passes = self._early_passes(kept) or processes.start_columns(batch, old_log_probs=computes)
            if computes or bypass:
                computed = None if bypass else passes.result("old_log_prob")
                metrics |= batch_columns.add_old_log_probs(batch, computed, config)
            else:
                metrics |= batch_columns.skip_old_log_probs(batch)
        if processes.reference is not None:
            with timer("ref"):
                neutral = "old_log_probs" if "old_log_probs" in batch.batch else "rollout_log_probs"
                metrics |= batch_columns.add_finite(batch, passes.result("ref"), "ref_log_prob", instead=neutral)
        if processes.critic is not None:
            with timer("values"):
                metrics |= batch_columns.add_finite(batch, passes.result("values"), "values")
        with timer("adv"):
            metrics |= batch_columns.add_rewards(batch, algorithm, self.state.kl_controller)
            baselines = batch_columns.greedy_baselines(kept)
            batch_columns.add_advantages(batch, list(kept.non_tensor_batch["uid"]), algorithm, baselines)
        return batch

    def _for_workers(self, rows: DataProto) -> tuple[DataProto, m.Metrics]:
        policy = self.config.actor_rollout_ref
        sizes = [group.data_size for group in self.processes.groups]
        mini_batch = policy.actor.ppo_mini_batch_size * policy.rollout.n
        return batch_columns.for_workers(rows, sizes, mini_batch, self.config.trainer.balance_batch)

    def _look_ahead(self, rollouts: DataProto) -> None:
        """Start the passes over rollouts that the reward model, in a pool of its own, still scores."""
        batch, _ = self._for_workers(rollouts)
        computes, beside = self.config.needs_old_log_probs, self.processes.reward_model
        self._early = rollouts, self.processes.start_columns(batch, old_log_probs=computes, beside=beside)

    def _early_passes(self, kept: DataProto) -> Passes | None:
        """Those that `_look_ahead` started, for the rows that the step trains on; None: it did not."""
        early, self._early = self._early, None
        if early is None:
            return None
        rollouts, passes = early
        places = {row: place for place, row in enumerate(rollouts.non_tensor_batch["row"])}
        return passes.keep([places[row] for row in kept.non_tensor_batch["row"]])

    def _finish_step(self, step: int, metrics: m.Metrics, skipped: str | None) -> None:
        """Remember everything as of now; `skipped` says why no weight has changed, None: weights have."""
        metrics |= self.skipped.note(step, skipped)
        metrics |= self.state.health.observe(metrics, step)
        self.state.finish_step(step)

    def _roll_out(self, step: int, timer: m.StageTimer) -> tuple[DataProto, int]:
        """The rollouts of a step, from one batch of prompts, or from several until enough groups have variance."""
        algorithm, n = self.config.algorithm, self.config.actor_rollout_ref.rollout.n
        loader, version = self.inputs.loader, self.state.weight_version
        most = algorithm.max_gen_batches or loader.steps_per_epoch
        parts: list[DataProto] = []
        useful = 0
        wanted = self.config.data.train_batch_size if algorithm.filter_zero_variance_groups else 0
        while not parts or (useful < wanted and len(parts) < most):
            with timer("gen"):
                first = len(parts) * loader.batch_size
                batch = sample_batch(loader.next_batch(), n, step=step, weight_version=version, first_group=first)
                parts.append(self._generate(batch))
            useful += batch_columns.groups_with_variance(parts[-1], algorithm.filter_metric)
        return self.processes.manager.join(parts), len(parts)

    def _generate(self, batch: DataProto) -> DataProto:
        """Roll out; if an engine died meanwhile, restart it and roll out once more."""
        try:
            self.processes.phases.serve(self.state.weight_version)
            rollouts = self.processes.manager.generate_sequences(batch)
        except (EngineError, FailureBudgetError) as error:
            if not self.processes.revive_engines(self.state.weight_version):
                raise
            logger.warning("rolling out again after: %s", error)
            rollouts = self.processes.manager.generate_sequences(batch)
        if self.inputs.model_scorer is not None and self.processes.reward_model is not None:
            # Where groups are left out by their scores, the passes wait for these.
            ahead = self.processes.scores_beside_others and not self.config.algorithm.filter_zero_variance_groups
            ahead = ahead and not batch.meta_info["validate"]
            meanwhile = partial(self._look_ahead, rollouts) if ahead else lambda: None
            rollouts = self.inputs.model_scorer.score(self.processes.reward_model, rollouts, batch, meanwhile)
        failures = rollouts.meta_info["failures"]
        if failures:
            what = "validation" if batch.meta_info["validate"] else "training"
            logger.warning(
                "%s: left out %d of %d trajectories:%s", what, len(failures), len(batch), causes_of(failures)
            )
        return rollouts

    def _sync_weights(self) -> None:
        try:
            self.processes.sync_weights(self.state.weight_version)
        except EngineError:
            if not self.processes.revive_engines(self.state.weight_version):
                raise

    def _validate(self) -> m.Metrics:
        result = self.validator.run(self._generate, self.state.step, self.state.weight_version)
        self.trackers.on_validation(self.state.step, result.conversations)
        return result.metrics

    def _show_rollouts(self, rollouts: DataProto, step: int) -> None:
        self.trackers.on_rollouts(step, rollouts)
        most = self.config.trainer.log_train_generations
        if most > 0:
            self.trackers.on_generations(step, conversations(rollouts, step, self.inputs.renderer.decode, most))
        self.dumps.begin(rollouts)

    def _resume(self) -> None:
        """Load the checkpoint to resume from, if any, and send the weights to the engines."""
        trainer = self.config.trainer
        found = self.checkpoints.find(trainer.resume_mode, trainer.resume_from_path)
        if found is not None:
            self.state.load(found)
            self.processes.load_workers(found)
            self.saver.saved_step = self.state.step if found.parent == self.folder else None
        resumed = None if found is None else self.state.step
        names, config = (trainer.project_name, trainer.experiment_name), self.config.model_dump(mode="json")
        self._first_step = self.state.step
        self.trackers.on_start(RunInfo(*names, self.folder, self.inputs.total_steps, resumed, config))
        self.processes.manager.on_progress = self.trackers.progress()
        self._check_room()
        self._sync_weights()

    def _check_room(self) -> None:
        """Look whether the disks have room for what the rest of the run writes."""
        left, every = self.inputs.total_steps - self.state.step, self.config.trainer.save_freq
        planned = -(-left // every) if every > 0 and not self.config.trainer.val_only else 0
        exports, others = self.processes.files_folder, list[Need]()
        if exports is not None:
            others.append(Need("weights for the engines", exports, self.processes.actor.export_bytes()[0]))
        self.saver.check_room(planned, others)

    def _save(self) -> None:
        """Write a checkpoint of the last finished step. A stop waits for it, so that workers are not killed writing."""
        with self.guard.deferred():
            self.saver.save(self.state.step)

    def _save_at_end(self, error: BaseException) -> None:
        """Save the finished steps before the run ends with `error`, which stays the one that is shown."""
        step, every = self.state.step, self.config.trainer.save_freq
        if every <= 0:
            new = step - self._first_step
            if new:
                logger.warning(
                    "%d finished steps are not saved: trainer.save_freq=%d asks for no checkpoint", new, every
                )
            return
        try:
            if self.saver.under_way and not self.guard.at_once:
                self.processes.wait_until_free(None if isinstance(error, KeyboardInterrupt) else FREE_TIMEOUT_S)
                self.saver.finish()
            if step in (0, self.saver.saved_step):
                return
            reason = self._why_not_save(error)
            if reason is None:
                logger.warning("saving step %d before the run ends", step)
                self._save()
                self.saver.finish()
                return
        except KeyboardInterrupt:
            if step == self.saver.saved_step:
                return
            reason = "it was asked to stop at once"
        except (AgentRLError, OSError, RuntimeError) as second:
            reason = text_of(second)
        logger.warning("step %d is not saved: %s. %s", step, reason.rstrip("."), self.checkpoints.what_remains())

    def _why_not_save(self, error: BaseException) -> str | None:
        """The reason why the last finished step cannot be saved; None: it can.

        Raises:
            WorkerError: a training worker is dead, or does not come back from its last call.
        """
        if self.guard.at_once:
            return "it was asked to stop at once"
        if self.saver.failed:  # not where it is weights for the engines that find no room
            return "its checkpoint cannot be written"
        # After Ctrl-C workers may still compute, which takes as long as it takes: whoever waits may press it again.
        self.processes.wait_until_free(None if isinstance(error, KeyboardInterrupt) else FREE_TIMEOUT_S)
        if self._updating and self._count_updates() != self._updates:
            return "the next update was under way, so that the weights are between two steps"
        return None

    def _count_updates(self) -> list[set[int | None]]:
        """One number for each model: all its ranks have taken as many updates, and whole ones."""
        return [set(counts) for counts in self.processes.count_updates()]


def _is_due(every: int, step: int, last: bool) -> bool:
    return every > 0 and (last or step % every == 0)
