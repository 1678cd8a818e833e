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
from agentrl.cli.demo.calculator import CALCULATOR
from agentrl.cli.demo.demos import DEMOS, demo_named
from agentrl.cli.demo.description import Demo
from agentrl.cli.demo.service import running_service
from agentrl.cli.demo.show import TrainingShow, WarmStartShow
from agentrl.cli.demo.warm_start import WarmStart, prepare_warm_start
from agentrl.cli.errors import INTERRUPTED
from agentrl.config import RunConfig, load_config
from agentrl.errors import CheckpointError, UserInputError
from agentrl.observability.tracker import Tracker
from agentrl.observability.trackers import make_trackers

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
    """Overrides of the demo's recipe for the reinforcement learning."""
    demo: Demo = CALCULATOR
    seed: int | None = None
    """Of rows, weights and both trainings; None: as in the recipes."""


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
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] [section.key=value]...",
            help=f"{', '.join(DEMOS)}; default: {CALCULATOR.name}. Then overrides of its recipe in configs/.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the demo. Default: outputs/demo, outputs/demo_NAME.")
    ] = None,
    from_gsm8k: Annotated[
        Path | None, typer.Option(help="GSM8K jsonl file: train the calculator on the expressions of its annotations.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Make the warm start again even if it exists.")] = False,
    prepare_only: Annotated[
        bool,
        typer.Option("--prepare", help="Only write what `agentrl train configs/demo.yaml` needs: data and warm start."),
    ] = False,
    warm_start_steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of the warm start. Default: that of its recipe.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of rows, weights and training. Default: that of the recipes.")
    ] = None,
) -> None:
    """Watch a tiny model learn to act, in minutes on a CPU: to use a calculator, to search, and more."""
    given = list(arguments or [])
    named = bool(given) and "=" not in given[0] and not given[0].startswith("~")
    demo = demo_named(given.pop(0)) if named else CALCULATOR
    if from_gsm8k is not None and demo is not CALCULATOR:
        raise UserInputError(f"--from-gsm8k: got it with the demo {demo.name}, wanted the demo {CALCULATOR.name}")
    folder = out or (demo.folder if from_gsm8k is None else demo.folder.with_name("demo_gsm8k"))
    options = DemoOptions(folder, from_gsm8k, fresh, prepare_only, warm_start_steps, given, demo, seed)
    run_demo(options, Console())


def run_demo(options: DemoOptions, console: Console) -> report.Summary | None:
    """Run the whole demo.

    Args:
        options: what to run.
        console: where to show it.

    Returns:
        The numbers of `summary.json`; None with `prepare_only`.

    Raises:
        AgentRLError: the options cannot be used, the demo's service does not start, or the run failed.
        KeyboardInterrupt: after a clean stop.
    """
    began, demo = time.monotonic(), options.demo
    config = None if options.prepare_only else _run_config(options)
    _open_folder(options)
    start = _warm_start(options, console)
    served = list(demo.service.options(options.out)) if demo.service else []
    if config is None:
        return None
    console.print(
        f"Reinforcement learning: GRPO, {config.trainer.total_training_steps} steps of {config.data.train_batch_size} "
        f"{demo.questions} x {config.actor_rollout_ref.rollout.n} conversations, measured on held-out "
        f"{demo.questions}.",
        highlight=False,
    )
    show = TrainingShow(console, demo)
    folder = _run_folder(options)
    trackers = [show, *make_trackers([name for name in config.trainer.logger if name != "console"])]
    _train(options, config, served, trackers, console)
    assert config.trainer.validation_data_dir is not None
    dumps = Path(config.trainer.validation_data_dir)
    summary = report.summarize(demo, show.history, time.monotonic() - began)
    before, after = report.pick_conversations(dumps / "0.jsonl", dumps / f"{summary.rl_steps}.jsonl")
    picture = options.out / _PICTURE
    try:
        report.plot(demo, show.history, picture)
        summary.write(options.out / _SUMMARY)
    except OSError as error:
        raise CheckpointError(f"cannot write the report to {options.out}: {error.strerror or error}") from error
    report.show_conversations(console, before, after)
    _show_files(console, options.out, folder, picture, start)
    console.print(summary.line(), highlight=False, soft_wrap=True)
    return summary


def _train(
    options: DemoOptions, config: RunConfig, served: Sequence[str], trackers: list[Tracker], console: Console
) -> None:
    """Run the training, with the demo's service if it needs one."""
    from agentrl.trainer.run import run_training

    need = options.demo.service
    if need is None:
        run_training(config, trackers)
        return
    log = options.out / f"{need.name}.log"
    with running_service(need.name, served, log) as url:
        console.print(f"`agentrl serve {need.name}` runs at {url} and logs to {log}.", soft_wrap=True, highlight=False)
        run_training(_run_config(options, need.overrides(options.out, url)), trackers)


def _warm_start(options: DemoOptions, console: Console) -> WarmStart:
    console.print(f"Warm start: a tiny random model imitates mixed demonstrations ({options.demo.habits}).")
    trackers = [WarmStartShow(console), *make_trackers(["jsonl"])]
    start = prepare_warm_start(
        options.out,
        trackers,
        demo=options.demo,
        seed=options.seed,
        from_gsm8k=options.from_gsm8k,
        steps=options.warm_start_steps,
        fresh=options.fresh,
    )
    console.print(
        f"Warm start {'found' if start.reused else 'written'}: {start.model}", soft_wrap=True, highlight=False
    )
    return start


def _run_config(options: DemoOptions, of_service: Sequence[str] = ()) -> RunConfig:
    """The recipe with the demo's own folders; read before anything runs, so that a wrong override fails at once."""
    out, folder = options.out, _run_folder(options)
    paths = {
        "data.train_files": out / "data" / "train.parquet",
        "data.val_files": out / "data" / "test.parquet",
        "actor_rollout_ref.model.path": out / "warm_start" / "huggingface",
        "trainer.default_local_dir": folder,
        "trainer.rollout_data_dir": folder / "rollouts",
        "trainer.validation_data_dir": folder / "validation",
    }
    own = [f"{key}={json.dumps(str(path))}" for key, path in paths.items()]
    own += ["trainer.resume_mode=disable", "trainer.save_freq=${trainer.total_training_steps}"]
    if options.seed is not None:
        own += [f"data.seed={options.seed}", f"trainer.seed={options.seed}"]
    config = load_config(options.demo.recipe, [*own, *of_service, *options.overrides])
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
            f"For other runs use `agentrl train configs/{options.demo.recipe}.yaml`"
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
        "conversations": f"agentrl view {folder}",
        "warm start": str(start.model),
        "tensorboard": f"tensorboard --logdir {folder / 'tensorboard'}",
    }
    for title, text in lines.items():
        console.print(f"{title:>13}: {text}", soft_wrap=True, highlight=False, markup=False)
