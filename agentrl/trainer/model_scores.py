"""Scores of the reward model: conversations to its ranks, its scores into the rewards of the rollouts."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from agentrl.chat.loading import load_renderer, load_tokenizer
from agentrl.chat.renderer import ChatRenderer
from agentrl.config import RunConfig
from agentrl.config.reward_model import POLICY
from agentrl.data_proto import DataProto
from agentrl.errors import ConfigError, RewardError, TemplateError
from agentrl.hub import model_folder
from agentrl.rewards.combine import add_model_score
from agentrl.rewards.conversation_reader import ConversationReader, cut
from agentrl.rollout.batching import outcome_scores
from agentrl.rollout.greedy import BASELINE, GREEDY, first_of_groups
from agentrl.rollout.report import check_failure_budget, mean_max_min
from agentrl.rollout.trained_tokens import sampled_turns
from agentrl.single_controller import WorkerGroup
from agentrl.single_controller.dispatch import PARTITIONS
from agentrl.trainer.balance import partition_by_tokens
from agentrl.types import Message, Sample, StopReason

if TYPE_CHECKING:
    from agentrl.workers.classifier import ClassifierInfo

logger = logging.getLogger(__name__)

PARTS = {
    "model_score": "model",
    "outcome_score": "outcome",
    "turn_score": "turn",
    "tool_reward": "tool",
    "judge_score": "judge",
}
"""The parts of a reward that are reported one by one, and their weights in `reward_model.combine`."""


@dataclass(frozen=True, slots=True)
class ModelScorer:
    """Scores finished rollouts with the reward model.

    Attributes:
        config: the run.
        info: what the classifier's folder says.
        decode: ids of the policy to text.
        reader: renders conversations; None: the reward model reads the policy's tokens.
        bos_id: id that begins every text of the reward model; None: none.
        most_tokens: of a conversation; None: no limit.
    """

    config: RunConfig
    info: ClassifierInfo
    decode: Callable[[Sequence[int]], str]
    reader: ConversationReader | None
    bos_id: int | None
    most_tokens: int | None

    @classmethod
    def load(cls, config: RunConfig, policy: ChatRenderer) -> ModelScorer | None:
        """Check the reward model's folder and load its tokenizer; None: the run has no reward model.

        Raises:
            ConfigError: it is not a classifier with one label, or its tokenizer or `max_length` does not fit.
        """
        section = config.reward_model
        if not section.enable:
            return None
        from agentrl.workers.classifier import read_classifier, require_whole

        try:
            info = read_classifier(section.model)
        except ConfigError as error:
            raise ConfigError(f"reward_model.model.path: {error}") from error
        if not info.is_generic:
            require_whole(section.model, section.fsdp_config)
        if None not in (section.max_length, info.positions) and section.max_length > info.positions:  # type: ignore[operator]
            raise ConfigError(
                f"reward_model.max_length: got {section.max_length}, wanted at most {info.positions}, the positions of "
                f"the model in {section.model.path}"
            )
        most = section.max_length or info.positions
        if section.model.input_tokenizer is None:
            _require_same_tokens(config, info, policy)
            return cls(config, info, policy.decode, None, policy.tokenizer.bos_token_id, most)
        renderer = _load_own_renderer(config)
        _require_known_tokenizer(config, policy, renderer)
        reader = ConversationReader(renderer)
        if reader.as_text:
            logger.info(
                "the chat template of %s cannot show %s: the reward model gets them as text (docs/rewards.md)",
                *(section.model.path, " and ".join(reader.as_text)),
            )
        return cls(config, info, policy.decode, reader, renderer.tokenizer.bos_token_id, most)

    def score(
        self,
        group: WorkerGroup,
        rollouts: DataProto,
        asked: DataProto,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> DataProto:
        """The rollouts with the scores of the reward model in their rewards.

        Args:
            group: the ranks of the reward model.
            rollouts: of `AgentLoopManager.generate_sequences`.
            asked: the batch that it was given.
            meanwhile: called while the ranks compute.

        Returns:
            Those whose score is a finite number; the others are in `meta_info["failures"]`, each with its cause.

        Raises:
            FailureBudgetError: too many trajectories of the batch are left out.
        """
        if not len(rollouts):
            rollouts.meta_info.pop(GREEDY, None)
            return rollouts
        began = time.perf_counter()
        samples, uids = list(asked.non_tensor_batch["sample"]), list(asked.non_tensor_batch["uid"])
        done, failures, metrics = self._judge(group, rollouts, samples, meanwhile)
        meta, played = dict(done.meta_info), len(asked)
        if (greedy := meta.pop(GREEDY, None)) is not None:
            firsts = first_of_groups(uids)
            baselines, lost, of_greedy = self._judge(
                group, greedy, [*samples, *(samples[row] for row in firsts)], lambda: None
            )
            _set_baselines(done, baselines)
            failures, played = [*failures, *lost], played + len(firsts)
            metrics |= {**mean_max_min("rollout/greedy/score", baselines.non_tensor_batch["score"])}
            metrics["rollout/greedy/failed"] = rollouts.meta_info["metrics"]["rollout/greedy/failed"] + len(lost)
            metrics["reward_model/left_out"] += of_greedy["reward_model/left_out"]
        failures = [*rollouts.meta_info["failures"], *failures]
        check_failure_budget(failures, played, self.config.actor_rollout_ref.rollout.max_failure_rate)
        metrics["timing_s/agent_loop/reward_model"] = time.perf_counter() - began
        done.meta_info = {**meta, "failures": failures, "metrics": {**rollouts.meta_info["metrics"], **metrics}}
        return done

    def _judge(
        self, group: WorkerGroup, rollouts: DataProto, samples: Sequence[Sample], meanwhile: Callable[[], None]
    ) -> tuple[DataProto, list[dict[str, Any]], dict[str, float]]:
        """The rows that have a score, with it; a record for each of the others; metrics.

        Args:
            group: the ranks of the reward model.
            rollouts: finished ones.
            samples: by the number in their column `row`.
            meanwhile: called while the ranks compute.
        """
        read = [self._read(rollouts, row, samples) for row in range(len(rollouts))]
        scores = self._scores(group, read, meanwhile)
        errors = {row: ids for row, ids in enumerate(read) if isinstance(ids, RewardError)}
        for row, score in enumerate(scores):
            if not math.isfinite(score):
                wanted = RewardError(f"the reward model gave the score {score}, wanted a finite number")
                errors.setdefault(row, wanted)
        kept = torch.tensor([row not in errors for row in range(len(rollouts))], dtype=torch.bool)
        done = rollouts[kept]
        self._add(done, [score for row, score in enumerate(scores) if row not in errors])
        metrics = self._metrics(done, [ids for ids in read if isinstance(ids, list)], len(errors))
        return done, [_failure(rollouts, row, error) for row, error in sorted(errors.items())], metrics

    def _scores(
        self, group: WorkerGroup, read: Sequence[list[int] | RewardError], meanwhile: Callable[[], None]
    ) -> list[float]:
        """A score per row; NaN where there is no conversation."""
        scores = [math.nan] * len(read)
        rows = [row for row, ids in enumerate(read) if isinstance(ids, list)]
        if not rows:
            return scores
        conversations = [self._cut(ids) for ids in read if isinstance(ids, list)]
        from agentrl.workers.reward_model import conversation_batch

        batch = conversation_batch(conversations)
        if self.config.trainer.balance_batch:
            batch.meta_info[PARTITIONS] = partition_by_tokens(list(map(len, conversations)), group.data_size)
        running = group.submit("compute_rm_score", batch)
        meanwhile()
        for row, score in zip(rows, running.get().batch["model_scores"].tolist(), strict=True):
            scores[row] = score
        return scores

    def _read(self, rollouts: DataProto, row: int, samples: Sequence[Sample]) -> list[int] | RewardError:
        """The whole conversation as ids of the reward model, or why it cannot be read."""
        if self.reader is None:
            ids: list[int] = rollouts.batch["input_ids"][row][rollouts.batch["attention_mask"][row].bool()].tolist()
            return ids
        messages = rollouts.non_tensor_batch["messages"][row] or self._said(rollouts, row, samples)
        try:
            return self.reader.read(messages)
        except RewardError as error:
            return error

    def _said(self, rollouts: DataProto, row: int, samples: Sequence[Sample]) -> list[Message]:
        """The conversation of a loop that reports none: its prompt and what the policy sampled, turn by turn."""
        sample = samples[rollouts.non_tensor_batch["row"][row]]
        responses, mask = rollouts.batch["responses"][row].tolist(), rollouts.batch["response_mask"][row].numpy()
        turns = [self.decode(responses[start:end]) for start, end in sampled_turns(mask)]
        return [*sample.prompt, *({"role": "assistant", "content": turn} for turn in turns)]

    def _cut(self, ids: list[int]) -> list[int]:
        """What the reward model reads of a conversation, up to the token at which it reads its score."""
        ids = cut(ids, self.most_tokens, self.config.reward_model.truncation, self.bos_id)
        end = len(ids)
        # transformers looks for the last token that is not padding, also where the text itself ends in that token.
        while self.info.kind == "sequence" and end > 1 and ids[end - 1] == self.info.pad_id:
            end -= 1
        return ids[:end]

    def _add(self, done: DataProto, scores: list[float]) -> None:
        """Add the scores to the rewards: on the last sampled token of each row."""
        weights, columns = self.config.reward_model.combine, done.non_tensor_batch
        pairs = zip(columns["score"], columns["reward_extra_info"], scores, strict=True)
        wholes = [add_model_score(score, extra, model, weights) for score, extra, model in pairs]
        for row, (score, extra) in enumerate(wholes):
            columns["score"][row], columns["reward_extra_info"][row] = score, extra
        placed = outcome_scores(done.batch["response_mask"].numpy(), weights.model * np.array(scores))
        done.batch["rm_scores"] = done.batch["rm_scores"] + torch.from_numpy(placed)

    def _metrics(self, done: DataProto, read: list[list[int]], left_out: int) -> dict[str, float]:
        metrics = {"reward_model/left_out": float(left_out), **mean_max_min("reward_model/length", map(len, read))}
        too_long = [self.most_tokens is not None and len(ids) > self.most_tokens for ids in read]
        metrics["reward_model/cut"] = float(sum(too_long))
        extras, weights = done.non_tensor_batch["reward_extra_info"], self.config.reward_model.combine
        for part, weight in PARTS.items():
            if getattr(weights, weight):
                metrics |= mean_max_min(f"reward_model/{part}", [extra[part] for extra in extras if part in extra])
        return metrics


def _set_baselines(done: DataProto, greedy: DataProto) -> None:
    """The rewards of the greedy rollouts, now with the reward model's score; NaN where the row has none."""
    columns = greedy.non_tensor_batch
    rewards = dict(zip(columns["uid"], columns["score"], strict=True))
    baselines = [rewards.get(uid, math.nan) for uid in done.non_tensor_batch["uid"]]
    done.non_tensor_batch[BASELINE] = np.array(baselines, dtype=object)


def _failure(rollouts: DataProto, row: int, error: RewardError) -> dict[str, Any]:
    """The record of a trajectory that the reward model could not score, as `report.failures_of` makes them."""
    columns = rollouts.non_tensor_batch
    width = rollouts.batch["responses"].shape[1]
    return {
        "row": columns["row"][row],
        "uid": columns["uid"][row],
        "stop_reason": StopReason.ENV_ERROR.value,
        "error": f"RewardError: {error}",
        "earlier_errors": [],
        "response_tokens": int(rollouts.batch["attention_mask"][row, -width:].sum()),
    }


def _load_own_renderer(config: RunConfig) -> ChatRenderer:
    """The reward model's tokenizer and chat template.

    Raises:
        ConfigError: there are none, or they do not fit the model.
    """
    model = config.reward_model.model
    try:
        return load_renderer(model.path, chat_template=model.chat_template, trust_remote_code=model.trust_remote_code)
    except TemplateError as error:
        text = str(error).replace("actor_rollout_ref.model.", "reward_model.model.")
        raise ConfigError(f"reward_model.model.path: {text}") from error


def _require_known_tokenizer(config: RunConfig, policy: ChatRenderer, own: ChatRenderer) -> None:
    """Refuse an `input_tokenizer` that is neither the policy's tokenizer nor the reward model's.

    Raises:
        ConfigError: it is another one, or cannot be loaded.
    """
    given = config.reward_model.model.input_tokenizer
    if given in (None, POLICY, config.actor_rollout_ref.model.path, config.reward_model.model.path):
        return
    vocabulary = _vocabulary(str(given), config)
    if vocabulary is None:
        raise ConfigError(f"reward_model.model.input_tokenizer: '{given}' holds no tokenizer")
    if vocabulary not in (policy.tokenizer.get_vocab(), own.tokenizer.get_vocab()):
        raise ConfigError(
            f"reward_model.model.input_tokenizer: got '{given}', whose vocabulary is not that of the policy: wanted "
            "the policy's tokenizer (policy), or null where the reward model reads the policy's tokens as they are"
        )


def _require_same_tokens(config: RunConfig, info: ClassifierInfo, policy: ChatRenderer) -> None:
    """Refuse to read the policy's tokens with a reward model whose tokens are others.

    Raises:
        ConfigError: its vocabulary is another one.
    """
    key, path = "reward_model.model.input_tokenizer: got null", config.reward_model.model.path
    way = "leave the key out, and conversations are rendered for it anew"
    known, own = policy.tokenizer.get_vocab(), _vocabulary(path, config)
    if info.vocab_size is not None and max(known.values()) >= info.vocab_size:
        raise ConfigError(
            f"{key}, but the policy's tokenizer makes ids up to {max(known.values())}, and the reward model in {path} "
            f"knows {info.vocab_size}: {way}"
        )
    if own is not None and own != known:
        raise ConfigError(f"{key}, but the reward model in {path} has another vocabulary than the policy: {way}")


def _vocabulary(path: str, config: RunConfig) -> dict[str, int] | None:
    """The ids of a folder's tokenizer; None: it holds none."""
    try:
        folder = model_folder(path)
        tokenizer = load_tokenizer(str(folder), trust_remote_code=config.reward_model.model.trust_remote_code)
    except (ConfigError, OSError, ValueError, KeyError):
        return None
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return vocabulary
