"""Run folders as runs leave them, made up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def record(step: int, group: int, question: str, answer: str, score: float, **more: Any) -> dict[str, Any]:
    """One dumped conversation: a question, a call of a tool, its result and an answer."""
    messages = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "let me see", "tool_calls": [call(question)]},
        {"role": "tool", "name": "calculator", "content": answer},
        {"role": "assistant", "content": answer},
    ]
    return {
        "input": question,
        "output": answer,
        "gts": "42",
        "score": score,
        "step": step,
        "uid": f"{step}-{group}",
        "data_source": "sums",
        "solution_str": f"let me see\n{answer}",
        "extra_info": {"level": 3},
        "stop_reason": "completed",
        "num_turns": 4,
        "num_tool_calls": 1,
        "prompt_ids": [1],
        "messages": messages,
        "reward_extra_info": {},
        **more,
    }


def call(expression: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "calculator", "arguments": {"expression": expression}}}


def write_dump(folder: Path, step: int, records: Sequence[Mapping[str, Any]], suffix: str = ".jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{step}{suffix}"
    file.write_text("".join(json.dumps(found) + "\n" for found in records))
    return file


def write_run(folder: Path, scores: Sequence[float], **settings: Any) -> Path:
    """A run with a metric per step and the given keys of `trainer`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"step": step, "critic/score/mean": score, "timing_s/step": 2.0, "perf/throughput": 100.0}
        for step, score in enumerate(scores, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trainer = {"default_local_dir": str(folder), "total_training_steps": len(scores), **settings}
    (folder / "config.yaml").write_text(json.dumps({"trainer": trainer}))
    return folder
