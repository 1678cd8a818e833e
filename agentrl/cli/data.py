"""`agentrl data`: make and inspect datasets."""

from __future__ import annotations

import importlib
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from agentrl.data.preprocess.converting import Converted
    from agentrl.data.preprocess.math_rows import MathData
    from agentrl.data.preprocess.reading import Cells
    from agentrl.types import JsonDict

app = typer.Typer(help="Make and inspect datasets.", no_args_is_help=True)

_FOLDER = Path("~/data")
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "--local_dir",
        "--local-dir",
        help="Folder for train.parquet and test.parquet; default: ~/data/ and the command's name.",
    ),
]
Source = Annotated[
    str, typer.Option(help="File (parquet, jsonl, json), folder with a train and a test file, or `hub`.")
]
LocalSource = Annotated[str, typer.Option(help="File (parquet, jsonl, json), or folder with a train and a test file.")]
TestSource = Annotated[str | None, typer.Option(help="File of the test rows, if --source has none.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")]


class Gsm8kVariant(StrEnum):
    """The form in which GSM8K is asked."""

    plain = "plain"
    tool = "tool"
    interaction = "interaction"


class MathVariant(StrEnum):
    """The form in which problems are asked."""

    plain = "plain"
    tool = "tool"


class SearchVariant(StrEnum):
    """How the model searches."""

    tags = "tags"
    tool = "tool"


class WordDifficulty(StrEnum):
    """How much a question in words asks."""

    easy = "easy"
    medium = "medium"
    hard = "hard"


class IndexKind(StrEnum):
    """The kind of a search index."""

    bm25 = "bm25"
    dense = "dense"
    hybrid = "hybrid"


@app.command()
def gsm8k(
    out: Out = None,
    source: Source = "hub",
    test_source: TestSource = None,
    variant: Annotated[
        Gsm8kVariant, typer.Option(help="Answer directly, with tools, or to a user who checks the answer.")
    ] = Gsm8kVariant.plain,
    overwrite: Overwrite = False,
) -> None:
    """Make rows from GSM8K."""
    from agentrl.data.preprocess.gsm8k import write_gsm8k

    _tell(write_gsm8k(_folder(out, "gsm8k"), source, variant.value, test_source, overwrite))


@app.command()
def math(
    out: Out = None,
    source: Source = "hub",
    test_source: TestSource = None,
    variant: Annotated[MathVariant, typer.Option(help="Answer directly, or with a calculator.")] = MathVariant.plain,
    overwrite: Overwrite = False,
) -> None:
    """Make rows from MATH: `problem`, and `answer` or a `solution` with a boxed answer."""
    from agentrl.data.preprocess.math_rows import MATH

    _make_math(MATH, _folder(out, "math"), source, test_source, variant, overwrite)


@app.command()
def aime(
    out: Out = None,
    source: Source = "hub",
    variant: Annotated[MathVariant, typer.Option(help="Answer directly, or with a calculator.")] = MathVariant.plain,
    overwrite: Overwrite = False,
) -> None:
    """Make test rows from AIME: `Problem` and `Answer`."""
    from agentrl.data.preprocess.math_rows import AIME

    _make_math(AIME, _folder(out, "aime"), source, None, variant, overwrite)


@app.command()
def geo3k(
    out: Out = None,
    source: Source = "hub",
    test_source: TestSource = None,
    variant: Annotated[MathVariant, typer.Option(help="Answer directly, or with a calculator.")] = MathVariant.plain,
    overwrite: Overwrite = False,
) -> None:
    """Make rows from Geometry3K: `images`, `problem` and `answer`, for a model that sees pictures."""
    from agentrl.data.preprocess.math_rows import GEO3K

    _make_math(GEO3K, _folder(out, "geo3k"), source, test_source, variant, overwrite)


@app.command()
def search(
    out: Out = None,
    source: Source = "hub",
    test_source: TestSource = None,
    variant: Annotated[
        SearchVariant, typer.Option(help="Search with <search> tags (search_r1_agent), or with a tool (tool_agent).")
    ] = SearchVariant.tags,
    data_source: Annotated[
        str | None, typer.Option(help="`data_source` of the rows; default: their own column, else nq.")
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="Documents to search (jsonl): prints the command that indexes them.")
    ] = None,
    index_kind: Annotated[IndexKind, typer.Option(help="Kind of that index.")] = IndexKind.bm25,
    overwrite: Overwrite = False,
) -> None:
    """Make rows from questions: `question` and `golden_answers`."""
    from agentrl.data.preprocess import search_rows
    from agentrl.data.preprocess.converting import convert

    folder = _folder(out, "search")
    command = search_rows.index_command(corpus, folder, index_kind.value) if corpus is not None else None

    def make(cells: Cells, split: str, index: int) -> JsonDict:
        return search_rows.search_row(cells, split, index, variant.value, data_source)

    _report(
        convert(
            make,
            source=source,
            test_source=test_source,
            out=folder,
            hub=search_rows.HUB_DATA,
            overwrite=overwrite,
            check=_unscored,
        )
    )
    if command is not None:
        typer.echo(f"index the corpus with: {command}")


@app.command()
def apps(out: Out = None, source: Source = "hub", test_source: TestSource = None, overwrite: Overwrite = False) -> None:
    """Make rows from APPS: `question` and `input_output` (tests as JSON text)."""
    from agentrl.data.preprocess.code_rows import HUB_DATA, apps_row
    from agentrl.data.preprocess.converting import convert

    folder = _folder(out, "apps")
    _report(
        convert(
            apps_row,
            source=source,
            test_source=test_source,
            out=folder,
            hub=HUB_DATA,
            overwrite=overwrite,
            check=_unscored,
        )
    )


@app.command()
def messages(
    source: LocalSource, out: Out = None, test_source: TestSource = None, overwrite: Overwrite = False
) -> None:
    """Make demonstrations for `agentrl sft`: `messages`, `conversations`, or a prompt and a response."""
    from agentrl.data.preprocess.chat_rows import messages_row
    from agentrl.data.preprocess.converting import convert

    folder = _folder(out, "messages")
    _report(convert(messages_row, source=source, test_source=test_source, out=folder, overwrite=overwrite))


@app.command()
def arithmetic(
    out: Out = None,
    train: Annotated[int, typer.Option(min=1, help="Training rows.")] = 2000,
    test: Annotated[int, typer.Option(min=1, help="Test rows; none of them is a training row.")] = 512,
    seed: Annotated[int, typer.Option(help="Seed of the generator.")] = 1,
    from_gsm8k: Annotated[
        Path | None, typer.Option(help="Take real expressions from this GSM8K jsonl file, or folder with train.jsonl.")
    ] = None,
    words: Annotated[
        bool, typer.Option("--words", help="Ask in words: What is twelve plus thirty-four, times two?")
    ] = False,
    difficulty: Annotated[
        WordDifficulty | None,
        typer.Option(
            help="With --words: easy (one operation, numbers up to 20), medium (one or two, up to 99; the default) or "
            "hard (two or three, up to 999)."
        ),
    ] = None,
    demonstrations: Annotated[
        int,
        typer.Option(
            min=0,
            help="With --words: training questions that demonstrations.parquet answers, with a call.",
        ),
    ] = 0,
    call_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the demonstrations that call; the others only answer.")
    ] = 1.0,
    agent_name: Annotated[str, typer.Option(help="Agent loop of the rows.")] = "tool_agent",
    overwrite: Overwrite = False,
) -> None:
    """Make expressions with the length and operator mix of GSM8K's calculator annotations, or questions in words."""
    from agentrl.data.preprocess.arithmetic import write_arithmetic, write_words

    folder = _folder(out, "arithmetic")
    if not words:
        for name, given in (
            ("--difficulty", difficulty),
            ("--demonstrations", demonstrations),
            ("--call-share", call_share < 1),
        ):
            if given:
                raise typer.BadParameter(f"{name}: is only for --words")
        _tell(write_arithmetic(folder, train, test, seed, from_gsm8k, agent_name, overwrite))
        return
    if from_gsm8k is not None:
        raise typer.BadParameter("--from-gsm8k: is not for --words, whose questions are made up")
    level = difficulty or WordDifficulty.medium
    _tell(write_words(folder, train, test, seed, level.value, demonstrations, call_share, agent_name, overwrite))


@app.command()
def pictures(
    out: Out = None,
    train: Annotated[int, typer.Option(min=1, help="Training rows.")] = 512,
    test: Annotated[int, typer.Option(min=1, help="Test rows.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the generator.")] = 1,
    size: Annotated[int, typer.Option(min=16, help="Width and height of a picture in pixels.")] = 56,
    overwrite: Overwrite = False,
) -> None:
    """Make up pictures with a question each: the colour of a square, or the number of dots."""
    from agentrl.data.preprocess.picture_rows import write_pictures

    _tell(write_pictures(_folder(out, "pictures"), train, test, seed, size, overwrite))


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


def _folder(out: Path | None, name: str) -> Path:
    return (out if out is not None else _FOLDER / name).expanduser()


def _make_math(
    data: MathData, out: Path, source: str, test_source: str | None, variant: MathVariant, overwrite: bool
) -> None:
    from agentrl.data.preprocess.converting import convert

    make = partial(data.row, variant=variant.value)
    _report(
        convert(
            make,
            source=source,
            test_source=test_source,
            out=out,
            hub=data.hub,
            single=data.single,
            overwrite=overwrite,
            check=_unscored,
        )
    )


def _unscored(row: JsonDict) -> str | None:
    """Why a row could not be scored in a run; None: it could."""
    from agentrl.data.row import RowReader
    from agentrl.rewards.dispatcher import truth_problem

    return truth_problem(RowReader("the row", "prompt").sample(row, 0, 0))


def _tell(files: dict[str, Path]) -> None:
    import pyarrow.parquet as pq

    for split, path in files.items():
        typer.echo(f"{split}: {pq.read_metadata(path).num_rows} rows in {path}")


def _report(done: Converted) -> None:
    _tell(done.files)
    for reason, count in done.left_out.items():
        typer.echo(f"left out: {count} rows {reason} ({done.first[reason]})")
