"""The rollout log: one jsonl file a step, with text for people and exact tokens for machines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from agentrl.data_proto import DataProto

Decode = Callable[[list[int]], str]


def rows(batch: DataProto, step: int, decode: Decode) -> Iterator[dict[str, Any]]:
    """Yield one record per trajectory.

    Args:
        batch: what `AgentLoopManager.generate_sequences` returned.
        step: the training step.
        decode: ids to text, special tokens kept.

    Yields:
        `input`, `output`, `gts`, `score`, `step` (as verl dumps them), then the token-level fields.
    """
    prompt_width = batch.batch["prompts"].shape[1]
    attention = batch.batch["attention_mask"].bool()
    for i in range(len(batch)):
        real_prompt, real_response = attention[i, :prompt_width], attention[i, prompt_width:]
        prompt_ids = batch.batch["prompts"][i][real_prompt].tolist()
        response_ids = batch.batch["responses"][i][real_response].tolist()
        fields = {name: values[i] for name, values in batch.non_tensor_batch.items()}
        yield {
            "input": decode(prompt_ids),
            "output": decode(response_ids),
            "gts": fields["ground_truth"],
            "score": float(fields["score"]),
            "step": step,
            "uid": str(fields["uid"]),
            "data_source": fields["data_source"],
            "stop_reason": str(fields["stop_reason"]),
            "num_turns": int(fields["num_turns"]),
            "num_tool_calls": int(fields["num_tool_calls"]),
            "prompt_ids": prompt_ids,
            "response_ids": response_ids,
            "response_mask": batch.batch["response_mask"][i][real_response].long().tolist(),
            "rollout_log_probs": batch.batch["rollout_log_probs"][i][real_response].tolist(),
            "weight_versions": batch.batch["weight_versions"][i][real_response].tolist(),
            "messages": fields["messages"],
            "reward_extra_info": fields["reward_extra_info"],
        }


def write_rollouts(folder: Path, step: int, batches: Sequence[DataProto], decode: Decode) -> Path:
    """Write the rollouts of one step to `{folder}/{step}.jsonl`; the file appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path, part = folder / f"{step}.jsonl", folder / f".{step}.jsonl.part"
    with part.open("wb") as file:
        for record in (record for batch in batches for record in rows(batch, step, decode)):
            file.write(orjson.dumps(record, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
    os.replace(part, path)
    return path
