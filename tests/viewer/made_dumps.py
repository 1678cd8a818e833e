"""Dumps and run folders as a run writes them, without a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from agentrl.observability.run_folder import DUMP_SUFFIX


def record(number: int = 0, step: int = 1, **changes: Any) -> dict[str, Any]:
    """One trajectory: a question, a call, its result and an answer, of five tokens."""
    prompt = changes.get("input", f"<|user|>What is {number} + 1?<|assistant|>")
    answer = changes.get("output", f"<call>{number}+1</call><|tool|>{number + 1}<|assistant|>It is {number + 1}")
    return {
        "input": prompt,
        "output": answer,
        "gts": str(number + 1),
        "score": float(number % 2),
        "step": step,
        "uid": f"{step}-{number // 2}",
        "data_source": "agentrl/arithmetic",
        "stop_reason": "completed",
        "num_turns": 4,
        "num_tool_calls": 1,
        "prompt_ids": [1, 2],
        "response_ids": [3, 4, 5, 6, 7],
        "response_mask": [1, 1, 0, 1, 1],
        "loss_mask": [1, 1, 0, 1, 1],
        "rollout_log_probs": [-0.5, -0.25, 0.0, -0.125, -1.0],
        "weight_versions": [0, 0, -1, 0, 0],
        "segments": [[2, "<call>"], [1, "obs"], [2, "It is"]],
        "messages": [
            {"role": "user", "content": f"What is {number} + 1?"},
            {"role": "assistant", "content": f"<call>{number}+1</call>"},
            {"role": "tool", "name": "calculator", "tool_call_id": "call_0", "content": str(number + 1)},
            {"role": "assistant", "content": f"It is {number + 1}"},
        ],
        "reward_extra_info": {"acc": number % 2},
        **changes,
    }


def failure(number: int = 0, step: int = 1, **changes: Any) -> dict[str, Any]:
    """What is known of a trajectory whose tool hung."""
    return {
        "row": number,
        "uid": f"{step}-{number // 2}",
        "stop_reason": "timeout",
        "error": "ToolServiceError: no answer in 60 s",
        "earlier_errors": ["ToolServiceError: refused"],
        "response_tokens": 3,
        "data_source": "agentrl/arithmetic",
        "messages": record(number)["messages"][:2],
        "step": step,
        **changes,
    }


def write_dump(folder: Path, step: int, records: Iterable[Mapping[str, Any] | str], suffix: str = DUMP_SUFFIX) -> Path:
    """`{folder}/{step}.jsonl`, or of another suffix; a text is a line as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{step}{suffix}"
    lines = [line if isinstance(line, str) else json.dumps(line) for line in records]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_run(folder: Path, steps: Iterable[Mapping[str, float]] = (), config: Mapping[str, Any] | None = None) -> Path:
    """A run folder with its configuration and metrics."""
    folder.mkdir(parents=True, exist_ok=True)
    trainer = {
        "default_local_dir": str(folder),
        "total_training_steps": 2,
        "rollout_data_dir": str(folder / "rollouts"),
    }
    (folder / "config.yaml").write_text(yaml.safe_dump({"trainer": trainer, **(config or {})}))
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(dict(row))}\n" for row in steps))
    return folder
