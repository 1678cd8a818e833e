"""`agentrl generate` and `agentrl eval`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from agentrl.cli.output import table_console
from agentrl.cli.train import split_arguments
from agentrl.config.job_run import load_evaluation, load_generation
from agentrl.config.recipe_files import named_recipe
from agentrl.errors import UserInputError
from agentrl.files import keep_inputs
from agentrl.observability.wording import one_line, visible

if TYPE_CHECKING:
    from agentrl.jobs.compare import Comparison

_SHOWN_UNPAIRED = 5


def job_overrides(options: Mapping[str, str | int | None]) -> list[str]:
    """Options of the command line as overrides of the keys that they stand for."""
    return [f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None]


def job_source(
    config: str | None,
    overrides: list[str],
    file: str | None,
    config_path: str | None,
    config_name: str | None,
    usual: str,
) -> tuple[str | None, list[str]]:
    """The YAML, given as first argument, by `--config` or by Hydra's options, and the overrides.

    Raises:
        UserInputError: it is given twice, or Hydra's options name none; `usual` is the name that they leave out.
    """
    first, rest = split_arguments(config, overrides)
    by_hydra = named_recipe(config_path, config_name, usual) if config_path or config_name else None
    given = [str(source) for source in (first, file, by_hydra) if source is not None]
    if len(given) > 1:
        raise UserInputError(f"got the configuration twice: {' and '.join(given)}")
    return given[0] if given else None, rest


def generate_command(source: str | None, overrides: list[str], *, overwrite: bool) -> None:
    """Write responses."""
    # Before engines and torch are imported: a typo is reported within a second.
    job = load_generation(source, overrides)
    from agentrl.jobs.generate import GenerationJob
    from agentrl.jobs.parts import refuse_taken

    assert job.data.output_path is not None
    output = Path(job.data.output_path)
    refuse_taken(output, overwrite=overwrite)
    work = GenerationJob(job, output)
    with JobProgress("generated", "prompts") as progress:
        work.generate(progress.advance, overwrite=overwrite)
    n = job.data.n_samples
    typer.echo(f"{len(work.samples)} prompts with {n} response{'s' if n > 1 else ''} each in {output}")


def eval_command(source: str | None, overrides: list[str], *, overwrite: bool) -> None:
    """Score responses, after generating them where a model is given."""
    job = load_evaluation(source, overrides)
    from agentrl.jobs.evaluate import evaluate_responses, result_path
    from agentrl.jobs.parts import refuse_taken

    output = result_path(job)
    refuse_taken(output, output.with_suffix(".png"), overwrite=overwrite)
    files = job.data.path
    assert files is not None
    if job.model.path:
        from agentrl.jobs.generate import GenerationJob

        responses = output.with_name(output.name.removesuffix(".json").removesuffix(".eval") + ".responses.parquet")
        files = str(responses)
        work = GenerationJob(job, responses)
        if not work.is_done():  # an earlier start may have got so far
            with JobProgress("generated", "prompts") as progress:
                work.generate(progress.advance, overwrite=overwrite)
    with JobProgress("scored", "prompts") as progress:
        result = evaluate_responses(job, files, progress.advance, overwrite=overwrite)
    show_result(table_console(), result)
    for failure in result["failures"]:
        typer.echo(f"{failure['count']} x {visible(failure['cause'])}", err=True)
    typer.echo(f"result: {output}\nplot: {output.with_suffix('.png')}")


def compare_command(runs: Sequence[str], out: Path | None, seed: int, *, overwrite: bool) -> None:
    """Compare two evaluations."""
    if len(runs) != 2:
        raise UserInputError(f"--compare: got {len(runs)} runs, wanted two: agentrl eval --compare RUN_A RUN_B")
    from agentrl.cli.output import write_text
    from agentrl.jobs.compare import compare_evaluations, read_scored
    from agentrl.jobs.parts import refuse_taken

    if out is not None:
        refuse_taken(out, overwrite=overwrite)
    a, b = (read_scored(Path(run)) for run in runs)
    if out is not None:
        keep_inputs([out], [a.file, b.file])
    comparison = compare_evaluations(a, b, seed)
    console = table_console()
    console.print(visible(f"A: {a.file}\nB: {b.file}"), highlight=False, markup=False, soft_wrap=True)
    show_comparison(console, comparison)
    if out is not None:
        write_text(out, json.dumps(comparison.as_json(), ensure_ascii=False, indent=1) + "\n")
        typer.echo(f"result: {out}")


def show_result(console: Console, result: Mapping[str, Any]) -> None:
    """Print the statistics of an evaluation, one a line."""
    table = Table("data source")
    for title in ("prompts", "responses", "no score", "metric", "value", "± error"):
        table.add_column(title, justify="right")
    for source, found in result["sources"].items():
        named = {f"mean@{found['n']}": found["mean"]}
        named |= {f"{kind}@{k}": at for kind in ("pass", "maj") for k, at in found[kind].items()}
        front = (Text(visible(source)), *(str(found[name]) for name in ("prompts", "responses", "failed")))
        for place, (name, at) in enumerate(named.items()):
            table.add_row(*(front if place == 0 else [""] * len(front)), name, _shown(at["value"]), _shown(at["error"]))
        table.add_section()
    console.print(table)


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Print the table of a comparison, and the prompts that only one of the two has."""
    table = Table("data source")
    for title in ("prompts", "A", "B", "B - A", "95 % interval", "B better"):
        table.add_column(title, justify="right")
    for source, found in comparison.differences.items():
        table.add_row(
            Text(visible(source)),
            str(found.prompts),
            f"{found.mean_a:.3f}",
            f"{found.mean_b:.3f}",
            f"{found.mean_b - found.mean_a:+.3f}",
            f"{found.low:+.3f} to {found.high:+.3f}" + ("" if found.is_clear else " (holds 0)"),
            f"{found.better:.1%}",
        )
    console.print(table)
    for name, prompts in (("A", comparison.only_a), ("B", comparison.only_b)):
        if prompts:
            shown = "".join(f"\n  {one_line(prompt, 120)}" for prompt in prompts[:_SHOWN_UNPAIRED])
            more = f"\n  and {len(prompts) - _SHOWN_UNPAIRED} more" if len(prompts) > _SHOWN_UNPAIRED else ""
            typer.echo(f"{len(prompts)} prompts have a score only in {name} and are left out:{shown}{more}", err=True)


def _shown(number: float | None) -> str:
    return "-" if number is None else f"{number:.3f}"


class JobProgress:
    """A bar on a terminal, else a line per batch, on stderr.

    Args:
        done: what has been done to things, such as `generated`.
        things: what is counted.
    """

    def __init__(self, done: str, things: str) -> None:
        self._done, self._things = done, things
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, done: int, total: int, kept: int) -> None:
        """Show how far the job is."""
        if kept and done == kept:
            typer.echo(f"going on after {kept} of {total} {self._things} that an earlier start finished", err=True)
        if self._console.is_terminal:
            self._show_bar(done, total)
        elif done > kept:
            seconds = time.monotonic() - self._began
            typer.echo(f"{self._done} {done}/{total} {self._things}, {seconds:.1f} s", err=True)

    def _show_bar(self, done: int, total: int) -> None:
        if self._bar is None:
            columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Progress(TextColumn("{task.description}"), *columns, console=self._console)
            self._task = self._bar.add_task(f"{self._done} {self._things}", total=total)
            self._bar.start()
        self._bar.update(self._task, completed=done)
