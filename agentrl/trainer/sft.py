"""Supervised warm start: teach a model the shape of a conversation before reinforcement learning starts."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from agentrl.chat.loading import load_renderer
from agentrl.config import dump_config
from agentrl.config.actor import ModelConfig
from agentrl.config.sft import SFTConfig
from agentrl.errors import CheckpointError, ConfigError, DataError
from agentrl.observability.tracker import RunInfo, Tracker
from agentrl.observability.trackers import Trackers, make_trackers
from agentrl.trainer.muon import build_optimizers
from agentrl.trainer.sft_data import Example, SFTBatch, SFTDataset, draw_rows, make_batches
from agentrl.workers.export import write_hf_folder
from agentrl.workers.loading import load_causal_lm
from agentrl.workers.optim import learning_rate

logger = logging.getLogger(__name__)
MODEL_FOLDER = "huggingface"


class SFTTrainer:
    """Trains a model on demonstrations, in one process.

    Building it checks everything that can be checked before the first step.

    Args:
        config: the run.
        trackers: receive the run's events; None: those that `trainer.logger` names.

    Raises:
        UserInputError: the configuration, data or model folder cannot be used.
    """

    def __init__(self, config: SFTConfig, trackers: Sequence[Tracker] | None = None) -> None:
        self.config = config
        self.trackers = Trackers(make_trackers(config.trainer.logger) if trackers is None else trackers)
        self.device = _choose_device(config.trainer.device)
        self.folder = Path(config.trainer.default_local_dir)
        self._source = ModelConfig(
            path=config.model.path,
            tokenizer_path=config.model.tokenizer_path,
            chat_template=config.model.chat_template,
            enable_gradient_checkpointing=config.model.enable_gradient_checkpointing,
            trust_remote_code=config.model.trust_remote_code,
        )
        renderer = load_renderer(
            config.model.path,
            config.model.tokenizer_path,
            config.model.chat_template,
            config.data.apply_chat_template_kwargs,
            trust_remote_code=config.model.trust_remote_code,
        )
        assert config.data.train_files is not None
        self.train = SFTDataset(config.data.train_files, config.data, renderer)
        self.val = SFTDataset(config.data.val_files, config.data, renderer) if config.data.val_files else None
        per_epoch = max(1, len(self.train) // config.data.train_batch_size)
        self.total_steps = config.trainer.total_training_steps or per_epoch * config.trainer.total_epochs
        self._check_length(renderer.name)

    def fit(self) -> Path:
        """Train to the last step and write the model.

        Returns:
            The Hugging Face folder of the trained model.

        Raises:
            CheckpointError: it cannot be written; an earlier model is kept.
        """
        with ExitStack() as stack:
            stack.callback(self.trackers.close)
            stack.enter_context(_threads(self.config.trainer.threads))
            self._start()
            for step in range(1, self.total_steps + 1):
                metrics = self._step(step)
                self._report(step, metrics)
            return self._save()

    def _start(self) -> None:
        trainer = self.config.trainer
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "config.yaml").write_text(dump_config(self.config), encoding="utf-8")
        except OSError as error:
            raise CheckpointError(f"cannot write to {self.folder}: {error.strerror or error}") from error
        self.model = load_causal_lm(self._source, torch.float32, "sdpa").to(self.device).train()
        self._optimizers = build_optimizers(self.model, self.config.optim)
        data = self.config.data
        self._rows = draw_rows(len(self.train), data.train_batch_size, data.shuffle, trainer.seed)
        self._sums: dict[str, float] = {}
        self._since = time.perf_counter()
        names, config = (trainer.project_name, trainer.experiment_name), self.config.model_dump(mode="json")
        self.trackers.on_start(RunInfo(*names, self.folder, self.total_steps, config=config))

    def _step(self, step: int) -> dict[str, float]:
        """One optimizer step on one batch; sums over its tokens, to be divided by `tokens`."""
        examples = [self.train.examples[row] for row in next(self._rows)]
        tokens = sum(sum(example.mask[1:]) for example in examples)
        loss = right = 0.0
        for batch in self._batches(examples):
            batch_loss, batch_right = self._loss(batch)
            torch.autograd.backward(batch_loss / max(tokens, 1))
            loss += float(batch_loss.detach())
            right += float(batch_right)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optim.grad_clip)
        finite = bool(norm.isfinite())
        scale = learning_rate(self.config.optim, step - 1, self.total_steps) / self.config.optim.lr
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * scale
            if finite:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {
            "loss": loss,
            "right": right,
            "tokens": tokens,
            "all_tokens": sum(len(example.ids) for example in examples),
            "grad_norm": float(norm) if finite else 0.0,
            "skipped": float(not finite),
            "steps": 1.0,
            "lr": scale * self.config.optim.lr,
        }

    def _report(self, step: int, metrics: dict[str, float]) -> None:
        """Log the means since the last report, and the validation if one is due."""
        trainer = self.config.trainer
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        validate = self.val is not None and (
            step == self.total_steps or (trainer.test_freq > 0 and step % trainer.test_freq == 0)
        )
        if step % trainer.log_freq and step != self.total_steps and not validate:
            return
        sums, seconds = self._sums, time.perf_counter() - self._since
        report = {
            "train/loss": sums["loss"] / max(sums["tokens"], 1.0),
            "train/accuracy": sums["right"] / max(sums["tokens"], 1.0),
            "train/grad_norm": sums["grad_norm"] / sums["steps"],
            "train/skipped_steps": sums["skipped"],
            "train/lr": metrics["lr"],
            "perf/throughput": sums["all_tokens"] / seconds,
            "timing_s/step": seconds / sums["steps"],
        }
        if validate:
            report |= self._validate()
        self.trackers.log(report, step)
        self._sums, self._since = {}, time.perf_counter()

    def _validate(self) -> dict[str, float]:
        assert self.val is not None
        loss = right = tokens = 0.0
        with torch.no_grad():
            for batch in self._batches(self.val.examples):
                batch_loss, batch_right = self._loss(batch)
                loss, right, tokens = loss + float(batch_loss), right + float(batch_right), tokens + len(batch.labels)
        return {"val/loss": loss / max(tokens, 1.0), "val/accuracy": right / max(tokens, 1.0)}

    def _batches(self, examples: Sequence[Example]) -> Iterator[SFTBatch]:
        return (batch.to(self.device) for batch in make_batches(examples, self.config.data.max_token_len))

    def _loss(self, batch: SFTBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Summed cross entropy of the labels, and how many of them are the model's most likely token."""
        with self._autocast():
            hidden = self.model.base_model(input_ids=batch.input_ids, use_cache=False).last_hidden_state
            logits = self.model.get_output_embeddings()(hidden.flatten(0, 1)[batch.sources]).float()
        loss = functional.cross_entropy(logits, batch.labels, reduction="sum")
        return loss, (logits.argmax(-1) == batch.labels).sum()

    def _autocast(self) -> Any:
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()

    def _save(self) -> Path:
        """Write the model under a temporary name, then rename it: a half-written folder is never loaded."""
        final, part = self.folder / MODEL_FOLDER, self.folder / f".{MODEL_FOLDER}.part"
        old = self.folder / f".{MODEL_FOLDER}.old"
        try:
            for leftover in (part, old):
                shutil.rmtree(leftover, ignore_errors=True)
            weights = {name: tensor.detach().cpu() for name, tensor in self.model.state_dict().items()}
            write_hf_folder(part, self.model, weights, self._source)
            if final.exists():
                os.replace(final, old)
            os.replace(part, final)
        except (OSError, CheckpointError) as error:
            shutil.rmtree(part, ignore_errors=True)
            raise CheckpointError(f"cannot write the trained model to {final}: {error}") from error
        shutil.rmtree(old, ignore_errors=True)
        return final

    def _check_length(self, name: str) -> None:
        """Refuse conversations that are longer than the model's positions."""
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(self._source.path, trust_remote_code=self._source.trust_remote_code)
        most = getattr(config, "max_position_embeddings", None)
        longest = max(len(example.ids) for example in self.train.examples)
        if most is not None and longest > most:
            files = ", ".join(self.train.files)
            raise DataError(files, None, None, f"a conversation of {longest} tokens", f"at most {most}, as {name} has")


def run_sft(config: SFTConfig, trackers: Sequence[Tracker] | None = None) -> Path:
    """Run a supervised warm start; see `SFTTrainer`.

    Returns:
        The Hugging Face folder of the trained model.
    """
    return SFTTrainer(config, trackers).fit()


def _choose_device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("trainer.device: got 'cuda', but torch finds no CUDA device here; use auto or cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Set torch's CPU threads for the duration of a run; None: unchanged."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
