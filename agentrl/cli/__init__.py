"""The command line: `agentrl train | sft | generate | eval | data | serve | plugins | check | runs | export | …`.

Each command imports its code only when it runs, so `agentrl --help` answers immediately.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from agentrl.cli import data as data_commands
from agentrl.cli import look
from agentrl.cli import plugins as plugin_commands
from agentrl.cli.errors import ErrorGroup, set_debug
from agentrl.cli.view import view

FORWARD: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""For commands whose arguments are read by their own module."""

app = typer.Typer(
    cls=ErrorGroup,
    help="Reinforcement learning for language-model agents over multi-turn, tool-using conversations.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
serve = typer.Typer(help="Run one service.", no_args_is_help=True)
docs = typer.Typer(help="Write generated documentation.", no_args_is_help=True)
app.add_typer(data_commands.app, name="data")
app.add_typer(plugin_commands.app, name="plugins")
app.add_typer(serve, name="serve")
app.add_typer(docs, name="docs")

Overrides = Annotated[
    list[str] | None, typer.Argument(help="section.key=value, YAML values: \\[a,b], null, true, 1e-6, 'text'.")
]

Recipe = Annotated[
    str | None,
    typer.Argument(help="A YAML file, the name of a recipe in agentrl's configs/, or the first key=value."),
]
ConfigPath = Annotated[
    str | None, typer.Option("--config-path", "-cp", metavar="DIR", help="Folder of the recipe, as with Hydra.")
]
ConfigName = Annotated[
    str | None,
    typer.Option(
        "--config-name",
        "-cn",
        metavar="NAME",
        help="Name of the recipe, as with Hydra; may be left out where the folder has one YAML.",
    ),
]
ConfigDir = Annotated[
    str | None, typer.Option("--config-dir", "-cd", metavar="DIR", help="Where `defaults` are looked up too.")
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        metavar="MxGxGIB",
        help="Plan for these machines: 4x8x80 (machines x GPUs x GiB of each), 2x8x141@H200, 2x0 (no GPUs).",
    ),
]
JobConfig = Annotated[str | None, typer.Argument(help="A YAML file; or the first key=value.")]
ConfigOption = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="The YAML file, in place of CONFIG.")
]
AgentLoop = Annotated[
    str | None, typer.Option(metavar="NAME", help="Agent loop of rows without `agent_name`; default: one answer.")
]
ToolYaml = Annotated[str | None, typer.Option(metavar="FILE", help="Tool YAML of the agent loop.")]
InteractionYaml = Annotated[str | None, typer.Option(metavar="FILE", help="Interaction YAML of the agent loop.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an output that exists.")]
LOOP_KEY = "rollout.agent.default_agent_loop"
TOOLS_KEY = "rollout.multi_turn.tool_config_path"
INTERACTIONS_KEY = "rollout.multi_turn.interaction_config_path"


def _print_version(wanted: bool) -> None:
    if wanted:
        from agentrl import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of every error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Set up logging before any command."""
    from agentrl.cli.output import log_level, set_up_logging

    set_debug(debug)
    set_up_logging(log_level(debug))


@app.command()
def train(
    config: Recipe = None,
    overrides: Overrides = None,
    config_path: ConfigPath = None,
    config_name: ConfigName = None,
    config_dir: ConfigDir = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved config and what would run where; start nothing.")
    ] = False,
    cluster: ClusterOption = None,
) -> None:
    """Train an agent by reinforcement learning."""
    from agentrl.cli.train import dry_run as show_plan
    from agentrl.cli.train import recipe_and_overrides, train_command

    recipe, given = recipe_and_overrides(config, overrides or [], config_path, config_name, config_dir)
    if dry_run:
        show_plan(recipe, given, cluster)
    elif cluster is not None:
        raise typer.BadParameter("--cluster: is only for --dry-run; a run takes the machines that there are")
    else:
        train_command(recipe, given)


@app.command()
def plan(
    config: Recipe = None,
    overrides: Overrides = None,
    cluster: ClusterOption = None,
    config_path: ConfigPath = None,
    config_name: ConfigName = None,
    config_dir: ConfigDir = None,
) -> None:
    """Print where a run's ranks and engines would be, their memory and the time of a step; 1 if it cannot work."""
    from agentrl.cli.plan_command import show_plan
    from agentrl.cli.train import recipe_and_overrides

    recipe, given = recipe_and_overrides(config, overrides or [], config_path, config_name, config_dir)
    if not show_plan(recipe, given, cluster):
        raise typer.Exit(1)


@app.command()
def sft(
    config: Recipe = None,
    overrides: Overrides = None,
    config_path: ConfigPath = None,
    config_name: ConfigName = None,
    config_dir: ConfigDir = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and print the resolved config; start nothing.")
    ] = False,
) -> None:
    """Train a model on demonstrations (supervised fine-tuning)."""
    from agentrl.cli.train import recipe_and_overrides, sft_command

    recipe, left = recipe_and_overrides(
        config, overrides or [], config_path, config_name, config_dir, usual="sft_trainer"
    )
    sft_command(recipe, left, dry_run=dry_run)


@app.command()
def generate(
    config: JobConfig = None,
    overrides: Overrides = None,
    file: ConfigOption = None,
    config_path: ConfigPath = None,
    config_name: ConfigName = None,
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="The same as model.path=MODEL.")] = None,
    agent_loop: AgentLoop = None,
    tools: ToolYaml = None,
    interactions: InteractionYaml = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a model's responses to the prompts of a parquet file; a second start goes on where a first one ended."""
    from agentrl.cli.jobs import generate_command, job_overrides, job_source

    source, keys = job_source(config, overrides or [], file, config_path, config_name, "generation")
    own = {"model.path": model, LOOP_KEY: agent_loop, TOOLS_KEY: tools, INTERACTIONS_KEY: interactions}
    generate_command(source, [*keys, *job_overrides(own)], overwrite=overwrite)


@app.command("eval")
def evaluate(
    config: JobConfig = None,
    overrides: Overrides = None,
    file: ConfigOption = None,
    config_path: ConfigPath = None,
    config_name: ConfigName = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Let this model answer the prompts of data.path first.")
    ] = None,
    agent_loop: AgentLoop = None,
    tools: ToolYaml = None,
    interactions: InteractionYaml = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON file of the result (data.output_path); its plot is beside it.")
    ] = None,
    overwrite: Overwrite = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare two results or runs: agentrl eval --compare RUN_A RUN_B.")
    ] = False,
    seed: Annotated[int, typer.Option(help="With --compare: seed of the bootstrap.")] = 1,
) -> None:
    """Score responses: mean@n, pass@k and maj@k by data source, as a table, a JSON file and a plot."""
    from agentrl.cli.jobs import compare_command, eval_command, job_overrides, job_source

    if compare:
        compare_command([*([config] if config else []), *(overrides or [])], out, seed, overwrite=overwrite)
        return
    source, keys = job_source(config, overrides or [], file, config_path, config_name, "evaluation")
    own = {"model.path": model, LOOP_KEY: agent_loop, TOOLS_KEY: tools, INTERACTIONS_KEY: interactions}
    path = None if out is None else str(out)
    eval_command(source, [*keys, *job_overrides({**own, "data.output_path": path})], overwrite=overwrite)


@app.command()
def export(
    checkpoint: Annotated[Path, typer.Argument(help="A global_step_N folder, or a run folder for its newest one.")],
    out: Annotated[Path, typer.Argument(help="Folder for the Hugging Face model; must not exist.")],
    adapter: Annotated[bool, typer.Option("--adapter", help="Write the LoRA adapter alone, as peft reads it.")] = False,
    base: Annotated[str | None, typer.Option(help="Model that the LoRA adapter was trained on, if it moved.")] = None,
) -> None:
    """Write the trained policy of a checkpoint as a Hugging Face folder; a LoRA adapter is merged into its model."""
    from agentrl.cli.export import export_policy as run

    run(checkpoint, out, adapter=adapter, base=base)


@app.command()
def check(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[key=value]...", help="With --grader: overrides of the recipe.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Check the chat template of a model folder, or a .jinja file.")
    ] = None,
    tools: Annotated[str | None, typer.Option(help="With --template: tool YAML that the run offers.")] = None,
    chat_template: Annotated[
        str | None, typer.Option(help="With --template: .jinja file instead of the model's own template.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="With --template FILE.jinja: folder of the tokenizer.")] = None,
    kwargs: Annotated[
        list[str] | None, typer.Option(help="With --template: key=value for the template; may be repeated.")
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(metavar="ROLLOUTS", help="Check that every trained token of these dumps was sampled."),
    ] = None,
    step: Annotated[int | None, typer.Option(help="With --audit: only this step.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="With --audit: how many trajectories to print.")] = 3,
    grader: Annotated[
        str | None,
        typer.Option(metavar="CONFIG", help="Score right and wrong answers to a run's rows with its score function."),
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="With --grader: at most this many rows.")] = None,
) -> None:
    """Check a chat template, the rollouts that a run dumped, or its score function."""
    from agentrl.cli.check import check_rollouts, check_template

    if [template, audit, grader].count(None) != 2:
        raise typer.BadParameter("give exactly one of --template MODEL, --audit ROLLOUTS, --grader CONFIG")
    if grader is not None:
        from agentrl.cli.check_grader import check_grader

        check_grader(grader, overrides or [], rows)
    elif overrides:
        raise typer.BadParameter(f"{overrides[0]!r}: overrides need --grader CONFIG")
    elif template is not None:
        check_template(template, tools=tools, chat_template=chat_template, tokenizer=tokenizer, kwargs=kwargs or [])
    elif audit is not None:
        check_rollouts(audit, step, limit)


@app.command()
def trace(
    run: Annotated[Path, typer.Argument(help="A run folder (trainer.default_local_dir), or one of its checkpoints.")],
    last: Annotated[int | None, typer.Option(min=1, help="Only this many of the newest steps.")] = None,
) -> None:
    """Print where the time of a run's steps went."""
    from agentrl.cli.trace import trace_run

    trace_run(run, last)


app.registered_commands += look.app.registered_commands
app.command()(view)


@serve.command("engine", context_settings=FORWARD)
def serve_engine(context: typer.Context) -> None:
    """Run the embedded engine server: --model DIR --port P; --help shows all options."""
    from agentrl.inference.embedded.__main__ import main as run

    raise typer.Exit(run(context.args))


@serve.command("sandbox", context_settings=FORWARD)
def serve_sandbox(context: typer.Context) -> None:
    """Run the code sandbox: --host H --port P; --help shows all options."""
    importlib.import_module("agentrl.services.sandbox.cli").main(context.args)


@serve.command("retrieval", context_settings=FORWARD)
def serve_retrieval(context: typer.Context) -> None:
    """Run a search server: --index DIR, or a built-in sample; --help shows all options."""
    # Imported by name: services are separate programs, and the core reaches them over HTTP only.
    raise typer.Exit(importlib.import_module("agentrl.services.retrieval.cli").serve(context.args))


@docs.command("config")
def docs_config(
    out: Annotated[Path | None, typer.Option(help="File to write; default: print to the terminal.")] = None,
) -> None:
    """Write the reference page of every configuration key."""
    from agentrl.cli.output import write_text
    from agentrl.config.reference import config_reference

    if out is None:
        typer.echo(config_reference(), nl=False)
    else:
        write_text(out, config_reference())


@app.command(context_settings=FORWARD)
def demo(context: typer.Context) -> None:
    """Watch a tiny model learn: demo [calculator|search], in minutes on a CPU; --help shows all options."""
    from agentrl.cli.demo.command import main as run

    run(context.args)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the `agentrl` command.

    Args:
        arguments: of the command; None: those of this process.

    The folder in which it is called is on the import path, as with `python -m agentrl`: `my_tools.Weather` in a YAML is
    found there. Ray's workers get the path from this process.
    """
    with suppress(OSError):  # the folder was deleted meanwhile
        folder = os.getcwd()
        if folder not in sys.path and "" not in sys.path and not sys.flags.safe_path:
            sys.path.insert(0, folder)
    app(arguments, prog_name="agentrl")
