"""Writes run folders as agentrl leaves them: a policy that learns to use its calculator, 40 steps, 1,920 conversations.

Every number comes from a seed, so tests know what the page must show, and `docs/images/viewer_shots.py` draws the same
pictures each time.
"""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import yaml
from tokenizers import Tokenizer, decoders, models

STEPS, GROUPS, SIZE, PROMPTS = 40, 6, 8, 24
HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'> \u202egnp.exe\u202c \x00\x07 שלום עולם"
)
"""What a model may write: markup, a text direction that hides an ending, control characters, right-to-left text."""
_PIECE = re.compile(r"<\|?/?\w+\|?>| ?\w+|\n|\s+|[^\w\s]")
_END = "<|im_end|>"

Record = dict[str, Any]
Part = tuple[str, bool]
"""Text of the response, and whether the model sampled it."""


class Vocabulary:
    """A tokenizer that grows with what is written: a word, with the space before it, is a token."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def encode(self, text: str, *, whole: bool = False) -> list[int]:
        pieces = [text] if whole else _PIECE.findall(text)
        return [self.ids.setdefault(piece, len(self.ids)) for piece in pieces]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = Tokenizer(models.WordLevel({**self.ids, "[UNK]": len(self.ids)}, unk_token="[UNK]"))
        tokenizer.decoder = decoders.Fuse()
        tokenizer.save(str(folder / "tokenizer.json"))


def write_runs(folder: Path) -> Path:
    """`folder/with_tool`, with dumps, and `folder/no_tool`, whose curves and configuration differ.

    Returns:
        The first run's folder.
    """
    run = folder / "with_tool"
    vocabulary = Vocabulary()
    for kind, steps in (("rollouts", range(1, STEPS + 1)), ("validation", range(10, STEPS + 1, 10))):
        (run / kind).mkdir(parents=True)
        for step in steps:
            records = list(step_records(step, vocabulary, kind))
            (run / kind / f"{step}.jsonl").write_bytes(
                b"".join(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in records)
            )
    vocabulary.save(folder / "model")
    _write_state(run, folder / "model", lr=1e-5, skill=_skill)
    _write_state(folder / "no_tool", folder / "model", lr=3e-6, skill=lambda step: 0.3 + 0.15 * _skill(step))
    return run


def add_step(run: Path, step: int) -> None:
    """What a run that goes on writes: its state, a line of metrics and a dump."""
    now = time.time()
    state = {"state": "running", "step": step, "total_steps": STEPS + 10, "began": now - 60, "updated": now}
    (run / "run_state.json").write_text(json.dumps({**state, "machine": "another"}))
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(_metrics(step, _skill)) + "\n")
    vocabulary = Vocabulary()
    vocabulary.ids = json.loads((run.parent / "model" / "tokenizer.json").read_text())["model"]["vocab"]
    part = run / "rollouts" / ".part"
    part.write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in step_records(step, vocabulary, "rollouts")))
    part.rename(run / "rollouts" / f"{step}.jsonl")


def step_records(step: int, vocabulary: Vocabulary, kind: str) -> Iterator[Record]:
    """The conversations of one step: groups of answers to a prompt, which comes again every fourth step."""
    train = kind == "rollouts"
    for group in range(GROUPS):
        number = (step % (PROMPTS // GROUPS)) * GROUPS + group if train else 100 + group
        draw = random.Random(f"{kind}-{step}-{group}")
        answers = [_answer(number, step, draw, vocabulary) for _ in range(SIZE if train else 1)]
        if train and (step, group) == (STEPS, 0):
            answers[0] = _special(number, [(f"{HOSTILE} {_END}", True)], vocabulary, draw)
            answers[1] = _special(number, _long(draw), vocabulary, draw)
        rewards = [record["score"] for record in answers]
        mean = sum(rewards) / len(rewards)
        spread = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) + 1e-6
        for record in answers:
            record.update(step=step, uid=f"{kind}-{step}-{group}")
            if train:
                value = round((record["score"] - mean) / spread, 4)
                record["advantages"] = [value * on for on in record["loss_mask"]]
                record["train_log_probs"] = _trained(record, draw)
            yield record


def _answer(number: int, step: int, draw: random.Random, vocabulary: Vocabulary) -> Record:
    """One conversation; the longer the training, the more often it calls the calculator and is right."""
    a, b, c = 3 + number * 7 % 40, 2 + number * 5 % 17, number * 11 % 29
    truth = a * b + c
    ask = f"{a} * {b} + {c}"
    calls, right = draw.random() < _skill(step), draw.random() < 0.25 + 0.7 * _skill(step)
    result = truth if right else truth + draw.choice([-10, -1, 1, 2, 10])
    parts: list[Part] = []
    messages: list[Record] = [
        {"role": "system", "content": "You answer with a number. Use the calculator."},
        {"role": "user", "content": f"What is {ask}? Show how you found it."},
    ]
    if calls:
        expression = ask if right else f"{a} * ({b} + {c}"
        said = "I will use the calculator."
        call = {"name": "calculator", "arguments": {"expression": expression}}
        parts += [(f"{said}\n<tool_call>\n{json.dumps(call)}\n</tool_call>{_END}", True)]
        answer = str(truth) if right else "Error: '(' was never closed in the expression"
        parts += [
            (f"\n<|im_start|>user\n<tool_response>\n{answer}\n</tool_response>{_END}\n<|im_start|>assistant\n", False)
        ]
        messages += [
            {"role": "assistant", "content": said, "tool_calls": [{"type": "function", "function": call}]},
            {"role": "tool", "content": answer, "name": "calculator", "is_error": not right},
        ]
        final = f"{ask} is {result}, as the calculator says.\n#### {result}"
    else:
        steps = f"First {a} * {b} = {result - c}, then {result - c} + {c} = {result}."
        final = f"{steps}\n#### {result}"
    parts += [(f"{final}{_END}", True)]
    messages += [{"role": "assistant", "content": final}]
    reward = {"outcome_score": float(right), "format": 0.1, "tool_use": 0.1 * calls}
    return _record(parts, messages, vocabulary, draw, step, str(truth), reward)


def _record(
    parts: list[Part],
    messages: list[Record],
    vocabulary: Vocabulary,
    draw: random.Random,
    step: int,
    truth: str,
    reward: dict[str, float],
) -> Record:
    prompt = (
        "".join(f"<|im_start|>{one['role']}\n{one['content']}{_END}\n" for one in messages[:2])
        + "<|im_start|>assistant\n"
    )
    ids = [(vocabulary.encode(text), sampled) for text, sampled in parts]
    mask = [int(sampled) for part, sampled in ids for _ in part]
    calls = sum("tool_calls" in message for message in messages)
    certain = 1.5 - 1.2 * _skill(step)
    return {
        "input": prompt,
        "output": "".join(text for text, _ in parts).removesuffix(_END),
        "gts": truth,
        "score": round(sum(reward.values()), 4),
        "data_source": "arithmetic" if len(truth) < 4 else "long_arithmetic",
        "stop_reason": "stop",
        "num_turns": len(messages) - 1,
        "num_tool_calls": calls,
        "prompt_ids": vocabulary.encode(prompt),
        "response_ids": [one for part, _ in ids for one in part],
        "response_mask": mask,
        "loss_mask": mask,
        "rollout_log_probs": [-round(draw.expovariate(1 / certain) ** 2 / 2, 4) * on for on in mask],
        "weight_versions": _versions(mask, step),
        "segments": [[len(part), text] for (part, _), (text, _) in zip(ids, parts, strict=True)],
        "messages": messages,
        "reward_extra_info": reward,
        "timeline": _timeline(ids, draw),
    }


def _special(number: int, parts: list[Part], vocabulary: Vocabulary, draw: random.Random) -> Record:
    record = _answer(number, 1, draw, vocabulary)
    text = "".join(text for text, _ in parts)
    messages = [*record["messages"][:2], {"role": "assistant", "content": text}]
    return {
        **_record(parts, messages, vocabulary, draw, 1, record["gts"], {"outcome_score": 0.0}),
        "stop_reason": "length",
    }


def _long(draw: random.Random) -> list[Part]:
    """4,000 tokens of thought, and more."""
    words = ["so", "then", "carry", "the", "one", "and", "seven", "times", "eight", "is", "fifty", "six"]
    return [(" ".join(draw.choices(words, k=4200)) + _END, True)]


def _timeline(ids: list[tuple[list[int], bool]], draw: random.Random) -> list[Record]:
    """Each turn, call and the score."""
    spans, now = [], 0.0
    for part, sampled in ids:
        name, detail, lasts = (
            ("generate", f"{len(part)} tokens", len(part) / 40) if sampled else ("tool", "calculator", 0.12)
        )
        wait = draw.random() * 0.2
        spans += [_span("wait", now, wait, "for a place"), _span(name, now + wait, lasts, detail)]
        now += wait + lasts
    return [*spans, _span("score", now, 0.03, "arithmetic")]


def _span(name: str, start: float, seconds: float, detail: str) -> Record:
    return {"name": name, "start": start, "seconds": seconds, "detail": detail}


def _trained(record: Record, draw: random.Random) -> list[float]:
    """The trainer's log-probs: the engine's but for rounding, and for one token that both see differently."""
    found = [round(value + draw.gauss(0, 0.004), 4) for value in record["rollout_log_probs"]]
    sampled = [i for i, on in enumerate(record["response_mask"]) if on]
    odd = draw.choice(sampled)
    found[odd] = round(found[odd] + draw.choice([-1, 1]) * draw.uniform(0.2, 0.9), 4)
    return [value * on for value, on in zip(found, record["response_mask"], strict=True)]


def _versions(mask: list[int], step: int) -> list[int]:
    """The weights of the step; every third step was sampled while new ones came."""
    change = mask.index(0) if step % 3 == 0 and 0 in mask else len(mask)
    return [(step - 1 if i < change else step) if on else -1 for i, on in enumerate(mask)]


def _skill(step: int) -> float:
    return 1 / (1 + math.exp(-(step - 14) / 4))


def _write_state(run: Path, model: Path, lr: float, skill: Callable[[int], float]) -> None:
    run.mkdir(exist_ok=True)
    lines = [json.dumps(_metrics(step, skill)) for step in range(1, STEPS + 1)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    config = {
        "data": {"train_files": ["arithmetic.parquet"], "train_batch_size": GROUPS, "max_response_length": 512},
        "actor_rollout_ref": {
            "model": {"path": str(model)},
            "actor": {"optim": {"lr": lr}, "ppo_mini_batch_size": GROUPS},
            "rollout": {"name": "embedded", "n": SIZE, "temperature": 1.0},
        },
        "algorithm": {"adv_estimator": "grpo"},
        "trainer": {
            "total_training_steps": STEPS,
            "default_local_dir": str(run),
            "rollout_data_dir": str(run / "rollouts"),
            "validation_data_dir": str(run / "validation"),
        },
    }
    (run / "config.yaml").write_text(yaml.safe_dump(config))


def _metrics(step: int, skill: Callable[[int], float]) -> dict[str, float]:
    draw = random.Random(f"metrics-{step}-{skill(1)}")
    now = skill(step)
    parts = {"gen": 3.1 - now, "old_log_prob": 0.42, "update_actor": 1.3, "update_weights": 0.21, "reward": 0.08}
    row = {
        "step": step,
        "training/global_step": step,
        "critic/score/mean": 0.3 + 0.85 * now + draw.gauss(0, 0.04),
        "critic/score/min": 0.1,
        "critic/score/max": 1.2,
        "response_length/mean": 62 - 14 * now + draw.gauss(0, 2),
        "actor/entropy": 1.4 - 1.1 * now + draw.gauss(0, 0.03),
        "actor/grad_norm": math.exp(draw.gauss(-0.5, 0.5)),
        "actor/pg_loss": draw.gauss(0, 0.02),
        "actor/ppo_kl": abs(draw.gauss(0, 3e-4)),
        "tool_call_counts/mean": now + draw.gauss(0, 0.02),
        "num_turns/mean": 2 + 2 * now,
        "health/alarms": float(22 <= step <= 25),
        "health/alarm/repetition": float(22 <= step <= 25),
        "perf/throughput": 900 + 200 * now + draw.gauss(0, 20),
        **{f"timing_s/{name}": value * draw.uniform(0.9, 1.1) for name, value in parts.items()},
    }
    if step % 10 == 0:
        row |= {
            "val-core/arithmetic/reward/mean@1": 0.3 + 0.6 * now,
            "timing_s/testing": 1.1,
            "timing_s/save_checkpoint": 0.6,
        }
    if step == 9:
        row |= {"rollout/env_error_rate": 0.0417, "rollout/stop_reason/env_error": 0.0417}
    row["timing_s/step"] = sum(value for name, value in row.items() if name.startswith("timing_s/")) + 0.2
    return row
