"""The rollout log: one jsonl file per step, with text for people and exact tokens for machines."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

from agentrl.data_proto import DataProto
from agentrl.observability.said_once import say_once
from agentrl.reported import json_of

logger = logging.getLogger(__name__)

Decode = Callable[[list[int]], str]


def rows(batch: DataProto, step: int, decode: Decode, *, exact: Decode | None = None) -> Iterator[dict[str, Any]]:
    """Yield one record per trajectory.

    Args:
        batch: result of `AgentLoopManager.generate_sequences`.
        step: the training step.
        decode: ids to text with special tokens, except a stop id at the end.
        exact: ids to text without any loss, for `segments`; None: `decode`.

    Yields:
        `input`, `output`, `gts`, `score`, `step` (as in verl's dumps), then the token-level fields.
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
            "stop_reason": str(fields["stop_reason"]),
            "num_turns": int(fields["num_turns"]),
            "num_tool_calls": int(fields["num_tool_calls"]),
            "prompt_ids": prompt_ids,
            "response_ids": response_ids,
            "response_mask": mask,
            "loss_mask": loss_mask,
            "rollout_log_probs": batch.batch["rollout_log_probs"][i][real_response].tolist(),
            "weight_versions": versions,
            "segments": _segments(response_ids, mask, loss_mask, exact or decode),
            "messages": json_of(fields["messages"]),
            "reward_extra_info": json_of(fields["reward_extra_info"]),
            "timeline": fields.get("timeline", []),
        }


def _segments(ids: list[int], mask: list[int], loss_mask: list[int], decode: Decode) -> list[tuple[int, str]]:
    """Number of tokens and text of each run that is trained, sampled but not trained, or not sampled."""
    runs = groupby(zip(mask, loss_mask, ids, strict=True), key=lambda token: token[:2])
    pieces = [[token for _, _, token in run] for _, run in runs]
    return [(len(piece), decode(piece)) for piece in pieces]


def write_rollouts(
    folder: Path,
    step: int,
    batches: Sequence[DataProto],
    decode: Decode,
    *,
    exact: Decode | None = None,
) -> Path | None:
    """Write the rollouts of one step to `{folder}/{step}.jsonl`; the file appears only when it is complete.

    `decode` and `exact` are as in `rows`.

    Returns:
        The file; None if it cannot be written (a full disk), which is said once: no run ends for a dump.
    """
    path, part = folder / f"{step}.jsonl", folder / f".{step}.jsonl.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            for batch in batches:
                for record in rows(batch, step, decode, exact=exact):
                    file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        os.replace(part, path)
    except OSError as error:
        reason = f"{error.strerror or error}: the run continues without these dumps"
        say_once(logger, logging.WARNING, f"cannot write rollouts to {folder}: {reason}")
        with suppress(OSError):
            part.unlink(missing_ok=True)
        return None
    return path
