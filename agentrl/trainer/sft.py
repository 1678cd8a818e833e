"""Supervised training: teach a model the shape of a conversation, for example before reinforcement learning starts.

Layout under `trainer.default_local_dir`::

    config.yaml, metrics.jsonl, …     as of a run of `agentrl train`
    global_step_N/                    checkpoints, with the same names as those of `agentrl train`
    huggingface/                      the trained model, after the last step; of LoRA with its adapter merged
    lora_adapter/                     of LoRA: the adapter alone, as peft reads it; checkpoints hold nothing more
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from agentrl.chat.loading import load_renderer
from agentrl.config import dump_config
from agentrl.config.machine import is_cuda
from agentrl.config.sft import Every, SFTConfig
from agentrl.errors import AgentRLError, CheckpointError, ConfigError, DataError, text_of
from agentrl.hub import ADAPTER_FOLDER, model_folder
from agentrl.observability.run_folder import CONFIG_FILE
from agentrl.observability.run_state import RunStateFile
from agentrl.observability.tracker import RunInfo, Tracker
from agentrl.observability.trackers import Trackers, make_trackers
from agentrl.single_controller import ResourcePool, WorkerGroup, cores, create_worker_group
from agentrl.trainer.balance import partition_by_tokens
from agentrl.trainer.checkpoint import DATA_FILE, STATE_FILE, CheckpointManager, load_state, resuming, save_state
from agentrl.trainer.disk_space import Need
from agentrl.trainer.metrics import StageTimer
from agentrl.trainer.saving import Saver
from agentrl.trainer.sft_data import Example, RowOrder, SFTDataset, as_batch
from agentrl.trainer.skipped_steps import SkippedSteps
from agentrl.trainer.stopping import StopGuard
from agentrl.workers.lora import preview
from agentrl.workers.sft import SFTWorker

logger = logging.getLogger(__name__)
MODEL_FOLDER = "huggingface"
FREE_TIMEOUT_S = 60.0
"""How long ranks may take to end their last call before the run ends without saving."""
VALIDATION_ROWS = 512
"""Rows that are sent to the ranks at a time."""


class SFTTrainer:
    """Trains a model on demonstrations.

    Building it checks everything that can be checked before the first step.

    Args:
        config: the run.
        trackers: receive the run's events; None: those that `trainer.logger` names.

    Raises:
        UserInputError: the configuration, data or model cannot be used, or the run folder holds a finished model.
    """

    group: WorkerGroup

    def __init__(self, config: SFTConfig, trackers: Sequence[Tracker] | None = None) -> None:
        self.config = config
        trainer, data, model = config.trainer, config.data, config.model
        given = make_trackers(trainer.logger) if trackers is None else trackers
        self.folder = Path(trainer.default_local_dir)
        self.checkpoints = CheckpointManager(self.folder, trainer.max_ckpt_to_keep)
        self._found = self._checkpoint_to_resume()
        _check_device(trainer.device)
        kwargs, code = data.apply_chat_template_kwargs, model.trust_remote_code
        renderer = load_renderer(model.path, model.tokenizer_path, model.chat_template, kwargs, trust_remote_code=code)
        assert data.train_files is not None
        self.train = SFTDataset(data.train_files, data, renderer, data.train_max_samples)
        self.val = SFTDataset(data.val_files, data, renderer, data.val_max_samples) if data.val_files else None
        self.epoch_steps = max(1, len(self.train) // data.train_batch_size)
        self.total_steps = trainer.total_training_steps or self.epoch_steps * trainer.total_epochs
        self._check_sizes(renderer.name)
        self.run_state = RunStateFile(self.folder, self.total_steps)
        self.trackers = Trackers([*given, self.run_state])
        self.lora = preview(model.path, model, "model", trust_remote_code=code) if model.adapts else None
        self.rows = RowOrder(len(self.train), data.shuffle, trainer.seed)
        self.skipped = SkippedSteps(trainer.max_skipped_steps)
        self.step = 0
        self._updating = False
        """The weights are between two steps."""
        self._sums: dict[str, float] = {}

    def fit(self) -> Path:
        """Train from the newest checkpoint, or from the start, to the last step, and write the model.

        However it ends, everything is stopped, and the finished steps are saved where saving is on.

        Returns:
            The Hugging Face folder of the trained model.

        Raises:
            CheckpointError: a checkpoint or the model cannot be written or read; an earlier model is kept.
            HealthError: `trainer.max_skipped_steps` steps in a row changed no weight.
            WorkerError: a rank died.
            KeyboardInterrupt: Ctrl-C or SIGTERM.
        """
        with ExitStack() as stack:
            self._write_config()
            stack.enter_context(self.run_state)
            stack.callback(self.trackers.close)
            stack.enter_context(_threads_restored())
            self._start_ranks(stack)
            self.guard = stack.enter_context(StopGuard())
            learning, background = [("actor", self.group)], self.config.trainer.async_save
            self.saver = Saver(self.checkpoints, learning, self._write_state, background=background)
            self._resume()
            every = self._steps_between(self.config.trainer.save_freq)
            planned = -(-(self.total_steps - self.step) // every) if every > 0 else 0
            written = Need("the trained model", self.folder, self.group.export_bytes()[0])
            self.saver.check_room(planned, [written])
            try:
                while self.step < self.total_steps:
                    self._step(self.step + 1)
                    self.saver.poll()
                    self.skipped.check()
                self.saver.finish()
            except BaseException as error:
                self._save_at_end(error)
                raise
            return self._write_model()

    def plan(self) -> list[tuple[str, str]]:
        """What will be trained where, as topics and sentences; nothing is started."""
        trainer, data, ranks = self.config.trainer, self.config.data, self.config.trainer.ranks
        tokens = [len(example.ids) for example in self.train.examples]
        learned = sum(sum(example.mask[1:]) for example in self.train.examples)
        rows = f"{len(tokens)} conversations of {max(tokens)} tokens at most; {learned} of {sum(tokens)} are learned"
        begin = "the model folder" if self._found is None else str(self._found)
        return [
            ("rows", rows + (f"; {len(self.val)} for validation" if self.val is not None else "")),
            ("steps", f"{self.total_steps} of {data.train_batch_size} conversations, from {begin}"),
            (
                "ranks",
                f"{ranks} on the {'GPU' if is_cuda(trainer.device) else 'CPU'}, "
                + ("in this process" if ranks == 1 else f"on Ray, {trainer.n_gpus_per_node} per machine"),
            ),
            *([("LoRA", str(self.lora))] if self.lora is not None else []),
            ("writes", str(self.folder / MODEL_FOLDER)),
        ]

    def _checkpoint_to_resume(self) -> Path | None:
        """The checkpoint that the run begins with; None: it begins with the model folder."""
        trainer, final = self.config.trainer, self.folder / MODEL_FOLDER
        found = self.checkpoints.find(trainer.resume_mode, trainer.resume_from_path)
        if found is None and trainer.resume_mode == "auto" and final.exists():
            raise ConfigError(
                f"trainer.default_local_dir: {final} exists already, and the folder has no checkpoint to resume from. "
                "Give another folder, or replace the model with trainer.resume_mode=disable"
            )
        return found

    def _write_config(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / CONFIG_FILE).write_text(dump_config(self.config), encoding="utf-8")
        except OSError as error:
            raise CheckpointError(f"cannot write to {self.folder}: {error.strerror or error}") from error

    def _start_ranks(self, stack: ExitStack) -> None:
        """One rank in this process, several on Ray."""
        trainer, ray = self.config.trainer, self.config.ray_init
        threads = trainer.threads or max(1, cores() // trainer.n_gpus_per_node)
        pool = ResourcePool([trainer.n_gpus_per_node] * trainer.nnodes, is_cuda(trainer.device), threads)
        if trainer.ranks > 1:
            from agentrl.single_controller.ray_runtime import init_ray

            stack.enter_context(init_ray(ray.num_cpus, ray.address, timeline=ray.timeline_json_file))
        backend: Any = "ray" if trainer.ranks > 1 else "local"
        self.group = stack.enter_context(create_worker_group(backend, pool, SFTWorker, self.config))
        self.group.init_model(self.total_steps)

    def _resume(self) -> None:
        trainer = self.config.trainer
        if self._found is not None:
            rows, state = load_state(self._found / DATA_FILE), load_state(self._found / STATE_FILE)
            with resuming(self._found, "agentrl sft"):
                self.step, self._sums = state["global_step"], state["sums"]
                self.rows.load_state_dict(rows)
            self.group.load_checkpoint(str(self._found / "actor"))
            self.saver.saved_step = self.step if self._found.parent == self.folder else None
        resumed = None if self._found is None else self.step
        names, config = (trainer.project_name, trainer.experiment_name), self.config.model_dump(mode="json")
        self.trackers.on_start(RunInfo(*names, self.folder, self.total_steps, resumed, config))
        if self.step >= self.total_steps:
            logger.warning("all %d steps are done already: only the model is written", self.total_steps)
        self._timer = StageTimer()

    def _step(self, step: int) -> None:
        """One optimizer step on one batch; reported, validated and saved if due."""
        self.trackers.on_stage(step, "update")
        with self.guard.deferred():
            self._updating = True
            order = self.rows.take(self.config.data.train_batch_size)
            examples = [self.train.examples[row] for row in order]
            with self._timer("update_actor"):
                metrics = self._on_ranks("update", examples)
            metrics |= {"all_tokens": float(sum(len(example.ids) for example in examples)), "steps": 1.0}
            self.step, self._updating = step, False
            self.skipped.note(step, "its gradient is not finite" if metrics["skipped"] else None)
        self._report(step, metrics)
        if self._is_due(self.config.trainer.save_freq):
            self.trackers.on_stage(step, "save_checkpoint")
            with self._timer("save_checkpoint"):  # a part of the next step's time: this one is reported
                self._save()

    def _on_ranks(self, method: str, examples: Sequence[Example]) -> dict[str, float]:
        """Call a method of the workers with rows; every rank gets about the same number of tokens."""
        batch = as_batch(examples)
        if self.group.data_size > 1:
            lengths = [len(example.ids) for example in examples]
            batch.meta_info["rank_partitions"] = partition_by_tokens(lengths, self.group.data_size)
        metrics: dict[str, float] = getattr(self.group, method)(batch).meta_info["metrics"]
        return metrics

    def _report(self, step: int, metrics: dict[str, float]) -> None:
        """Log the means since the last report, and the validation if one is due."""
        trainer, last = self.config.trainer, step == self.total_steps
        for name in SUMMED:
            self._sums[name] = self._sums.get(name, 0.0) + metrics[name]
        validate = self.val is not None and (last or self._is_due(trainer.test_freq))
        if step % trainer.log_freq and not last and not validate:
            return
        sums, seconds = self._sums, self._timer.metrics()["timing_s/step"]
        report = {
            "train/loss": sums["loss"] / max(sums["tokens"], 1.0),
            "train/accuracy": sums["right"] / max(sums["tokens"], 1.0),
            "train/grad_norm": sums["grad_norm"] / sums["steps"],
            "train/skipped_steps": sums["skipped"],
            "train/lr": metrics["lr"],
            "train/epoch": step * self.config.data.train_batch_size / len(self.train),
            "training/global_step": step,
            "perf/throughput": sums["all_tokens"] / (seconds * self.group.world_size),
            **{name: value for name, value in metrics.items() if name.startswith("perf/")},
        }
        if validate:
            with self._timer("testing"):
                report |= self._validate(step)
        report |= {name: value / sums["steps"] for name, value in self._timer.metrics().items()}
        self.trackers.log(report, step)
        self._sums, self._timer = {}, StageTimer()

    def _validate(self, step: int) -> dict[str, float]:
        assert self.val is not None
        self.trackers.on_stage(step, "testing")
        sums = {"loss": 0.0, "right": 0.0, "tokens": 0.0}
        for first in range(0, len(self.val), VALIDATION_ROWS):
            part = self._on_ranks("evaluate", self.val.examples[first : first + VALIDATION_ROWS])
            sums = {name: value + part[name] for name, value in sums.items()}
        return {
            "val/loss": sums["loss"] / max(sums["tokens"], 1.0),
            "val/accuracy": sums["right"] / max(sums["tokens"], 1.0),
        }

    def _is_due(self, every: Every) -> bool:
        steps = self._steps_between(every)
        return steps > 0 and (self.step == self.total_steps or self.step % steps == 0)

    def _steps_between(self, every: Every) -> int:
        return self.epoch_steps if every == "after_each_epoch" else every

    def _save(self) -> None:
        """Write a checkpoint. A stop waits for it, so that ranks are not killed writing."""
        with self.guard.deferred():
            self.saver.save(self.step)

    def _write_state(self, folder: Path) -> None:
        save_state(folder / DATA_FILE, self.rows.state_dict())
        save_state(folder / STATE_FILE, {"global_step": self.step, "sums": self._sums})

    def _save_at_end(self, error: BaseException) -> None:
        """Save the finished steps before the run ends with `error`, which stays the one that is shown."""
        saves = self.config.trainer.save_freq
        if (saves != "after_each_epoch" and saves <= 0) or self.step in (0, self.saver.saved_step):
            return
        reason = "its checkpoint cannot be written" if isinstance(error, CheckpointError) else None
        reason = "an update was under way, so that the weights are between two steps" if self._updating else reason
        try:
            if reason is None or self.saver.under_way:
                self.group.wait_until_free(None if isinstance(error, KeyboardInterrupt) else FREE_TIMEOUT_S)
            self.saver.finish()
            if self.step == self.saver.saved_step:
                return
            if reason is None:
                logger.warning("saving step %d before the run ends", self.step)
                self._save()
                self.saver.finish()
                return
        except (AgentRLError, OSError, RuntimeError, KeyboardInterrupt) as second:
            if self.step == self.saver.saved_step:
                return
            reason = reason or text_of(second) or "it was asked to stop at once"
        logger.warning("step %d is not saved: %s. %s", self.step, reason.rstrip("."), self.checkpoints.what_remains())

    def _write_model(self) -> Path:
        """Write the model under a temporary name, then rename it: a half-written folder is never loaded."""
        final, part = self.folder / MODEL_FOLDER, self.folder / f".{MODEL_FOLDER}.part"
        old = self.folder / f".{MODEL_FOLDER}.old"
        try:
            for leftover in (part, old):
                shutil.rmtree(leftover, ignore_errors=True)
            self.group.export_hf(str(part))
            if self.config.model.adapts:
                self.group.export_adapter(str(self.folder / ADAPTER_FOLDER))
            if final.exists():
                os.replace(final, old)
            os.replace(part, final)
        except (OSError, CheckpointError) as error:
            shutil.rmtree(part, ignore_errors=True)
            raise CheckpointError(f"cannot write the trained model to {final}: {error}") from error
        shutil.rmtree(old, ignore_errors=True)
        return final

    def _check_sizes(self, name: str) -> None:
        """Refuse conversations that are longer than the model's positions; tell of batches larger than the rows."""
        from transformers import AutoConfig

        model, size = self.config.model, self.config.data.train_batch_size
        config = AutoConfig.from_pretrained(str(model_folder(model.path)), trust_remote_code=model.trust_remote_code)
        most = getattr(config, "max_position_embeddings", None)
        longest = max(len(example.ids) for example in self.train.examples)
        if most is not None and longest > most:
            files = ", ".join(self.train.files)
            raise DataError(files, None, None, f"a conversation of {longest} tokens", f"at most {most}, as {name} has")
        if size > len(self.train):
            logger.warning(
                "data.train_batch_size is %d, but there are only %d rows: a step takes rows more than once",
                *(size, len(self.train)),
            )


SUMMED = ("loss", "right", "tokens", "grad_norm", "skipped", "all_tokens", "steps")
"""What is added up over the steps of a report."""


def run_sft(config: SFTConfig, trackers: Sequence[Tracker] | None = None) -> Path:
    """Run supervised training; see `SFTTrainer`.

    Returns:
        The Hugging Face folder of the trained model.
    """
    return SFTTrainer(config, trackers).fit()


def _check_device(name: str) -> None:
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("trainer.device: got 'cuda', but torch finds no CUDA device here; use auto or cpu")


@contextmanager
def _threads_restored() -> Iterator[None]:
    """Give this process its CPU threads back: a rank in it takes those of the run."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
