"""`agentrl plan` and `agentrl train --dry-run`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from agentrl.config import RunConfig
from agentrl.config.planned import planning_for
from agentrl.errors import UserInputError
from agentrl.placement.cluster import Cluster
from agentrl.placement.layout import RunPlacement


def show_plan(recipe: str | Path | None, overrides: list[str], cluster: str | None) -> bool:
    """Print the plan of a run from its configuration alone: neither rows nor weights are read.

    Args:
        recipe: of the run.
        overrides: of it.
        cluster: machines as `Cluster.parse` reads them; None: those of the running Ray cluster, or this machine.

    Returns:
        Whether the run can work there.
    """
    from agentrl.cli.plan import plan_lines
    from agentrl.placement.lengths import Lengths
    from agentrl.placement.verdict import memory_problems

    with _planned(recipe, overrides, cluster, ask_ray=True) as (config, placement):
        lines = plan_lines(config, placement)
        problems = [*placement.problems, *memory_problems(config, placement, Lengths.most(config))]
    _echo(lines)
    for problem in problems:
        typer.echo(f"cannot work:   {problem}")
    return not problems


def show_dry_run(recipe: str | Path | None, overrides: list[str], cluster: str | None) -> None:
    """Check a run with its rows, and print its configuration and plan.

    On GPUs the plan is printed also where the run cannot start here, before the reason.

    Raises:
        UserInputError: it cannot start.
    """
    from agentrl.config import dump_config
    from agentrl.placement.lengths import Lengths
    from agentrl.placement.verdict import memory_problems

    with _planned(recipe, overrides, cluster) as (config, placement):
        from agentrl.cli.demo.warm_start import refuse_if_missing
        from agentrl.cli.plan import plan_lines
        from agentrl.errors import ConfigError
        from agentrl.inference.sglang import resolve_engine
        from agentrl.trainer.inputs import prepare

        inputs, refusal = None, None
        try:
            refuse_if_missing(config)
            inputs = prepare(config)
            resolve_engine(config)
            if placement.problems:
                raise ConfigError(list(placement.problems))
        except UserInputError as error:
            if not placement.on_gpus:
                raise
            refusal = error
        lines = plan_lines(config, placement, inputs)
        lengths = Lengths.of_prompts(config, inputs.prompt_lengths if inputs is not None else [])
        lines += [("too large", problem) for problem in memory_problems(config, placement, lengths)]
    typer.echo(dump_config(config))
    typer.echo("# What will run where")
    _echo(lines, "# ")
    if refusal is not None:
        raise refusal


@contextmanager
def _planned(
    recipe: str | Path | None, overrides: list[str], cluster: str | None, *, ask_ray: bool = False
) -> Iterator[tuple[RunConfig, RunPlacement]]:
    """The configuration and its placement, read for the given machines; within it `auto` means what they decide."""
    from agentrl.config import load_config
    from agentrl.placement.of_run import place, ray_cluster
    from agentrl.placement.planner import plan

    if cluster is None:
        config = load_config(recipe, overrides)
        if ask_ray and config.trainer.backend == "ray" and config.ray_init.address is not None:
            yield config, place(config, ray_cluster(config.ray_init.address))
        else:
            yield config, place(config)
        return
    machines = Cluster.parse(cluster)
    with planning_for(gpus=machines.gpus > 0):
        config = load_config(recipe, overrides)
        yield config, plan(config, machines)


def _echo(lines: list[tuple[str, str]], prefix: str = "") -> None:
    for topic, text in lines:
        typer.echo(f"{prefix}{topic + ':':<14} {text}")
