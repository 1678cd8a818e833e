"""A tiny run in this process, and everything about it that a user could see: what a key that acts must change.

Real: the configuration, data, agent loops, tools, scores, batches, workers, checkpoints, trackers. In place of engines
and of Ray there are stand-ins that keep what they are told: command lines, requests, ranks, deadlines.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import PreTrainedModel

from agentrl.config import RunConfig, load_config, machine
from agentrl.config.base import Section
from agentrl.config.schema import _alternatives, walk
from agentrl.errors import ConfigError
from agentrl.inference import launch, sglang
from agentrl.inference.client import EngineClient
from agentrl.inference.launch import EngineServers
from agentrl.observability.health import Alarm, HealthMonitor
from agentrl.observability.tracker import RunInfo
from agentrl.observability.trackers import Trackers
from agentrl.own_time import OwnTimeLimit
from agentrl.rewards.scores.code import CodeScore
from agentrl.rollout import setup
from agentrl.rollout.manager import AgentLoopManager
from agentrl.rollout.pools import ray_pool
from agentrl.rollout.pools.local import LocalPool, LoopThread
from agentrl.rollout.service_gate import ServiceGate
from agentrl.rollout.setup import RolloutSetup
from agentrl.single_controller import ray_runtime
from agentrl.testing.models import byte_tokenizer
from agentrl.testing.scripted_engine import ScriptedEngine
from agentrl.trainer import processes, run
from agentrl.trainer.checkpoint import CheckpointManager
from agentrl.trainer.state import TrainerState
from agentrl.workers import fsdp_model

CALL = '<tool_call>\n{{"name": "times", "arguments": {{"n": {}}}}}\n</tool_call>'
TOOL = '''
from agentrl.types import ToolResponse


async def times(n: int) -> ToolResponse:
    """Seven times n.

    Args:
        n: a number.
    """
    return ToolResponse(str(7 * n), reward=0.3)
'''
UNEQUAL = ("timing_s/", "timing_per_token_ms/", "perf/")
"""Metrics that no two runs share."""
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.function.name }} {% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'tool' %}:{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{{ hint | default('') }}{% endif %}"
)
"""Short, so that a run takes a moment; a tool's answer begins with a colon."""
Seen = dict[str, Any]


def write_rows(path: Path, first: int, count: int, **columns: Any) -> str:
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{i} + {'1' * (i % 5 + 1)}"}],
            "data_source": "agentrl/arithmetic",
            "agent_name": "single_turn_agent" if i % 4 == 2 else None,
            "reward_model": {"style": "rule", "ground_truth": "1"},
            **columns,
        }
        for i in range(first, first + count)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


class Stage:
    """Runs configurations and tells what was seen.

    Args:
        folder: for rows and runs.
        model: folder of a tiny model.
        patch: puts the stand-ins in place.
    """

    def __init__(self, folder: Path, model: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._tokenizer = byte_tokenizer()
        self._thread = LoopThread("scripted-engine")
        self._engine = ScriptedEngine(self._respond)
        self.address = self._thread.submit(self._engine.start()).result(10)
        self._asked: Counter[tuple[int, ...]] = Counter()
        self._seen: Seen = {}
        self._kept: set[Path] = set()
        self.notes: list[str] = []
        """What the last run said about its keys after its configuration was loaded."""
        (folder / "times.py").write_text(TOOL)
        (folder / "tools.yaml").write_text("tools: [{class_name: times.py:times}]")
        (folder / "tools2.yaml").write_text("tools: [{class_name: times.py:times, config: {max_concurrent: 1}}]")
        self.base: dict[str, Any] = {
            "algorithm.adv_estimator": "grpo",
            "data.train_files": write_rows(folder / "train.parquet", 0, 10),
            "data.train_batch_size": 2,
            "data.shuffle": False,
            "data.max_prompt_length": 100,
            "data.max_response_length": 220,
            "actor_rollout_ref.model.path": str(model),
            "actor_rollout_ref.model.chat_template": TEMPLATE,
            "actor_rollout_ref.actor.ppo_mini_batch_size": 1,
            "actor_rollout_ref.actor.optim.lr": 1e-2,
            "actor_rollout_ref.actor.grad_clip": 0.01,
            "actor_rollout_ref.actor.clip_ratio": 0.001,
            "actor_rollout_ref.actor.clip_ratio_c": 1.001,
            "actor_rollout_ref.rollout.n": 2,
            "actor_rollout_ref.rollout.multi_turn.tool_config_path": str(folder / "tools.yaml"),
            "actor_rollout_ref.rollout.multi_turn.max_assistant_turns": 3,
            "actor_rollout_ref.rollout.multi_turn.max_tool_response_length": 6,
            "actor_rollout_ref.rollout.agent.default_agent_loop": "tool_agent",
            "trainer.backend": "local",
            "trainer.device": "cpu",
            "trainer.total_training_steps": 1,
            "trainer.logger": ["jsonl"],
        }
        self._install(patch)

    def close(self) -> None:
        torch.use_deterministic_algorithms(False)
        self._thread.submit(self._engine.stop()).result(10)
        self._thread.stop()

    @contextlib.contextmanager
    def surroundings(self, changes: Mapping[str, Any]) -> Iterator[None]:
        """With the device `cuda` this machine pretends to have GPUs and SGLang; nothing is run then."""
        with pytest.MonkeyPatch.context() as patch:
            if on_gpus(changes):
                for module in (machine, sglang):
                    patch.setattr(module, "sglang_installed", lambda: True)
            yield

    def load(self, changes: Mapping[str, Any]) -> RunConfig:
        return load_config({"trainer.default_local_dir": str(self._folder / "run"), **self.base, **changes})

    def watch(self, changes: Mapping[str, Any]) -> Seen:
        """Run; what was seen, by the part of the run that showed it."""
        config = self.load(changes)
        if on_gpus(changes):
            servers = range(config.actor_rollout_ref.rollout.server.launch)
            return {"metrics": {}, "engines": [launch.launch_command(config, index, "host", 1) for index in servers]}
        place = Path(config.trainer.default_local_dir)
        self._clean()
        self._seen, self._engine.weight_version = {"delays": set(), "calls": set()}, "default"
        self._engine.requests.clear()
        self._engine.weight_updates.clear()
        self._asked.clear()
        torch.use_deterministic_algorithms(False)
        with listening() as self.notes:
            try:
                trainer = run.run_training(config)
                ended = f"step {trainer.state.step}"
            except Exception as error:  # how a run ends is something that a user sees
                ended = f"{type(error).__name__}: {error}"
        return {
            **{name: sorted(what) for name, what in self._seen.items()},
            "updates": sorted({str(Path(folder).parents[1]) for folder in self._engine.weight_updates}),
            "ended": ended,
            "requests": sorted(_digest({**body, "rid": ""}) for body in self._engine.requests),
            "metrics": _metrics(place),
            "files": _files(place),
        }

    def _clean(self) -> None:
        """Remove what earlier runs wrote."""
        if not self._kept:
            self._kept = set(self._folder.iterdir())
        for path in set(self._folder.iterdir()) - self._kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _keep(self, what: str, *details: Any) -> None:
        self._seen.setdefault("calls", set()).add(f"{what} {details!r:.2000}")

    def _respond(self, payload: dict[str, Any]) -> tuple[list[int], str]:
        """Of a group, one trajectory calls the tool twice and then answers 1; the next answers 2 at once."""
        prompt = tuple(payload["input_ids"])
        number = self._asked[prompt]
        self._asked[prompt] += 1
        before = self._tokenizer.decode(prompt[-40:])
        calls = "\n".join(CALL.format(digits) for digits in ("12345678", "9"))
        text = "#### 1" if "tool\n:" in before else "#### 2" if number % 2 or "user\nAgain" in before else calls
        ids = [*self._tokenizer.encode(text, add_special_tokens=False), self._tokenizer.eos_token_id]
        most = payload["sampling_params"]["max_new_tokens"]
        return (ids, "stop") if len(ids) <= most else (ids[:most], "length")

    def _install(self, patch: pytest.MonkeyPatch) -> None:
        def start_local(backend: str, pool: Any, *args: Any) -> Any:
            self._keep("ranks", backend, pool.process_on_nodes, pool.use_gpu, pool.threads_per_rank)
            return real_group("local", type(pool)(threads_per_rank=1), *args)

        def ray_cluster(*args: Any, **kwargs: Any) -> Any:
            self._keep("ray", args, kwargs)
            return contextlib.nullcontext()

        def rollout_pool(config: RunConfig, addresses: list[str], slots: list[int]) -> LocalPool:
            self._keep("workers", slots)
            return LocalPool(RolloutSetup.load(config), addresses, slots[0])

        def spawn(servers: EngineServers, server: Any) -> None:
            port = server.port if servers._config.actor_rollout_ref.rollout.server.port else "free"
            command = launch.launch_command(servers._config, server.index, server.host, port)
            self._keep("engine", server.host, command[1:])

        def healthy(servers: EngineServers, addresses: list[str], limit_s: float) -> EngineServers:
            self._keep("engines", len(addresses), limit_s)
            servers.addresses = [self.address]
            return servers

        real_group, real_renderer = processes.create_worker_group, setup.load_renderer
        renderers: dict[str, Any] = {}

        def renderer(*args: Any, **kwargs: Any) -> Any:
            asked = repr((args, kwargs))
            if asked not in renderers:
                renderers[asked] = real_renderer(*args, **kwargs)
            return renderers[asked]

        patch.setattr(setup, "load_renderer", renderer)
        patch.setattr(processes, "create_worker_group", start_local)
        patch.setattr(ray_runtime, "init_ray", ray_cluster)
        patch.setattr(ray_pool, "RayPool", rollout_pool)
        patch.setattr(EngineServers, "_spawn", spawn)
        patch.setattr(EngineServers, "_wait_until_healthy", healthy)
        patch.setattr(run, "dump_config", lambda config: "")  # its change shows nothing

        def watch_passes(name: str) -> None:
            real = getattr(fsdp_model.FSDPModel, name)

            def call(model: fsdp_model.FSDPModel, micros: Any, *args: Any) -> Any:
                shapes = [tuple(micro.mask.shape) for micro in micros.batches]
                self._keep(name, type(model.net).__name__, model.optimizer is None, shapes)
                return real(model, micros, *args)

            patch.setattr(fsdp_model.FSDPModel, name, call)

        watch_passes("passes")
        watch_passes("infer")
        real_later = asyncio.base_events.BaseEventLoop.call_later

        def call_later(loop: Any, delay: float, *args: Any, **kwargs: Any) -> Any:
            self._seen.setdefault("delays", set()).add(round(float(delay)))
            return real_later(loop, delay, *args, **kwargs)

        patch.setattr(asyncio.base_events.BaseEventLoop, "call_later", call_later)
        real_step = fsdp_model.FSDPModel.step

        def step(model: fsdp_model.FSDPModel, lr: float) -> Any:
            report = real_step(model, lr)
            assert model.optimizer is not None
            state = {**model.state_tensors(), **model.optimizer.state_tensors()}
            digest = hashlib.sha1(b"".join(_bytes(state[name]) for name in sorted(state)))
            self._keep("weights", type(model.net).__name__, digest.hexdigest())
            return report

        patch.setattr(fsdp_model.FSDPModel, "step", step)
        real_finish = TrainerState.finish_step

        def finish(state: TrainerState, step: int) -> None:
            self._keep("KL weight", step, state.kl_controller.state_dict())
            real_finish(state, step)

        patch.setattr(TrainerState, "finish_step", finish)
        for owner, name in (
            (EngineClient, "__init__"),
            (ServiceGate, "__init__"),
            (CodeScore, "__init__"),
            (CheckpointManager, "find"),
            (HealthMonitor, "__init__"),
            (LocalPool, "__init__"),
            (PreTrainedModel, "gradient_checkpointing_enable"),
            *(
                (PreTrainedModel, name)
                for name in ("activation_checkpointing_enable",)
                if hasattr(PreTrainedModel, name)
            ),
            (OwnTimeLimit, "__init__"),
            (Trackers, "on_start"),
            (Trackers, "on_validation"),
            (Trackers, "on_generations"),
            (AgentLoopManager, "generate_sequences"),
            (fsdp_model, "fully_shard"),
            (torch.distributed, "init_process_group"),
            (torch, "use_deterministic_algorithms"),
        ):
            self._spy(patch, owner, name)
        for name in ("timeout", "wait", "wait_for"):
            self._spy_delays(patch, name)

    def _spy(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        real = getattr(owner, name)
        label = f"{getattr(owner, '__name__', owner)}.{name}"

        def call(*args: Any, **kwargs: Any) -> Any:
            skipped = int(isinstance(owner, type))  # `self`
            told = [_told(value) for value in args[skipped:]]
            named = {key: value for key, value in kwargs.items() if key not in ("mesh", "store")}
            self._keep(label, told, sorted(named.items(), key=str))
            return real(*args, **kwargs)

        patch.setattr(owner, name, call)

    def _spy_delays(self, patch: pytest.MonkeyPatch, name: str) -> None:
        real: Callable[..., Any] = getattr(asyncio, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            delay = kwargs.get("timeout", args[-1] if args else None)
            if isinstance(delay, int | float):
                self._seen.setdefault("delays", set()).add(round(float(delay), 1))
            return real(*args, **kwargs)

        patch.setattr(asyncio, name, call)


def _told(value: Any) -> Any:
    """What an argument says: a number, a text, a length, a dataclass of those."""
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, RunInfo):
        return value.project, value.experiment, value.total_steps
    if isinstance(value, list) and value and isinstance(value[0], Alarm):
        return value
    return len(value) if hasattr(value, "__len__") else type(value).__name__


def on_gpus(changes: Mapping[str, Any]) -> bool:
    return changes.get("trainer.device") == "cuda"


def _bytes(tensor: torch.Tensor) -> bytes:
    whole = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return bytes(str(whole.dtype), "ascii") + whole.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


def differences(one: Seen, other: Seen) -> list[str]:
    """Parts that differ; of the metrics, their names."""
    found = [part for part in one.keys() | other.keys() if part != "metrics" and one.get(part) != other.get(part)]
    ours, theirs = one["metrics"], other["metrics"]
    return sorted(found + [name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)])


def _metrics(folder: Path) -> dict[str, Any]:
    file = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    values: dict[str, Any] = {}
    for line in lines:
        for name, value in line.items():
            if not name.startswith(UNEQUAL):
                values.setdefault(name, []).append(value)
    return values


def _files(folder: Path) -> list[str]:
    return sorted(str(file) for file in folder.parent.rglob("*") if file.is_file() and "events.out" not in file.name)


def _digest(body: Any) -> str:
    text = json.dumps(body, sort_keys=True)
    return f"{json.dumps(body['sampling_params'], sort_keys=True)} {hashlib.sha1(text.encode()).hexdigest()}"


def changed_value(model: type[Section], key: str, current: Any, special: Mapping[str, list[Any]]) -> Any:
    """A value that a key does not have yet: of those that are special to it, or any of its kind."""
    if key in special:
        return next(value for value in special[key] if value != current)
    field = next(field for name, field in walk(model) if name == key)
    kind = _alternatives(field.annotation)[0]
    if get_origin(kind) is Literal:
        return next(choice for choice in get_args(kind) if choice != current)
    if kind is bool:
        return not current
    if kind is int:
        return (current or 0) + 2
    if kind is float:
        return current * 0.5 if current else 0.5
    return {"own": 1} if get_origin(kind) is dict else "own"


def heard(key: str, load: Callable[[], object]) -> str | None:
    """The note or error about a key while a configuration is loaded; None: it is not named."""
    with listening() as notes:
        try:
            load()
        except ConfigError as error:
            return str(error)
    return note_about(key, notes)


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    """The notes on keys that are told meanwhile."""
    notes: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: notes.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("agentrl.config.loader")
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        yield notes
    finally:
        logger.removeHandler(handler)


def note_about(key: str, notes: list[str]) -> str | None:
    """The note that says that a key, or its whole section, does nothing."""
    for note in notes:
        names = re.findall(r"[\w.]+(?:\*)?", note.partition(" no effect here: ")[0])
        if any(name == key or (name.endswith(".*") and key.startswith(name[:-1])) for name in names):
            return note
    return None
