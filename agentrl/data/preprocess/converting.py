"""From somebody's data set to agentrl's rows: every split is read and checked before any file appears."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.data.preprocess.reading import Cells, HubData, read_rows, split_sources
from agentrl.data.preprocess.writing import keep_existing, write_parquets
from agentrl.errors import DataError
from agentrl.files import keep_inputs
from agentrl.types import JsonDict

MakeRow = Callable[[Cells, str, int], "JsonDict | LeftOut"]
"""`make(cells, split, index)`: agentrl's row, or why there is none."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that cannot be used, though nothing in the file is wrong."""

    reason: str


@dataclass(slots=True)
class Converted:
    """What was written."""

    files: dict[str, Path] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    """Rows by the reason why they were left out."""
    first: dict[str, str] = field(default_factory=dict)
    """The first row of each reason, and more about it."""

    def leave_out(self, reason: str, first: str) -> None:
        """Count a row."""
        self.left_out[reason] += 1
        self.first.setdefault(reason, first)


def convert(
    make: MakeRow,
    *,
    source: str,
    out: Path,
    hub: HubData | None = None,
    test_source: str | None = None,
    single: str = "train",
    overwrite: bool = False,
    check: Callable[[JsonDict], str | None] = lambda row: None,
) -> Converted:
    """Write `train.parquet` and `test.parquet`, those that the source has, to `out`.

    Args:
        make: turns one row of the source into a row.
        source: `hub`, a file, or a folder with a file for each split.
        out: folder; created if missing.
        hub: what `hub` means.
        test_source: the file of the test split, if it is not in `source`.
        single: the split that a single file is.
        overwrite: replace files that exist.
        check: why a finished row cannot be scored; None: it can. Such rows are left out.

    Raises:
        DataError: a file or row cannot be used.
        UserInputError: a file to write exists, or the hub cannot be reached.
    """
    sources = split_sources(source, hub, single, test_source)
    done = Converted({split: out / f"{split}.parquet" for split in sources})
    keep_inputs(done.files.values(), [name for given in sources.values() for name in given.split("\n")])
    keep_existing(list(done.files.values()), overwrite)
    made: dict[Path, list[JsonDict]] = {}
    for split, given in sources.items():
        rows: list[JsonDict] = []
        for cells in read_rows(given, split, hub):
            row = make(cells, split, len(rows))
            problem = None if isinstance(row, LeftOut) else check(row)
            if isinstance(row, LeftOut):
                done.leave_out(row.reason, f"row {cells.number}")
            elif problem is not None:
                done.leave_out("that their score could not read", f"row {cells.number}: {problem}")
            else:
                rows.append(row)
        if not rows:
            why = "; ".join(f"{count} {reason} ({done.first[reason]})" for reason, count in done.left_out.items())
            raise DataError(
                given.split("\n")[0], None, None, f"no row that can be used{why and ': '}{why}", "at least one"
            )
        made[done.files[split]] = rows
    write_parquets(made)
    return done
