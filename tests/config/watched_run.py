"""A tiny run in this process, and everything about it that a user could see: what a key that acts must change.

Real: the configuration, data, agent loops, tools, scores, batches, workers, checkpoints, trackers. In place of engines
and of Ray there are stand-ins that keep what they are told: command lines, requests, ranks, deadlines.
"""

from __future__ import annotations

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
from stand_ins import StandIns

from agentrl.config import RunConfig, engine_choice, load_config, machine
from agentrl.config.base import Section
from agentrl.config.schema import _alternatives, walk
from agentrl.errors import ConfigError
from agentrl.inference import sglang
from agentrl.placement.of_run import engine_count
from agentrl.rollout.pools.local import LoopThread
from agentrl.testing.models import byte_tokenizer
from agentrl.testing.scripted_engine import ScriptedEngine
from agentrl.trainer import run

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
        self._stand_ins = StandIns(self.address)
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
        self._stand_ins.install(patch)

    def close(self) -> None:
        torch.use_deterministic_algorithms(False)
        self._thread.submit(self._engine.stop()).result(10)
        self._thread.stop()

    @contextlib.contextmanager
    def surroundings(self, changes: Mapping[str, Any]) -> Iterator[None]:
        """With the device `cuda` this machine pretends to have GPUs, SGLang and vLLM; nothing is run then."""
        with pytest.MonkeyPatch.context() as patch:
            if on_gpus(changes):
                for module in (machine, sglang):
                    patch.setattr(module, "sglang_installed", lambda: True)
                for module in (engine_choice, sglang):
                    patch.setattr(module, "vllm_installed", lambda: True)
                patch.setattr(sglang, "has_package", lambda *_: True)
            yield

    def load(self, changes: Mapping[str, Any]) -> RunConfig:
        return load_config({"trainer.default_local_dir": str(self._folder / "run"), **self.base, **changes})

    def watch(self, changes: Mapping[str, Any]) -> Seen:
        """Run; what was seen, by the part of the run that showed it."""
        config = self.load(changes)
        if on_gpus(changes):
            try:
                servers = range(engine_count(config))
            except ConfigError as error:
                return {"metrics": {}, "ended": str(error)}
            return {"metrics": {}, "engines": [sglang.launch_command(config, index, "host", 1) for index in servers]}
        place = Path(config.trainer.default_local_dir)
        self._clean()
        self._stand_ins.seen = {"delays": set(), "calls": set()}
        self._engine.weight_version = "default"
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
            **{name: sorted(what) for name, what in self._stand_ins.seen.items()},
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


def on_gpus(changes: Mapping[str, Any]) -> bool:
    return changes.get("trainer.device") == "cuda"


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
