"""How fast `agentrl view` is on a large run: the index, the page's data, filters and memory, each beside its bar.

Writes a run of 10,000 trajectories of 4,000 tokens (about 2.4 GB of dumps, removed at the end) and one of 100,000 short
ones, starts the server as a user does, and asks it what the page asks. Times are those of a client over HTTP; memory is
the largest resident size of the server (VmHWM). The exit code is 1 where a bar is missed.

    python benchmarks/viewer.py [--trajectories 10000] [--tokens 4000] [--short 100000] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

WORDS = [a + b + c for a in ("cal", "num", "the", "ans", "sum", "tok") for b in "aeiou" for c in ("te", "ng", "r", "")]
GROUP = 8
STEP_ROWS = 250
"""Trajectories of a step."""
INDEX_S, PAGE_S, FILTER_S, MEMORY_MB = 30.0, 1.0, 0.2, 500.0
FILTERS: dict[str, dict[str, Any]] = {
    "reward, best first": {"reward_min": 0.5, "sort": "reward", "order": "desc"},
    "one step": {"step": 7},
    "tool and turns": {"tool": "calculator", "turns_min": 4},
    "length, a late page": {"tokens_min": 10, "sort": "tokens", "offset": 5000},
    "a text of a few": {"text": "needle 77"},
    "a text of most": {"text": "CALATE"},
    "a text of none": {"text": "no such text"},
    "text, reward and source": {"text": "answer", "reward_max": 0.9, "data_source": "synthetic/a", "sort": "reward"},
}


def record(number: int, step: int, tokens: int, rng: random.Random) -> dict[str, Any]:
    """A trajectory; four fifths of its tokens are the response, a token is about five characters."""
    asked, said = tokens // 5, tokens - tokens // 5
    question, answer = (" ".join(rng.choices(WORDS, k=max(1, count * 5 // 6))) for count in (asked, said))
    log_probs = [rng.random() * -3 for _ in range(said)]
    return {
        "input": f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n",
        "output": f"needle {number} {answer}",
        "gts": "42",
        "score": rng.random(),
        "step": step,
        "uid": f"{step}-{number // GROUP}",
        "data_source": f"synthetic/{'ab'[number % 2]}",
        "solution_str": answer,
        "extra_info": {"index": number},
        "stop_reason": "completed",
        "num_turns": 2 + 2 * (number % 3),
        "num_tool_calls": number % 3,
        "prompt_ids": [rng.randrange(150_000) for _ in range(asked)],
        "response_ids": [rng.randrange(150_000) for _ in range(said)],
        "response_mask": [1] * said,
        "loss_mask": [1] * said,
        "rollout_log_probs": log_probs,
        "weight_versions": [step] * said,
        "advantages": [0.7310585786300049] * said,
        "train_log_probs": [value + 1e-3 for value in log_probs],
        "segments": [[said, answer]],
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
            {"role": "tool", "name": "calculator" if number % 3 else "search", "content": "42"},
        ],
        "reward_extra_info": {"acc": 1.0},
    }


def write_run(folder: Path, trajectories: int, tokens: int) -> None:
    """Dumps, and metrics of each step. Trajectories differ in their numbers and in some of their text."""
    rng = random.Random(1)
    models = [record(0, 0, tokens, rng) for _ in range(16)]
    (folder / "rollouts").mkdir(parents=True)
    steps = range(1, -(-trajectories // STEP_ROWS) + 1)
    for step in steps:
        with (folder / "rollouts" / f"{step}.jsonl").open("wb") as file:
            for place in range(min(STEP_ROWS, trajectories - (step - 1) * STEP_ROWS)):
                number = (step - 1) * STEP_ROWS + place
                model = models[number % len(models)]
                fresh = record(number, step, 10, rng)
                long = {
                    name: model[name] for name in model if len(model[name] if isinstance(model[name], list) else "") > 3
                }
                item = {**fresh, **long, "input": model["input"], "output": f"needle {number} {model['solution_str']}"}
                file.write(orjson.dumps(item, option=orjson.OPT_APPEND_NEWLINE))
    (folder / "config.yaml").write_text(f"trainer: {{total_training_steps: {len(steps)}}}\n")
    names = [f"section_{number % 12}/metric_{number}" for number in range(120)]
    rows = ({"step": step, "timing_s/step": 9.0, **{name: rng.random() for name in names}} for step in steps)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@contextmanager
def serving(folder: Path) -> Iterator[tuple[int, str]]:
    """The server's process number and its address."""
    command = [sys.executable, "-m", "agentrl", "view", "--no-open", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found
    try:
        yield process.pid, found[0]
    finally:
        process.terminate()
        process.wait(30)


def ask(address: str, path: str, **query: Any) -> Any:
    with urllib.request.urlopen(f"{address}api/{path}?{urllib.parse.urlencode(query)}", timeout=60) as answer:
        return orjson.loads(answer.read())


def run_of(address: str) -> str:
    return f"runs/{ask(address, 'runs')[0]['id']}"


def seconds_of(call: Any, times: int = 5) -> float:
    """The median of several calls."""
    measured = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        measured.append(time.perf_counter() - began)
    return statistics.median(measured)


def page_data(address: str) -> None:
    """What the page asks when it opens a run and its conversations."""
    run = run_of(address)
    for part in ("metrics", "events", "timing", "config", "facets", "trajectories"):
        ask(address, f"{run}/{part}")


def memory_mb(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


def measure(name: str, folder: Path, trajectories: int) -> list[tuple[str, float, float, str]]:
    """Rows of the report: what, measured, bar, unit."""
    size = sum(file.stat().st_size for file in (folder / "rollouts").glob("*.jsonl"))
    print(f"{name}: {trajectories:,} trajectories, {size / 1e6:,.0f} MB of dumps", flush=True)
    found = []
    with serving(folder) as (pid, address):
        run, began = run_of(address), time.perf_counter()
        while not (state := ask(address, f"{run}/facets"))["complete"] or state["indexed"] < trajectories:
            time.sleep(0.1)
        found.append(("index", time.perf_counter() - began, INDEX_S, "s"))
        found.append(("memory while it is made", memory_mb(pid), MEMORY_MB, "MB"))
    with serving(folder) as (pid, address):
        found.append(("page data, index found", seconds_of(lambda: page_data(address), 1), PAGE_S, "s"))
        run = run_of(address)
        for what, query in FILTERS.items():
            asked = {**query, "limit": 100}
            first = seconds_of(lambda asked=asked: ask(address, f"{run}/trajectories", **asked), 1)
            found.append((f"filter: {what}", first, FILTER_S, "s"))
        ids = [row["id"] for row in ask(address, f"{run}/trajectories", limit=5, sort="reward")["rows"]]
        asked_ids = iter(ids)
        one = seconds_of(lambda: ask(address, f"{run}/trajectories/{next(asked_ids)}"), len(ids))
        found.append(("one conversation", one, PAGE_S, "s"))
        found.append(("groups of a step", seconds_of(lambda: ask(address, f"{run}/groups", step=7)), FILTER_S, "s"))
        found.append(("memory after all questions", memory_mb(pid), MEMORY_MB, "MB"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=4_000)
    parser.add_argument("--short", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="where the runs are written for a while; default: a temporary one")
    given = parser.parse_args()
    missed = False
    for name, trajectories, tokens in (("long", given.trajectories, given.tokens), ("short", given.short, 60)):
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            write_run(Path(folder) / "run", trajectories, tokens)
            for what, measured, bar, unit in measure(name, Path(folder) / "run", trajectories):
                late = measured > bar
                missed |= late
                print(
                    f"  {what:36} {measured:9.3f} {unit:3} (bar {bar:g} {unit}){'  MISSED' if late else ''}", flush=True
                )
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
