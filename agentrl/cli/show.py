"""`agentrl data show`: rows, their agents and tools, and the lengths of their prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.pretty import Pretty
from rich.rule import Rule
from rich.table import Table

from agentrl.config.data import DataConfig
from agentrl.data.dataset import RLHFDataset
from agentrl.pictures import pictures_in, shown_text
from agentrl.types import Sample

PERCENTILES = (0, 10, 50, 90, 95, 99, 100)


def show_rows(file: str, rows: int, tokenizer: Path | None, prompt_key: str) -> None:
    """Print a dataset. Every row is read and checked.

    Args:
        file: parquet file or glob.
        rows: how many rows to print.
        tokenizer: folder of a tokenizer to count tokens with.
        prompt_key: column of the prompt.

    Raises:
        DataError: a file or row cannot be used.
        TemplateError: the folder has no usable tokenizer.
    """
    dataset = RLHFDataset(file, DataConfig(prompt_key=prompt_key), sees_pictures=True)
    samples = [dataset[position] for position in range(len(dataset))]
    console = Console()
    for sample in samples[:rows]:
        console.print(Rule(f"row {sample.index}", align="left"))
        console.print(Pretty({key: value for key, value in asdict(sample).items() if value}, expand_all=True))
    console.print(Rule(f"{len(samples)} rows in {', '.join(dataset.files)}", align="left"))
    console.print(_routes(samples))
    console.print(_lengths(samples, tokenizer))


def _routes(samples: Sequence[Sample]) -> Table:
    """The number of rows of each kind."""
    table = Table("data_source", "agent", "tools with kwargs", "interaction", "rows")
    kinds = Counter(
        (
            sample.data_source,
            sample.agent_name or "(default)",
            ", ".join(sorted(sample.tools_kwargs)),
            sample.interaction_kwargs.get("name", ""),
        )
        for sample in samples
    )
    for kind, count in kinds.most_common():
        table.add_row(*kind, str(count))
    return table


def _lengths(samples: Sequence[Sample], tokenizer: Path | None) -> Table:
    table = Table("prompt length", *(f"p{percentile}" for percentile in PERCENTILES), "mean")
    _add_lengths(table, "messages", (len(sample.prompt) for sample in samples))
    _add_lengths(
        table, "characters", (sum(len(shown_text(message["content"])) for message in s.prompt) for s in samples)
    )
    _add_lengths(table, "pictures", (len(pictures_in(sample.prompt)) for sample in samples))
    if tokenizer is not None:
        count = _token_counter(tokenizer)
        _add_lengths(table, "tokens (without tool schemas)", map(count, samples))
    return table


def _add_lengths(table: Table, name: str, lengths: Iterable[int]) -> None:
    values = np.fromiter(lengths, dtype=np.int64)
    table.add_row(name, *(f"{value:.0f}" for value in np.percentile(values, PERCENTILES)), f"{values.mean():.1f}")


def _token_counter(folder: Path) -> Callable[[Sample], int]:
    from agentrl.chat.loading import load_renderer

    renderer = load_renderer(str(folder))
    return lambda sample: len(renderer.render_prompt(sample.prompt))
