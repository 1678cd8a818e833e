"""`agentrl data`: make and inspect datasets."""

from __future__ import annotations

import importlib
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Make and inspect datasets.", no_args_is_help=True)

Out = Annotated[Path, typer.Option(help="Folder for train.parquet and test.parquet.")]


class Gsm8kVariant(StrEnum):
    """The form in which GSM8K is asked."""

    plain = "plain"
    tool = "tool"
    interaction = "interaction"


@app.command()
def gsm8k(
    out: Out,
    source: Annotated[
        str, typer.Option(help="Folder with train.jsonl and test.jsonl, a training jsonl file, or `hub`.")
    ] = "hub",
    test_source: Annotated[str | None, typer.Option(help="Test jsonl file, if --source has none.")] = None,
    variant: Annotated[
        Gsm8kVariant, typer.Option(help="Answer directly, with tools, or to a user who checks the answer.")
    ] = Gsm8kVariant.tool,
) -> None:
    """Make rows from GSM8K."""
    from agentrl.data.preprocess.gsm8k import write_gsm8k

    _tell(write_gsm8k(out, source, variant.value, test_source))


@app.command()
def arithmetic(
    out: Out,
    train: Annotated[int, typer.Option(min=1, help="Training rows.")] = 2000,
    test: Annotated[int, typer.Option(min=1, help="Test rows; none of them is a training row.")] = 512,
    seed: Annotated[int, typer.Option(help="Seed of the generator.")] = 1,
    from_gsm8k: Annotated[
        Path | None, typer.Option(help="Take real expressions from this GSM8K jsonl file, or folder with train.jsonl.")
    ] = None,
) -> None:
    """Make expressions with the length and operator mix of GSM8K's calculator annotations."""
    from agentrl.data.preprocess.arithmetic import write_arithmetic

    _tell(write_arithmetic(out, train, test, seed, from_gsm8k))


@app.command()
def show(
    file: Annotated[str, typer.Argument(help="Parquet file, or a quoted glob.")],
    rows: Annotated[int, typer.Option(min=0, help="How many rows to print.")] = 3,
    tokenizer: Annotated[Path | None, typer.Option(help="Count tokens with this tokenizer folder.")] = None,
    prompt_key: Annotated[str, typer.Option(help="Column of the prompt.")] = "prompt",
) -> None:
    """Check every row; print some of them and the percentiles of the prompt lengths."""
    from agentrl.cli.show import show_rows as run

    run(file, rows, tokenizer, prompt_key)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def index(context: typer.Context) -> None:
    """Build a search index: CORPUS --out INDEX --kind bm25|dense|hybrid; --help shows all options."""
    # Imported by name: services are separate programs, and the core reaches them over HTTP only.
    raise typer.Exit(importlib.import_module("agentrl.services.retrieval.cli").index(context.args))


def _tell(files: dict[str, Path]) -> None:
    import pyarrow.parquet as pq

    for split, path in files.items():
        typer.echo(f"{split}: {pq.read_metadata(path).num_rows} rows in {path}")
