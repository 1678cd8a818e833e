"""The warm start: everything that reinforcement learning needs, built once and recognised by its content hash."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from agentrl.cli.demo.calculator import CALCULATOR
from agentrl.cli.demo.demos import DEMOS
from agentrl.cli.demo.description import HELD_OUT_ROWS, DataRequest, Demo, DemoData
from agentrl.cli.demo.model import build_model
from agentrl.config import RunConfig, load
from agentrl.config.sft import SFT_CHECKS, SFTConfig
from agentrl.errors import CheckpointError, ConfigError
from agentrl.observability.tracker import Tracker
from agentrl.observability.trackers import make_trackers

KEY_FILE = "content_key.json"


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Where the demo's inputs are."""

    data: DemoData
    model: Path
    """Hugging Face folder of the warm-started model."""
    reused: bool
    """True if an earlier run made it."""


def prepare_warm_start(
    out: Path,
    trackers: Sequence[Tracker],
    *,
    demo: Demo = CALCULATOR,
    seed: int | None = None,
    from_gsm8k: Path | None = None,
    steps: int | None = None,
    fresh: bool = False,
    train_rows: int | None = None,
    held_out_rows: int = HELD_OUT_ROWS,
) -> WarmStart:
    """Write the data and the untrained model, then train the warm start unless the same one exists.

    Args:
        out: the demo's folder.
        trackers: receive the training's metrics.
        demo: which demo.
        seed: of rows, initial weights and training; None: as in the recipe.
        from_gsm8k: a GSM8K jsonl file to take expressions from; None: generate them.
        steps: steps of the warm start; None: as in the recipe.
        fresh: train it even if it exists.
        train_rows: questions to train on; None: as many as the demo has.
        held_out_rows: questions to measure on.

    Raises:
        UserInputError: the GSM8K file cannot be used.
        CheckpointError: the model cannot be written.
    """
    config = _recipe(demo, out, steps, seed)
    assert config.trainer.total_training_steps is not None
    data = demo.write(
        DataRequest(
            out / "data",
            demonstrations=config.trainer.total_training_steps * config.data.train_batch_size,
            train_rows=demo.train_rows if train_rows is None else train_rows,
            held_out_rows=held_out_rows,
            seed=config.trainer.seed,
            tools=config.data.tool_config_path,
            from_gsm8k=from_gsm8k,
        )
    )
    untrained = build_model(Path(config.model.path), config.trainer.seed, demo.pieces)
    key = _content_key(config, data, untrained)
    folder = Path(config.trainer.default_local_dir)
    if not fresh and _has(folder, key):
        return WarmStart(data, folder / "huggingface", reused=True)
    from agentrl.trainer.sft import run_sft

    (folder / KEY_FILE).unlink(missing_ok=True)
    model = run_sft(config, trackers)
    _write_key(folder, key)
    return WarmStart(data, model, reused=False)


def prepare_if_missing(config: RunConfig) -> None:
    """Make the warm start if the run starts from it and it does not exist yet.

    A run of another model is not changed, and an existing model is used however it was made.
    """
    demo = _missing_demo(config)
    if demo is None:
        return
    from rich.console import Console

    from agentrl.cli.demo.show import WarmStartShow

    console = Console()
    console.print(f"No warm start in {demo.folder} yet: making it.", soft_wrap=True, highlight=False)
    prepare_warm_start(demo.folder, [WarmStartShow(console), *make_trackers(["jsonl"])], demo=demo)


def refuse_if_missing(config: RunConfig) -> None:
    """For `--dry-run`, instead of `prepare_if_missing`: it must not train anything.

    Raises:
        ConfigError: the run starts from a warm start that does not exist yet.
    """
    demo = _missing_demo(config)
    if demo is not None:
        command = "agentrl demo" if demo is CALCULATOR else f"agentrl demo {demo.name}"
        raise ConfigError(
            f"actor_rollout_ref.model.path: no warm start in {demo.folder} yet. `{command} --prepare` makes it, and "
            "so does this run without --dry-run"
        )


def _missing_demo(config: RunConfig) -> Demo | None:
    """The demo whose warm start the run begins with, if it does not exist yet."""
    model = Path(config.actor_rollout_ref.model.path)
    return next((demo for demo in DEMOS.values() if model == demo.model and not model.exists()), None)


def _recipe(demo: Demo, out: Path, steps: int | None, seed: int | None = None) -> SFTConfig:
    overrides = [
        f"data.train_files={json.dumps(str(out / 'data' / 'demonstrations.parquet'))}",
        f"model.path={json.dumps(str(out / 'untrained'))}",
        f"trainer.default_local_dir={json.dumps(str(out / 'warm_start'))}",
        "trainer.resume_mode=disable",  # what is there is of other content
    ]
    if steps is not None:
        overrides.append(f"trainer.total_training_steps={steps}")
    if seed is not None:
        overrides.append(f"trainer.seed={seed}")
    return load(demo.warm_start, overrides, SFTConfig, SFT_CHECKS)


def _content_key(config: SFTConfig, data: DemoData, untrained: Path) -> str:
    """Hash of everything that the trained weights depend on: rows, initial weights, tokenizer, recipe."""
    recipe = config.model_dump(mode="json")
    recipe["trainer"] = {key: recipe["trainer"][key] for key in ("seed", "total_training_steps")}
    recipe["data"].pop("train_files")
    recipe["data"].pop("tool_config_path")
    recipe["model"].pop("path")
    files = [untrained / name for name in ("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja")]
    return fingerprint(recipe, data.demonstrations, *files)


def _has(folder: Path, key: str) -> bool:
    """Whether the folder holds a finished model of this content; the key is written last."""
    try:
        known = json.loads((folder / KEY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return known == {"key": key} and (folder / "huggingface" / "model.safetensors").is_file()


def _write_key(folder: Path, key: str) -> None:
    part = folder / f".{KEY_FILE}.part"
    try:
        part.write_text(json.dumps({"key": key}), encoding="utf-8")
        os.replace(part, folder / KEY_FILE)
    except OSError as error:
        raise CheckpointError(f"cannot write {folder / KEY_FILE}: {error.strerror or error}") from error


def fingerprint(*parts: object) -> str:
    """A short hash of files and plain values."""
    digest = sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else json.dumps(part, sort_keys=True).encode()
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()[:16]
