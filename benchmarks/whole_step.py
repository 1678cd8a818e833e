"""A whole GRPO step of agentrl (Ray, engine over HTTP, tool loop, FSDP2, weight sync) against TRL's GRPOTrainer.

Both start from the demo's warm-started model and take the same prompts: 16 prompts x 8 rollouts a step, a calculator
tool, one update at the demo's learning rate. TRL samples with transformers `generate` in its own process. Prints the
median seconds of a step after the warm-up steps, their spread, the ratio, and where agentrl's step time goes.

Needs `make demo` (or `agentrl demo --prepare`) once, and the dev extra.

    python benchmarks/whole_step.py [--steps 12] [--only agentrl|trl]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WARM_UP = 2
PROMPTS, ROLLOUTS = 16, 8
LEARNING_RATE = 2.5e-4
STEPS = 12
DEMO = Path("outputs/demo")
RESULT = "seconds per step:"


def run_agentrl(demo: Path, steps: int) -> list[float]:
    """Step times of the demo recipe without validation."""
    from agentrl.config import load_config
    from agentrl.observability.tracker import Tracker
    from agentrl.trainer.run import run_training

    class Clock(Tracker):
        def __init__(self) -> None:
            self.rows: list[dict[str, float]] = []

        def log(self, metrics: dict[str, float], step: int) -> None:
            self.rows.append(metrics)

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(
            "demo.yaml",
            [
                f"data.train_files={demo}/data/train.parquet",
                "data.val_files=null",
                f"actor_rollout_ref.model.path={warm_start(demo)}",
                f"trainer.total_training_steps={steps}",
                f"actor_rollout_ref.actor.optim.lr={LEARNING_RATE}",
                f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS}",  # one update, as TRL
                "algorithm.filter_zero_variance_groups=false",  # TRL learns from every group too
                "algorithm.max_gen_batches=1",
                "trainer.test_freq=-1",
                "trainer.val_before_train=false",
                f"trainer.default_local_dir={folder}",
            ],
        )
        run_training(config, trackers=[clock])
    counted = clock.rows[WARM_UP:]
    report_split(counted)
    return [row["timing_s/step"] for row in counted]


def report_split(rows: list[dict[str, float]]) -> None:
    """Print where a step's time goes.

    Orchestration is the rest of a step after subtracting the longest wait for the engine, the longest tool calls, the
    longest scoring, and the log-prob, update and sync stages: rendering, parsing, HTTP, Ray, padding, logging.
    """

    def seconds(row: dict[str, float], name: str) -> float:
        return row.get(f"timing_s/{name}", 0.0)

    split = [
        {
            "generate": seconds(row, "agent_loop/generate_sequences/max"),
            "tools": seconds(row, "agent_loop/tool_calls/max"),
            "reward": seconds(row, "agent_loop/compute_score/max"),
            "log_prob": seconds(row, "old_log_prob"),
            "update": seconds(row, "update_actor"),
            "sync": seconds(row, "update_weights"),
        }
        for row in rows
    ]
    for name in split[0]:
        print(f"  agentrl {name}: median {statistics.median(part[name] for part in split):.3f} s")
    rest = [seconds(row, "step") - sum(part.values()) for row, part in zip(rows, split, strict=True)]
    print(f"  agentrl orchestration: median {statistics.median(rest):.3f} s")
    shares = [(other + part["sync"]) / seconds(row, "step") for other, part, row in zip(rest, split, rows, strict=True)]
    print(f"  agentrl sync and orchestration: median {100 * statistics.median(shares):.0f} % of a step (bar: 35 %)")


def calculator(expression: str) -> str:
    """Evaluates an arithmetic expression.

    Args:
        expression: the expression.

    Returns:
        Its value.
    """
    from agentrl.data.preprocess.expressions import canonical, exact_value
    from agentrl.errors import AgentRLError

    try:
        return canonical(exact_value(expression))
    except (AgentRLError, ArithmeticError, ValueError, SyntaxError) as error:
        return f"error: {error}"


def run_trl(demo: Path, steps: int) -> list[float]:
    """Step times of TRL on the same model and prompts."""
    import pyarrow.parquet as pq
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer, chat_template_utils

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.marks: list[float] = []

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.marks.append(time.perf_counter())

    def right_answer(completions: list[list[dict[str, Any]]], answer: list[str], **_: Any) -> list[float]:
        said = [str(talk[-1].get("content", "")).split() for talk in completions]
        return [float(words[-1:] == [wanted]) for words, wanted in zip(said, answer, strict=True)]

    rows = pq.read_table(demo / "data" / "train.parquet").to_pylist()
    data = Dataset.from_list([{"prompt": r["prompt"], "answer": r["reward_model"]["ground_truth"]} for r in rows])
    model_folder = warm_start(demo)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    tokenizer.response_template = chat_template_utils.qwen3_template
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model_folder),
            processing_class=tokenizer,
            reward_funcs=right_answer,
            tools=[calculator],
            train_dataset=data,
            callbacks=[clock],
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=PROMPTS * ROLLOUTS,
                num_generations=ROLLOUTS,
                max_completion_length=96,
                max_tool_calling_iterations=1,
                max_steps=steps,
                learning_rate=LEARNING_RATE,
                temperature=1.0,
                beta=0.0,
                use_cpu=True,
                bf16=False,
                report_to=[],
                save_strategy="no",
                logging_steps=1,
                disable_tqdm=True,
            ),
        )
        trainer.train()
    print("  trl:", {k: v for k, v in trainer.state.log_history[-2].items() if "tools" in k or k == "reward"})
    return [later - earlier for earlier, later in zip(clock.marks, clock.marks[1:], strict=False)][WARM_UP - 1 :]


def warm_start(demo: Path) -> Path:
    """The model that both sides start from."""
    return demo / "warm_start" / "huggingface"


def compare(demo: Path, steps: int = STEPS) -> None:
    """Run both sides one after the other and print their steps and the ratio."""
    ours = in_process_of_its_own("agentrl", demo, steps)
    theirs = in_process_of_its_own("trl", demo, steps)
    for name, seconds in (("agentrl", ours), ("trl", theirs)):
        print(f"{name}: median {statistics.median(seconds):.3f} s a step, {min(seconds):.3f} to {max(seconds):.3f}")
    print(f"whole step: trl / agentrl = {statistics.median(theirs) / statistics.median(ours):.2f}")


def in_process_of_its_own(name: str, demo: Path, steps: int) -> list[float]:
    """Run one side in a fresh process, so that neither inherits threads or memory of the other."""
    command = [sys.executable, __file__, "--only", name, "--steps", str(steps), "--demo", str(demo)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    lines = done.stdout.splitlines()
    print("\n".join(line for line in lines if line.startswith("  ")))
    return [float(x) for x in next(line for line in lines if line.startswith(RESULT)).removeprefix(RESULT).split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--demo", type=Path, default=DEMO, help="folder that `agentrl demo` wrote")
    parser.add_argument("--only", choices=("agentrl", "trl"))
    options = parser.parse_args()
    if not warm_start(options.demo).is_dir():
        raise SystemExit(f"{options.demo} holds no warm start: run `agentrl demo --prepare` first")
    if options.only:
        seconds = {"agentrl": run_agentrl, "trl": run_trl}[options.only](options.demo, options.steps)
        print(RESULT, *(f"{x:.4f}" for x in seconds))
        return
    compare(options.demo, options.steps)


if __name__ == "__main__":
    main()
