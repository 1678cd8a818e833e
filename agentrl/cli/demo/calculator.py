"""The calculator demo: arithmetic whose operators and operands are in the question, and a tool that evaluates it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from agentrl.cli.demo.demonstrations import conversation, plan_demonstrations
from agentrl.cli.demo.description import HELD_OUT_ROWS, TRAIN_ROWS, DataRequest, Demo, DemoData
from agentrl.data.preprocess.arithmetic import DATA_SOURCE, Pair, write_arithmetic
from agentrl.data.preprocess.writing import write_parquet
from agentrl.plugins import ToolSpec, load_tools


def write_data(
    folder: Path,
    tool: ToolSpec,
    *,
    demonstrations: int,
    seed: int,
    from_gsm8k: Path | None = None,
    train_rows: int = TRAIN_ROWS,
    held_out_rows: int = HELD_OUT_ROWS,
) -> DemoData:
    """Write the three files.

    Args:
        folder: where to write; created if missing.
        tool: the calculator, whose own answers are in the demonstrations.
        demonstrations: how many conversations to write.
        seed: seed of every draw.
        from_gsm8k: a GSM8K jsonl file to take real expressions from; None: generate them.
        train_rows: expressions to train on.
        held_out_rows: expressions to measure on.

    Raises:
        UserInputError: the GSM8K file cannot be used, or holds too few expressions.
    """
    files = write_arithmetic(folder, train_rows, held_out_rows, seed, from_gsm8k)
    plans = plan_demonstrations(read_pairs(files["train"]), demonstrations, seed)
    results = run_tool(tool, {plan.called for plan in plans})
    rows = [{"messages": conversation(plan, results.__getitem__, tool.name)} for plan in plans]
    written = write_parquet(rows, folder / "demonstrations.parquet")
    return DemoData(written, files["train"], files["test"])


def read_pairs(file: Path) -> list[Pair]:
    """Expressions and answers of a file that `write_arithmetic` wrote."""
    import pyarrow.parquet as pq

    column = pq.read_table(file, columns=["extra_info"]).column("extra_info").to_pylist()
    return [(info["question"], info["answer"]) for info in column]


def run_tool(tool: ToolSpec, expressions: Iterable[str]) -> dict[str, str]:
    """The tool's answer to each expression."""

    async def ask_all() -> dict[str, str]:
        instance = tool.build()
        return {text: (await instance.execute({"expression": text})).text for text in sorted(set(expressions))}

    return asyncio.run(ask_all())


def _write(request: DataRequest) -> DemoData:
    assert request.tools is not None
    return write_data(
        request.folder,
        load_tools(request.tools)[0],
        demonstrations=request.demonstrations,
        seed=request.seed,
        from_gsm8k=request.from_gsm8k,
        train_rows=request.train_rows,
        held_out_rows=request.held_out_rows,
    )


CALCULATOR = Demo(
    name="calculator",
    title="a calculator agent learns to use its tool",
    questions="expressions",
    habits="some ignore the tool, some misuse it",
    recipe="demo",
    warm_start="demo_sft",
    folder=Path("outputs/demo"),
    data_source=DATA_SOURCE,
    write=_write,
)
