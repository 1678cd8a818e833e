"""What tells one demo from another: its rows, its demonstrations, its recipes, its service and its second curve."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from agentrl.data.preprocess.writing import write_parquets
from agentrl.types import JsonDict, Message

TRAIN_ROWS = 8192
HELD_OUT_ROWS = 512

HabitT = TypeVar("HabitT")


@dataclass(frozen=True, slots=True)
class DataRequest:
    """The files that a demo is asked to write, and how."""

    folder: Path
    demonstrations: int
    """How many conversations to imitate."""
    train_rows: int
    held_out_rows: int
    seed: int
    """Seed of every draw."""
    tools: str | None = None
    """Tool YAML of the demonstrations."""
    from_gsm8k: Path | None = None


@dataclass(frozen=True, slots=True)
class DemoData:
    """Parquet files of a demo."""

    demonstrations: Path
    train: Path
    held_out: Path


@dataclass(frozen=True, slots=True)
class Curve:
    """What rises besides success."""

    title: str
    """`tool calls`."""
    key: str
    """Its name in `summary.json`, before `_before` and `_after`."""
    held_out: str
    """Its metric on held-out rows."""
    training: str
    """Its metric in training rollouts."""


TOOL_CALLS = Curve("tool calls", "tool_rate", "val-aux/tool_call_rate", "rollout/tool_call_rate")


@dataclass(frozen=True, slots=True)
class ServiceNeed:
    """A service that the demo starts for its reinforcement learning."""

    name: str
    """As in `agentrl serve NAME`."""
    options: Callable[[Path], Sequence[str]]
    """Makes what the service reads in the demo's folder; returns its options."""
    overrides: Callable[[Path, str], Sequence[str]]
    """Overrides of the recipe, by which the run reaches the service: of the demo's folder and the address."""


@dataclass(frozen=True, slots=True)
class Demo:
    """One demo."""

    name: str
    title: str
    questions: str
    """What its rows ask: `expressions`."""
    habits: str
    """What is wrong with some of the demonstrations."""
    recipe: str
    """Of the reinforcement learning, in `configs/`."""
    warm_start: str
    """Recipe of the supervised training."""
    folder: Path
    """Where its recipes look for what it writes."""
    data_source: str
    write: Callable[[DataRequest], DemoData]
    pieces: tuple[str, ...] = ()
    """Texts that its tokenizer has as one token, besides those of every demo."""
    train_rows: int = TRAIN_ROWS
    second: Curve = TOOL_CALLS
    service: ServiceNeed | None = None

    @property
    def success(self) -> str:
        """The metric of success on held-out rows."""
        return f"val-core/{self.data_source}/reward/mean@1"

    @property
    def model(self) -> Path:
        """The warm-started model that its recipe names."""
        return self.folder / "warm_start" / "huggingface"


def draw_habits(rng: random.Random, shares: Mapping[HabitT, float], count: int) -> list[HabitT]:
    """The habit of each demonstration."""
    return rng.choices(list(shares), list(shares.values()), k=count)


def write_demo_rows(
    folder: Path, demonstrations: Sequence[Sequence[Message]], train: Sequence[JsonDict], held_out: Sequence[JsonDict]
) -> DemoData:
    """Write conversations to imitate, rows to train on and rows to measure on."""
    data = DemoData(*(folder / f"{name}.parquet" for name in ("demonstrations", "train", "test")))
    shown = [{"messages": list(messages)} for messages in demonstrations]
    write_parquets({data.demonstrations: shown, data.train: train, data.held_out: held_out})
    return data
