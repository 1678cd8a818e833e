"""Questions to the index: filters, order and pages of trajectories, groups, and what filters can choose from."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from agentrl.observability.viewer.index import FAILED, MOST_STEPS, STEP_BITS, DumpIndex

Row = dict[str, Any]
MOST_OF_A_PROMPT = 2000
NO_FACETS: Row = {"steps": None, "step_list": [], "data_sources": [], "stop_reasons": [], "tools": [], "failed": 0}
_LARGEST = 2**53
_COLUMNS = (
    "id, step, uid, prompt_key, data_source, reward, advantage, stop_reason, turns, tool_calls, tokens, "
    "tools, question, start"
)
_EQUAL = ("uid", "prompt_key", "data_source", "stop_reason")


class Filter(BaseModel):
    """Which trajectories; every condition that is given must hold, bounds included."""

    model_config = ConfigDict(extra="forbid")

    step: int | None = Field(default=None, ge=0, lt=MOST_STEPS)
    step_min: int | None = Field(default=None, ge=0, lt=MOST_STEPS)
    step_max: int | None = Field(default=None, ge=0, lt=MOST_STEPS)
    data_source: str | None = None
    reward_min: FiniteFloat | None = None
    reward_max: FiniteFloat | None = None
    stop_reason: str | None = None
    failed: bool | None = None
    """True: only what failed, and was left out of training; False: all else."""
    tool: str | None = None
    """Called by the trajectory."""
    turns_min: int | None = Field(default=None, ge=0, le=_LARGEST)
    turns_max: int | None = Field(default=None, ge=0, le=_LARGEST)
    tokens_min: int | None = Field(default=None, ge=0, le=_LARGEST)
    tokens_max: int | None = Field(default=None, ge=0, le=_LARGEST)
    text: str | None = None
    """Part of the prompt or the answer, in upper or lower case."""
    uid: str | None = None
    prompt_key: str | None = None

    def steps(self) -> tuple[int, int]:
        """The first and the last step."""
        first, last = max(self.step_min or 0, self.step or 0), MOST_STEPS - 1
        bounds = (bound for bound in (self.step, self.step_max) if bound is not None)
        return first, min([last, *bounds])


class Page(Filter):
    """Which trajectories, in which order, and which part of them."""

    sort: Literal["step", "reward", "advantage", "turns", "tokens", "tool_calls"] = "step"
    """`step`: the order of the dumps. What a trajectory does not have comes last."""
    order: Literal["asc", "desc"] = "asc"
    offset: int = Field(default=0, ge=0, le=_LARGEST)
    limit: int = Field(default=100, ge=0, le=1000)


def page_of(index: DumpIndex, page: Page) -> tuple[int, list[Row]]:
    """How many trajectories there are, and some of them."""
    where, values = _condition(page)
    direction = page.order.upper()
    order = f"id {direction}" if page.sort == "step" else f"{page.sort} IS NULL, {page.sort} {direction}, id"
    with index.database() as database:
        if page.text:
            index.search(page.text, page.steps())
        total = database.execute(f"SELECT count(*) FROM rows WHERE {where}", values).fetchone()[0]
        ids = database.execute(
            f"SELECT id FROM rows WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?", [*values, page.limit, page.offset]
        ).fetchall()
        return total, _rows(database, [number for (number,) in ids])


def groups_of(index: DumpIndex, wanted: Filter, offset: int, limit: int) -> tuple[int, list[Row]]:
    """How many groups (of one prompt in one step) there are, and some of them with their trajectories."""
    where, values = _condition(wanted)
    with index.database() as database:
        if wanted.text:
            index.search(wanted.text, wanted.steps())
        grouped = f"SELECT min(id) AS first, step, uid FROM rows WHERE {where} GROUP BY step, uid"
        total = database.execute(f"SELECT count(*) FROM ({grouped})", values).fetchone()[0]
        names = database.execute(f"{grouped} ORDER BY first LIMIT ? OFFSET ?", [*values, limit, offset]).fetchall()
        return total, [_group(database, step, uid) for _, step, uid in names]


def rows_of_prompt(index: DumpIndex, prompt_key: str) -> list[Row]:
    """Trajectories of one prompt, from the first step to the last."""
    return page_rows(index, "prompt_key = ? ORDER BY id LIMIT ?", (prompt_key, MOST_OF_A_PROMPT))


def row_of(index: DumpIndex, number: int) -> Row | None:
    """One trajectory."""
    return next(iter(page_rows(index, "id = ?", (number,))), None)


def page_rows(index: DumpIndex, where: str, values: Sequence[Any]) -> list[Row]:
    """The trajectories of a condition of SQL."""
    with index.database() as database:
        ids = database.execute(f"SELECT id FROM rows WHERE {where}", values).fetchall()
        return _rows(database, [number for (number,) in ids])


def neighbours_of(index: DumpIndex, number: int) -> tuple[int | None, int | None]:
    """The trajectories before and after one."""
    with index.database() as database:
        before = database.execute("SELECT max(id) FROM rows WHERE id < ?", (number,)).fetchone()[0]
        after = database.execute("SELECT min(id) FROM rows WHERE id > ?", (number,)).fetchone()[0]
    return before, after


def facets_of(index: DumpIndex) -> Row:
    """What filters can choose from."""
    with index.database() as database:

        def every(column: str, table: str = "rows") -> list[Any]:
            found = database.execute(f"SELECT DISTINCT {column} FROM {table} ORDER BY {column}").fetchall()
            return [value for (value,) in found]

        failed = f"SELECT coalesce(sum(records - damaged), 0) FROM files WHERE first_id & {FAILED}"
        steps = [step for (step,) in database.execute("SELECT DISTINCT step FROM texts ORDER BY step").fetchall()]
        return {
            **NO_FACETS,
            "steps": [steps[0], steps[-1]] if steps else None,
            "step_list": steps,
            "data_sources": every("data_source"),
            "stop_reasons": every("stop_reason"),
            "tools": every("tool", "calls"),
            "failed": database.execute(failed).fetchone()[0],
        }


def count_of(index: DumpIndex) -> int:
    """Trajectories in the index."""
    with index.database() as database:
        return int(database.execute("SELECT count(*) FROM rows").fetchone()[0])


def _condition(wanted: Filter) -> tuple[str, list[Any]]:
    """A condition of SQL and its values. Steps are a range of numbers, which are the key of the table."""
    first, last = wanted.steps()
    parts, values = ["id BETWEEN ? AND ?"], [first << STEP_BITS, ((last + 1) << STEP_BITS) - 1]
    given: list[tuple[str, Any]] = [(f"{name} = ?", getattr(wanted, name)) for name in _EQUAL]
    given += [
        ("reward >= ?", wanted.reward_min),
        ("reward <= ?", wanted.reward_max),
        ("turns >= ?", wanted.turns_min),
        ("turns <= ?", wanted.turns_max),
        ("tokens >= ?", wanted.tokens_min),
        ("tokens <= ?", wanted.tokens_max),
        ("id IN (SELECT id FROM calls WHERE tool = ?)", wanted.tool),
        (f"id & {FAILED} = ?", None if wanted.failed is None else FAILED * wanted.failed),
    ]
    for part, value in given:
        if value is not None:
            parts.append(part)
            values.append(value)
    if wanted.text:
        parts.append("id IN (SELECT id FROM found)")
    return " AND ".join(parts), values


def _rows(database: sqlite3.Connection, ids: Sequence[int]) -> list[Row]:
    """Trajectories in the order of their numbers in `ids`."""
    listed = ", ".join(map(str, ids))
    found = database.execute(f"SELECT {_COLUMNS} FROM rows JOIN shown USING (id) WHERE id IN ({listed})").fetchall()
    by_id = {
        row["id"]: {**dict(row), "tools": orjson.loads(row["tools"]), "failed": bool(row["id"] & FAILED)}
        for row in found
    }
    return [by_id[number] for number in ids]


def _group(database: sqlite3.Connection, step: int, uid: str) -> Row:
    ids = database.execute(
        "SELECT id FROM rows WHERE uid = ? AND id BETWEEN ? AND ?",
        (uid, step << STEP_BITS, ((step + 1) << STEP_BITS) - 1),
    ).fetchall()
    rows = _rows(database, [number for (number,) in ids])
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    return {
        "uid": uid,
        "step": step,
        "prompt_key": rows[0]["prompt_key"],
        "question": rows[0]["question"],
        "mean": fmean(rewards) if rewards else None,
        "spread": pstdev(rewards) if rewards else None,
        "rows": rows,
    }
