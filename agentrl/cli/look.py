"""The commands that look at runs: `agentrl runs | show | diff | replay | doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, a folder of dumps, or one dump.")]
Validation = Annotated[
    bool, typer.Option("--validation", help="The dumps of validation (default: those of training, if there are any).")
]


app = typer.Typer()


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="Folder below which runs are looked for.")] = Path("outputs"),
    as_json: AsJson = False,
) -> None:
    """List the runs of a folder: state, step, reward, speed and when they were last heard of."""
    from agentrl.cli.runs import show_runs

    show_runs(folder, as_json=as_json)


@app.command()
def show(
    run: RunPath,
    worst: Annotated[int, typer.Option(min=0, help="How many of the lowest scores.")] = 0,
    best: Annotated[int, typer.Option(min=0, help="How many of the highest scores.")] = 0,
    failed: Annotated[bool, typer.Option("--failed", help="Those that failed, with the cause.")] = False,
    step: Annotated[int | None, typer.Option(min=0, help="Only this step; default: the newest.")] = None,
    all_steps: Annotated[bool, typer.Option("--all-steps", help="All steps.")] = False,
    text: Annotated[str | None, typer.Option(help="Only conversations that say this.")] = None,
    validation: Validation = False,
    full: Annotated[bool, typer.Option("--full", help="Do not cut long messages.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print conversations with their rewards and the reasons; without options the 3 worst and the 3 best."""
    from agentrl.cli.conversations import Wanted, print_conversations

    if step is not None and all_steps:
        raise typer.BadParameter("got --step and --all-steps, wanted one of them")
    wanted = Wanted(worst, best, failed, step, _kind(validation), all_steps, text)
    print_conversations(run, wanted, full=full, as_json=as_json)


@app.command()
def diff(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="A run folder.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another one.")],
    last: Annotated[int, typer.Option(min=1, help="Metrics are means of this many of the newest steps.")] = 10,
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A metric, or a pattern of some; may be repeated.")
    ] = None,
    prompts: Annotated[int, typer.Option(min=0, help="Prompts to show with both answers.")] = 3,
    step: Annotated[
        int | None, typer.Option(min=0, help="Step of the conversations; default: the newest of both.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Compare two runs: configuration, metrics with their spread, and conversations of the same prompts."""
    from agentrl.cli.diff import diff_runs

    diff_runs((run_a, run_b), last=last, metrics=metric or [], prompts=prompts, step=step, seed=seed, as_json=as_json)


@app.command()
def replay(
    rollouts: Annotated[Path, typer.Argument(help="A run folder, a folder of dumps, or one dump.")],
    reward: Annotated[
        str, typer.Option(metavar="FILE[:NAME]", help="The score function; NAME is compute_score if not given.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[key=value]...", help="Keys of reward_model and the score function.")
    ] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Only this step.")] = None,
    validation: Validation = False,
    examples: Annotated[int, typer.Option(min=0, help="Conversations to show whose reward changes most.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Score dumped conversations with another score function, and show what changes."""
    from agentrl.cli.replay import replay_command

    kind = _kind(validation)
    replay_command(rollouts, reward, overrides or [], kind=kind, step=step, examples=examples, as_json=as_json)


def _kind(validation: bool) -> Literal["validation"] | None:
    return "validation" if validation else None


@app.command()
def doctor(
    config: Annotated[
        str | None,
        typer.Argument(help="A YAML file, the name of a recipe in agentrl's configs/, or the first key=value."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[key=value]...", help="As of `agentrl train`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with the installation, this machine and a run, and what to do; exit code 1 if anything is."""
    from agentrl.cli.doctor.command import doctor_command
    from agentrl.cli.train import split_arguments

    recipe, given = split_arguments(config, overrides or [])
    if not doctor_command(recipe, given, asked=config is not None, as_json=as_json):
        raise typer.Exit(1)
