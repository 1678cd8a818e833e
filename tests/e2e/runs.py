"""Small whole runs of the tiny model: started as a user would, watched, and searched for what they left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from engine_servers import free_port
from warm_commands import warm_commands

from agentrl.config import RunConfig, load_config
from agentrl.trainer.run import run_training

MARK = "AGENTRL_TEST_RUN"
"""Environment variable that every process of a run inherits."""
UNEQUAL = ("timing_s/", "timing_per_token_ms/", "perf/")
"""Metrics that no two runs share."""
SCORE = '''
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """A number that varies from answer to answer, so that there is something to learn."""
    return (sum(map(ord, solution_str)) + int(ground_truth)) % 11 / 11
'''


def write_rows(path: Path, count: int, **columns: Any) -> Path:
    """Write questions with short prompts."""
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{i} + {i}"}],
            "data_source": "test/sums",
            "reward_model": {"style": "rule", "ground_truth": str(2 * i)},
            **columns,
        }
        for i in range(count)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def nested(changes: dict[str, Any]) -> dict[str, Any]:
    """`{"a.b": 1}` -> `{"a": {"b": 1}}`."""
    tree: dict[str, Any] = {}
    for key, value in changes.items():
        *sections, name = key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    return tree


def same(left: dict[str, float], right: dict[str, float], tolerance: float) -> None:
    """Compare the metrics of a step in two runs."""
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert right[name] == pytest.approx(value, abs=tolerance, rel=tolerance), name


@dataclass
class Run:
    """One run folder and the recipe that fills it."""

    recipe: Path
    folder: Path

    @property
    def metrics(self) -> list[dict[str, float]]:
        """Lines of `metrics.jsonl`."""
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def steps(self) -> dict[int, dict[str, float]]:
        """Comparable metrics by step."""
        return {
            int(row["step"]): {name: value for name, value in row.items() if not name.startswith(UNEQUAL)}
            for row in self.metrics
        }

    def rollouts(self, step: int) -> list[dict[str, Any]]:
        """The rollout dump of a step."""
        return [json.loads(line) for line in (self.folder / "rollouts" / f"{step}.jsonl").read_text().splitlines()]

    @property
    def config(self) -> RunConfig:
        """The recipe, checked."""
        return load_config(self.recipe)

    def go_on(self, total_steps: int) -> None:
        """Run in this process, from the newest checkpoint to the given number of steps."""
        run_training(load_config(self.recipe, [f"trainer.total_training_steps={total_steps}", "trainer.backend=local"]))


@dataclass
class Workspace:
    """A model, rows and a score function; makes recipes over them."""

    folder: Path
    model: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.train = write_rows(self.folder / "train.parquet", 8)
        self.val = write_rows(self.folder / "val.parquet", 2)
        self.score = self.folder / "score.py"
        self.score.write_text(SCORE)

    def run(self, name: str, **changes: Any) -> Run:
        """Write a recipe of two small steps; `section__key=value` changes it."""
        folder = self.folder / name
        settings: dict[str, Any] = {
            "algorithm.adv_estimator": "grpo",
            "data.train_files": str(self.train),
            "data.max_prompt_length": 64,
            "data.max_response_length": 24,
            "data.train_batch_size": 4,
            "actor_rollout_ref.model.path": str(self.model),
            "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
            "actor_rollout_ref.actor.optim.lr": 1e-3,
            "actor_rollout_ref.rollout.name": "embedded",
            "actor_rollout_ref.rollout.n": 2,
            "actor_rollout_ref.rollout.embedded.threads": 1,
            "actor_rollout_ref.rollout.embedded.max_running_requests": 8,
            "custom_reward_function.path": str(self.score),
            "trainer.device": "cpu",
            "trainer.backend": "local",
            "trainer.threads_per_rank": 1,
            "trainer.total_training_steps": 2,
            "trainer.logger": ["jsonl"],
            "trainer.default_local_dir": str(folder),
            "trainer.rollout_data_dir": str(folder / "rollouts"),
            "ray_init.num_cpus": 2,
        }
        settings |= {key.replace("__", "."): value for key, value in changes.items()}
        recipe = self.folder / f"{name}.yaml"
        recipe.write_text(yaml.safe_dump(nested(settings)))
        return Run(recipe, folder)


@dataclass
class Process:
    """An `agentrl` command that runs."""

    popen: subprocess.Popen[str]
    mark: str

    def finish(self, timeout_s: float = 600) -> tuple[int, str]:
        """Wait for its end; exit code and everything that it wrote."""
        output, _ = self.popen.communicate(timeout=timeout_s)
        return self.popen.returncode, output

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command itself."""
        self.popen.send_signal(number)

    def press_ctrl_c(self) -> None:
        """As a terminal does it: a signal to the whole process group."""
        os.killpg(self.popen.pid, signal.SIGINT)

    def family(self) -> list[psutil.Process]:
        """Every living process of the run, wherever it hangs in the process tree."""
        return [process for process in psutil.process_iter() if self._is_member(process)]

    def _is_member(self, process: psutil.Process) -> bool:
        try:
            return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == self.mark
        except psutil.Error:
            return False


COLD = (sys.executable, "-c", "from agentrl.cli import main; main()")


def start(*arguments: str, program: Sequence[str] = COLD) -> Process:
    """Start `agentrl ARGUMENTS`."""
    mark = uuid.uuid4().hex
    popen = subprocess.Popen(
        [*program, *arguments],
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    return Process(popen, mark)


@contextmanager
def started(*arguments: str, program: Sequence[str] = COLD) -> Iterator[Process]:
    """As `start`; at the end no process of it may be left."""
    process = start(*arguments, program=program)
    try:
        yield process
        # Agents of a Ray whose driver was killed first try to report that, for up to a minute.
        wait_until(lambda: not process.family(), 120, lambda: f"left behind: {process.family()}")
    finally:
        for member in process.family():
            member.kill()
        process.popen.wait()
        if process.popen.stdout is not None:
            process.popen.stdout.close()


def finished(*arguments: str, cold: bool = False) -> tuple[int, str]:
    """Run `agentrl ARGUMENTS` to its end, in a warm process; exit code and output. It may leave no process."""
    with started(*arguments, program=COLD if cold else [str(warm_commands() / "agentrl")]) as process:
        return process.finish()


def wait_until(happened: Callable[[], object], timeout_s: float, told: Callable[[], str] = lambda: "") -> None:
    """Poll."""
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline, f"it did not happen in {timeout_s} s. {told()}"
        time.sleep(0.02)


def wait_for_steps(run: Run, count: int, process: Process) -> None:
    """Wait until this number of steps is logged."""

    def logged() -> bool:
        if process.popen.poll() is not None:
            raise AssertionError(f"the run ended early:\n{process.finish()[1]}")
        file = run.folder / "metrics.jsonl"
        return file.is_file() and file.read_text().count("\n") >= count

    wait_until(logged, 600)


@contextmanager
def serving(model: Path, *options: str) -> Iterator[str]:
    """`agentrl serve engine` on a free port; gives its address."""
    port = free_port()
    arguments = ["--model", str(model), "--port", str(port), "--threads", "1", "--device", "cpu"]
    arguments += ["--max-running-requests", "8", "--max-context-length", "128"]
    address = f"http://127.0.0.1:{port}"
    with started("serve", "engine", *arguments, *options) as process:

        def healthy() -> bool:
            assert process.popen.poll() is None, process.finish()[1]
            try:
                return httpx.get(f"{address}/health", trust_env=False).status_code == 200
            except httpx.HTTPError:
                return False

        wait_until(healthy, 120)
        yield address
        process.send(signal.SIGTERM)
        process.finish()


def kill_listener(address: str) -> None:
    """Kill the process that listens on an address."""
    port = int(address.rsplit(":", 1)[1])
    [pid] = {c.pid for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr.port == port}
    psutil.Process(pid).kill()
