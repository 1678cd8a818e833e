"""The rollout log: one jsonl file per step, with text for people and exact tokens for machines."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson
import torch

from agentrl.data_proto import DataProto
from agentrl.observability.run_folder import FAILED_SUFFIX
from agentrl.observability.said_once import say_once
from agentrl.reported import json_of
from agentrl.types import mark_errors

logger = logging.getLogger(__name__)

Decode = Callable[[list[int]], str]


@dataclass(frozen=True, slots=True)
class TrainedTokens:
    """What training knew of the response tokens of the trajectories that a step trained on.

    Attributes:
        places: the trajectory's row in the tensors, by its group and its number in it (see `name_of`).
        advantages: `(B, R)`.
        log_probs: `(B, R)`, of the policy that is trained, before its update; NaN where they are not known. None:
            training took the engine's.
    """

    places: dict[tuple[str, int], int]
    advantages: torch.Tensor
    log_probs: torch.Tensor | None

    @classmethod
    def of(cls, rows: DataProto, advantages: torch.Tensor, log_probs: torch.Tensor | None) -> TrainedTokens:
        """Of rows whose tensors these are."""
        return cls({name_of(rows, place): place for place in range(len(rows))}, advantages, log_probs)

    def fields(self, name: tuple[str, int], tokens: int) -> dict[str, list[float] | None]:
        """The fields of a record; null for a trajectory that was not trained on."""
        place = self.places.get(name)
        columns = {"advantages": self.advantages, "train_log_probs": self.log_probs}
        return {
            field: None if column is None or place is None else column[place, :tokens].tolist()
            for field, column in columns.items()
        }


def name_of(batch: DataProto, row: int) -> tuple[str, int]:
    """Names a trajectory among all of its step: several batches of one step number their rows alike."""
    return str(batch.non_tensor_batch["uid"][row]), int(batch.non_tensor_batch["row"][row])


def rows(
    batch: DataProto,
    step: int,
    decode: Decode,
    *,
    exact: Decode | None = None,
    trained: TrainedTokens | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per trajectory.

    Args:
        batch: result of `AgentLoopManager.generate_sequences`.
        step: the training step.
        decode: ids to text with special tokens, except a stop id at the end.
        exact: ids to text without any loss, for `segments`; None: `decode`.
        trained: what the step's training knew of them; None: nothing was trained, as in a validation.

    Yields:
        `input`, `output`, `gts`, `score`, `step` (as in verl's dumps); what else a score function gets
        (`solution_str`, `extra_info`), so that `agentrl replay` can score again; then the token-level fields.
    """
    prompt_width = batch.batch["prompts"].shape[1]
    attention = batch.batch["attention_mask"].bool()
    for i in range(len(batch)):
        real_prompt, real_response = attention[i, :prompt_width], attention[i, prompt_width:]
        prompt_ids = batch.batch["prompts"][i][real_prompt].tolist()
        response_ids = batch.batch["responses"][i][real_response].tolist()
        mask = batch.batch["response_mask"][i][real_response].long().tolist()
        loss_mask = batch.batch["loss_mask"][i][real_response].long().tolist()
        versions = batch.batch["weight_versions"][i][real_response].tolist()
        fields = {name: values[i] for name, values in batch.non_tensor_batch.items()}
        yield {
            "input": decode(prompt_ids),
            "output": decode(response_ids),
            "gts": json_of(fields["ground_truth"]),
            "score": float(fields["score"]),
            "step": step,
            "uid": str(fields["uid"]),
            "data_source": json_of(fields["data_source"]),
            "solution_str": _said(response_ids, mask, decode),
            "extra_info": json_of({**(fields.get("extra_info") or {}), **(fields.get("extra_fields") or {})}),
            "stop_reason": str(fields["stop_reason"]),
            "num_turns": int(fields["num_turns"]),
            "num_tool_calls": int(fields["num_tool_calls"]),
            "prompt_ids": prompt_ids,
            "response_ids": response_ids,
            "response_mask": mask,
            "loss_mask": loss_mask,
            "rollout_log_probs": batch.batch["rollout_log_probs"][i][real_response].tolist(),
            "weight_versions": versions,
            **(trained.fields(name_of(batch, i), len(response_ids)) if trained is not None else {}),
            "segments": _segments(response_ids, mask, loss_mask, exact or decode),
            "messages": json_of(mark_errors(fields["messages"], (fields.get("extra_fields") or {}).get("tool_errors"))),
            "reward_extra_info": json_of(fields["reward_extra_info"]),
            "timeline": fields.get("timeline", []),
        }


def _said(ids: list[int], mask: list[int], decode: Decode) -> str:
    """What the score function gets: the text of the sampled turns."""
    turns = groupby(zip(mask, ids, strict=True), key=lambda token: token[0])
    return "\n".join(decode([token for _, token in turn]) for sampled, turn in turns if sampled)


def _segments(ids: list[int], mask: list[int], loss_mask: list[int], decode: Decode) -> list[tuple[int, str]]:
    """Number of tokens and text of each run that is trained, sampled but not trained, or not sampled."""
    runs = groupby(zip(mask, loss_mask, ids, strict=True), key=lambda token: token[:2])
    pieces = [[token for _, _, token in run] for _, run in runs]
    return [(len(piece), decode(piece)) for piece in pieces]


def _write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    with path.open("wb") as file:
        for record in records:
            file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))


def write_rollouts(
    folder: Path,
    step: int,
    batches: Sequence[DataProto],
    decode: Decode,
    *,
    exact: Decode | None = None,
    trained: TrainedTokens | None = None,
) -> Path | None:
    """Write the rollouts of one step to `{folder}/{step}.jsonl`; the file appears only when it is complete.

    What is known of trajectories that failed, and are in no batch, goes to `{folder}/{step}.failed.jsonl`.

    `decode`, `exact` and `trained` are as in `rows`.

    Returns:
        The file; None if it cannot be written (a full disk), which is said once: no run ends for a dump.
    """
    path, part = folder / f"{step}.jsonl", folder / f".{step}.jsonl.part"
    failures = [failure for batch in batches for failure in batch.meta_info.get("failures", ())]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        every = (record for batch in batches for record in rows(batch, step, decode, exact=exact, trained=trained))
        _write_lines(part, every)
        os.replace(part, path)
        failed = folder / f"{step}{FAILED_SUFFIX}"
        if failures:
            _write_lines(part, ({**json_of(failure), "step": step} for failure in failures))
            os.replace(part, failed)
        else:
            failed.unlink(missing_ok=True)  # of the same step, before the run resumed
    except OSError as error:
        reason = f"{error.strerror or error}: the run continues without these dumps"
        say_once(logger, logging.WARNING, f"cannot write rollouts to {folder}: {reason}")
        with suppress(OSError):
            part.unlink(missing_ok=True)
        return None
    return path
