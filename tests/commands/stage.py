"""A working folder in which the commands of the field run as they are written, and what a run of one step did.

Everything that they name exists there: `~/data/…`, `~/models/…`, names of a hub as folders. In place of engines there
is one that answers from a script; the rest is real, in this process.
"""

from __future__ import annotations

import json
import os
import runpy
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.rollout.pools.local import LoopThread
from agentrl.testing.models import build_tiny_classifier, build_tiny_model, byte_tokenizer
from agentrl.testing.scripted_engine import ScriptedEngine
from agentrl.workers import fsdp_model

FIELD = Path(__file__).parent / "field"
MODELS = (
    "Qwen/Qwen2.5-0.5B-Instruct",
    "home/models/Qwen2.5-7B-Instruct",
    "home/models/CodeLlama-7B",
    "MODEL",
    "outputs/stage1/checkpoint-100/actor/huggingface",
)
REWARD_MODEL = "Qwen/Qwen2-7B-Reward"
ROWS = {
    "gsm8k": ("openai/gsm8k", "4"),
    "gsm8k_tool": ("openai/gsm8k", "4"),
    "math": ("lighteval/MATH", "4"),
    "code": ("codecontests", json.dumps({"inputs": ["1\n"], "outputs": ["4\n"]})),
}
TOOL_CONFIG = """
tools:
  - class_name: "verl.tools.gsm8k_tool.Gsm8kTool"
    config:
      type: native
    tool_schema:
      type: "function"
      function:
        name: "calc_gsm8k_reward"
        description: "A tool for calculating the reward of gsm8k. (1.0 if parsed answer is correct, 0.0 if not)"
        parameters:
          type: "object"
          properties:
            answer:
              type: "string"
              description: "The model's answer to the GSM8K math problem, must be a digits"
          required: ["answer"]
"""
JUDGE = "FSDPScoreNet"
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return len(solution_str) % 3 + 0.5
"""

LOOP = """
from agentrl.agent_loops.single_turn_agent import SingleTurnAgent


class MyAgentLoop(SingleTurnAgent):
    pass
"""
MANAGER = """
import torch


class MyRewardManager:
    def __init__(self, tokenizer, num_examine, compute_score=None, reward_fn_key="data_source", **kwargs):
        self.tokenizer = tokenizer

    def __call__(self, data, return_dict=False):
        reward_tensor = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        reward_tensor[:, 0] = 0.25
        return {"reward_tensor": reward_tensor, "reward_extra_info": {}} if return_dict else reward_tensor
"""
CALL = '<tool_call>\n{"name": "calc_gsm8k_reward", "arguments": {"answer": "4"}}\n</tool_call>'
PROGRAM = "```python\nprint(4)\n```"


def commands() -> list[str]:
    """The command lines of commands.txt, without `MAIN`."""
    lines = (FIELD / "commands.txt").read_text().splitlines()
    return [line.removeprefix("MAIN ") for line in lines if line.startswith("MAIN ")]


@dataclass
class Seen:
    """What a command did.

    Attributes:
        code: its exit code.
        out: what it printed.
        err: its errors and notes.
        config: what it was understood to say.
        metrics: of the last step.
        passes: rows of the micro-batches of each update, by class of model.
        infers: rows of the micro-batches of each computation without a gradient.
        requests: what the engine was asked.
        masks: the response masks of the trained rows.
    """

    code: int
    out: str
    err: str
    config: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    passes: dict[str, list[list[int]]] = field(default_factory=dict)
    infers: dict[str, list[list[int]]] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    masks: list[list[float]] = field(default_factory=list)

    @property
    def rollouts(self) -> list[dict[str, Any]]:
        """Requests of training: validation is greedy."""
        return [request for request in self.requests if request["sampling_params"]["temperature"] > 0]

    def rows(self, kind: str, model: str) -> list[int]:
        """The rows of every micro-batch of a model."""
        return [rows for batch in getattr(self, kind).get(model, []) for rows in batch]


class Stage:
    """Runs commands.

    Args:
        folder: becomes the working folder.
        patch: for the working folder, `HOME`, and what is watched.
        caplog: collects notes.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._tokenizer = byte_tokenizer()
        self._thread = LoopThread("scripted-engine")
        self._engine = ScriptedEngine(self._respond)
        self.address = self._thread.submit(self._engine.start()).result(10)
        self._servers = f"actor_rollout_ref.rollout.server.addresses=[{self.address}]"
        self._seen = Seen(0, "", "")
        self._count = 0
        self.answers = ["#### 4", "I do not know"]
        """What the engine says to the first, second, … request, and again from the start."""
        patch.chdir(folder)
        patch.syspath_prepend(folder)  # as the command does
        patch.setenv("HOME", str(folder / "home"))
        self._write_files()
        self._watch(patch)

    def close(self) -> None:
        self._thread.submit(self._engine.stop()).result(10)
        self._thread.stop()

    def dry(self, *arguments: str) -> Seen:
        """A dry run of `agentrl train`."""
        sglang = any(argument.endswith("rollout.name=sglang") for argument in arguments)  # not installed here
        seen = self._invoke([*arguments, *([self._servers] if sglang else []), "--dry-run"])
        seen.config = yaml.safe_load(seen.out) or {}
        return seen

    def step(self, *arguments: str) -> Seen:
        """One step of `agentrl train`."""
        self._count += 1
        self._engine.requests.clear()
        self._engine.weight_version = "default"
        place = self.folder / "runs" / str(self._count)
        seen = self._invoke(
            [
                *arguments,
                *("trainer.backend=local", "trainer.device=cpu", "trainer.total_training_steps=1"),
                *("trainer.threads_per_rank=1", f"trainer.default_local_dir={place}"),
                *("trainer.logger=[jsonl]", self._servers),
            ]
        )
        seen.requests = list(self._engine.requests)
        if seen.code == 0:
            seen.config = yaml.safe_load((place / "config.yaml").read_text())
            seen.metrics = json.loads((place / "metrics.jsonl").read_text().splitlines()[-1])
        return seen

    def module(self, name: str, *arguments: str) -> int:
        """`python -m agentrl.trainer.NAME`, in this process; its exit code."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", [f"{name}.py", *arguments])
            with pytest.raises(SystemExit) as ended:
                runpy.run_module(f"agentrl.trainer.{name}", run_name="__main__")
        return int(ended.value.code or 0)

    def shell(self, line: str) -> list[str]:
        """The arguments that a shell makes of a line."""
        return shlex.split(os.path.expandvars(line))

    def recipe(self, name: str) -> str:
        """A YAML of the field in a folder of its own."""
        (self.folder / "recipes" / name).mkdir(parents=True, exist_ok=True)
        return str(shutil.copy(FIELD / name, self.folder / "recipes" / name))

    def _invoke(self, arguments: list[str]) -> Seen:
        self._seen = Seen(0, "", "")
        result = CliRunner().invoke(app, ["train", *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        seen = self._seen
        seen.code, seen.out, seen.err = result.exit_code, result.stdout, result.stderr
        return seen

    def _respond(self, payload: dict[str, Any]) -> tuple[list[int], str]:
        text = self.answers[len(self._engine.requests) % len(self.answers)]
        ids = [*self._tokenizer.encode(text, add_special_tokens=False), self._tokenizer.eos_token_id]
        most = payload["sampling_params"]["max_new_tokens"]
        return (ids, "stop") if len(ids) <= most else (ids[:most], "length")

    def _write_files(self) -> None:
        first = build_tiny_model(self.folder / MODELS[0], num_hidden_layers=1, max_position_embeddings=8192)
        for name in MODELS[1:]:
            shutil.copytree(first, self.folder / name)
        build_tiny_classifier(self.folder / REWARD_MODEL, num_hidden_layers=1, max_position_embeddings=8192)
        for name, (source, truth) in ROWS.items():
            for split in ("train", "test"):
                self.write_rows(f"home/data/{name}/{split}.parquet", source, truth)
        for file in ("curriculum/stage2_medium.parquet", "train.parquet"):
            self.write_rows(file, *ROWS["gsm8k"])
        config = self.folder / "examples" / "sglang_multiturn" / "config"
        (config / "tool_config").mkdir(parents=True)
        (config / "tool_config" / "gsm8k_tool_config.yaml").write_text(TOOL_CONFIG)
        shutil.copy(FIELD / "gsm8k_multiturn_grpo.yaml", config)
        (self.folder / "my_reward.py").write_text(REWARD)
        (self.folder / "my_reward_manager.py").write_text(MANAGER)
        (self.folder / "my_agent_loop.py").write_text(LOOP)
        again = {
            "agent_name": "tool_agent",
            "extra_info": {"interaction_kwargs": {"name": "gsm8k", "ground_truth": "4"}},
        }
        self.write_rows("interaction.parquet", *ROWS["gsm8k"], **again)
        self.write_rows("loop.parquet", *ROWS["gsm8k"], agent_name="my_agent_loop")

    def write_rows(self, name: str, source: str, truth: str, count: int = 8, **columns: Any) -> Path:
        """Write rows of one kind."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        tools = {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": truth}}} if "tool" in name else None
        rows = [
            {
                "data_source": source,
                "prompt": [{"role": "user", "content": f"{i} + {i}"}],
                "reward_model": {"style": "rule", "ground_truth": truth},
                "extra_info": {"index": i, **({"tools_kwargs": tools} if tools else {})},
                **columns,
            }
            for i in range(count)
        ]
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path

    def _watch(self, patch: pytest.MonkeyPatch) -> None:
        for name, kept in (("passes", "passes"), ("infer", "infers")):
            real = getattr(fsdp_model.FSDPModel, name)

            def call(model: Any, micros: Any, *args: Any, real: Any = real, kept: str = kept, name: str = name) -> Any:
                kind = type(model.net).__name__
                whose = kind if model.optimizer is not None or kind == JUDGE else "reference"
                rows = [micro.mask.shape[0] for micro in micros.batches]
                getattr(self._seen, kept).setdefault(whose, []).append(rows)
                if name == "passes":
                    self._seen.masks += [row.tolist() for micro in micros.batches for row in micro.mask]
                return real(model, micros, *args)

            patch.setattr(fsdp_model.FSDPModel, name, call)
