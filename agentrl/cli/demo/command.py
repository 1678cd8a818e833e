"""`agentrl demo`: warm start, reinforcement learning, report."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from agentrl.cli.demo import report
from agentrl.cli.demo.show import TrainingShow, WarmStartShow
from agentrl.cli.demo.warm_start import DEMO_FOLDER, WarmStart, prepare_warm_start
from agentrl.cli.errors import INTERRUPTED
from agentrl.config import RunConfig, load_config
from agentrl.errors import CheckpointError, UserInputError
from agentrl.observability.trackers import make_trackers

RECIPE = "demo"
_SUMMARY, _PICTURE = "summary.json", "progress.png"
_RUN_FILES = ("metrics.jsonl", "config.yaml", "tensorboard", "validation", "latest_checkpointed_iteration.txt")


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of the command line."""

    out: Path
    from_gsm8k: Path | None = None
    """A GSM8K jsonl file: train on the expressions of its annotations instead of generated ones."""
    fresh: bool = False
    """Train the warm start again even if it exists."""
    prepare_only: bool = False
    """Stop after the warm start."""
    warm_start_steps: int | None = None
    overrides: list[str] = field(default_factory=list)
    """Overrides of `configs/demo.yaml` for the reinforcement learning."""


def main(args: Sequence[str]) -> None:
    """Read the arguments of `agentrl demo` and run it."""
    app = typer.Typer(add_completion=False)
    app.command("demo")(_command)
    code = typer.main.get_command(app).main(list(args), prog_name="agentrl demo", standalone_mode=False)
    if code == INTERRUPTED:  # typer has turned Ctrl-C into this code; the outer command reports it
        raise KeyboardInterrupt
    if code:
        raise typer.Exit(code)


def _command(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Overrides of configs/demo.yaml: section.key=value.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the demo. Default: outputs/demo or outputs/demo_gsm8k.")
    ] = None,
    from_gsm8k: Annotated[
        Path | None, typer.Option(help="GSM8K jsonl file: train on the expressions of its annotations.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Make the warm start again even if it exists.")] = False,
    prepare_only: Annotated[
        bool,
        typer.Option("--prepare", help="Only write data and warm start for `agentrl train configs/demo.yaml`."),
    ] = False,
    warm_start_steps: Annotated[int | None, typer.Option(min=1, help="Steps of the warm start. Default: 800.")] = None,
) -> None:
    """Watch a tiny model learn to use a calculator, in minutes on a CPU."""
    folder = out or (DEMO_FOLDER if from_gsm8k is None else DEMO_FOLDER.with_name("demo_gsm8k"))
    run_demo(DemoOptions(folder, from_gsm8k, fresh, prepare_only, warm_start_steps, overrides or []), Console())


def run_demo(options: DemoOptions, console: Console) -> report.Summary | None:
    """Run the whole demo.

    Args:
        options: what to run.
        console: where to show it.

    Returns:
        The numbers of `summary.json`; None with `prepare_only`.

    Raises:
        AgentRLError: the options cannot be used, or the run failed.
        KeyboardInterrupt: after a clean stop.
    """
    began = time.monotonic()
    config = None if options.prepare_only else _run_config(options)
    _open_folder(options)
    start = _warm_start(options, console)
    if config is None:
        return None
    console.print(
        f"Reinforcement learning: GRPO, {config.trainer.total_training_steps} steps of {config.data.train_batch_size} "
        f"expressions x {config.actor_rollout_ref.rollout.n} conversations, measured on held-out expressions.",
        highlight=False,
    )
    show = TrainingShow(console)
    folder = _run_folder(options)
    from agentrl.trainer.run import run_training

    run_training(config, [show, *make_trackers([name for name in config.trainer.logger if name != "console"])])
    assert config.trainer.validation_data_dir is not None
    dumps = Path(config.trainer.validation_data_dir)
    summary = report.summarize(show.history, time.monotonic() - began)
    before, after = report.pick_conversations(dumps / "0.jsonl", dumps / f"{summary.rl_steps}.jsonl")
    picture = options.out / _PICTURE
    try:
        report.plot(show.history, picture)
        summary.write(options.out / _SUMMARY)
    except OSError as error:
        raise CheckpointError(f"cannot write the report to {options.out}: {error.strerror or error}") from error
    report.show_conversations(console, before, after)
    _show_files(console, options.out, folder, picture, start)
    console.print(summary.line(), highlight=False, soft_wrap=True)
    return summary


def _warm_start(options: DemoOptions, console: Console) -> WarmStart:
    console.print(
        "Warm start: a tiny random model imitates mixed demonstrations (some ignore the tool, some misuse it)."
    )
    trackers = [WarmStartShow(console), *make_trackers(["jsonl"])]
    start = prepare_warm_start(
        options.out,
        trackers,
        from_gsm8k=options.from_gsm8k,
        steps=options.warm_start_steps,
        fresh=options.fresh,
    )
    console.print(
        f"Warm start {'found' if start.reused else 'written'}: {start.model}", soft_wrap=True, highlight=False
    )
    return start


def _run_config(options: DemoOptions) -> RunConfig:
    """The recipe with the demo's own folders; read before anything runs, so that a wrong override fails at once."""
    out, folder = options.out, _run_folder(options)
    paths = {
        "data.train_files": out / "data" / "train.parquet",
        "data.val_files": out / "data" / "test.parquet",
        "actor_rollout_ref.model.path": out / "warm_start" / "huggingface",
        "trainer.default_local_dir": folder,
        "trainer.validation_data_dir": folder / "validation",
    }
    own = [f"{key}={json.dumps(str(path))}" for key, path in paths.items()]
    own += ["trainer.resume_mode=disable", "trainer.save_freq=${trainer.total_training_steps}"]
    config = load_config(RECIPE, [*own, *options.overrides])
    needed = {
        "trainer.val_before_train=true": config.trainer.val_before_train,
        "trainer.val_only=false": not config.trainer.val_only,
        "trainer.test_freq of at least 1": config.trainer.test_freq >= 1,
        "rollout.val_kwargs.n=1": config.actor_rollout_ref.rollout.val_kwargs.n == 1,
        "the demo's own rows": config.data.val_files == str(paths["data.val_files"]),
    }
    missing = [what for what, given in needed.items() if not given]
    if missing:
        raise UserInputError(
            f"the demo compares before and after on its held-out rows and needs {', '.join(missing)}. "
            "For other runs use `agentrl train configs/demo.yaml`"
        )
    return config


def _run_folder(options: DemoOptions) -> Path:
    return options.out / "run"


def _open_folder(options: DemoOptions) -> None:
    """Create the demo's folder. Delete the results of an earlier demo, so that nobody takes them for this one's."""
    folder = _run_folder(options)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        if options.prepare_only:
            return
        old = [options.out / _SUMMARY, options.out / _PICTURE, *(folder / name for name in _RUN_FILES)]
        for path in [*old, *folder.glob("global_step_*")]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise UserInputError(f"cannot write to {options.out}: {error.strerror or error}") from error


def _show_files(console: Console, out: Path, folder: Path, picture: Path, start: WarmStart) -> None:
    lines = {
        "plot": str(picture),
        "numbers": str(out / _SUMMARY),
        "run folder": str(folder),
        "conversations": str(folder / "validation"),
        "warm start": str(start.model),
        "tensorboard": f"tensorboard --logdir {folder / 'tensorboard'}",
    }
    for title, text in lines.items():
        console.print(f"{title:>13}: {text}", soft_wrap=True, highlight=False, markup=False)
