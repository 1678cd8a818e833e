"""`/run_jupyter`: cells one after another in one interpreter, without a Jupyter kernel."""

from __future__ import annotations

import time

from agentrl.services.sandbox.judge import shorten
from agentrl.services.sandbox.options import SandboxOptions
from agentrl.services.sandbox.protocol import CellResult, RunJupyter, RunJupyterAnswer, encode
from agentrl.services.sandbox.run_clock import WALL_FACTOR
from agentrl.services.sandbox.run_files import get_files
from agentrl.services.sandbox.run_limits import MIB
from agentrl.services.sandbox.stateful_interpreter import CellOutcome, StatefulInterpreter


async def run_cells(interpreter: StatefulInterpreter, request: RunJupyter, options: SandboxOptions) -> RunJupyterAnswer:
    """Run cells, then read the files. All cells share the output limit.

    As in SandboxFusion a cell that raises does not end the run: the next cells run, and the answer is a `Success`. Only
    the time limits, and code that ends the interpreter, end a run before its last cell.
    """
    room = options.output_mb * MIB
    began, spent = time.monotonic(), 0.0
    cells: list[CellResult] = []
    message = ""
    for number, code in enumerate(request.cells, start=1):
        left = request.total_timeout - max(spent, (time.monotonic() - began) / WALL_FACTOR)
        if left <= 0:
            message = (
                f"cell {number} and those after it did not run: total_timeout ({request.total_timeout:g} s) is over"
            )
            break
        limit = min(left, request.cell_timeout or left)
        outcome = await interpreter.run(code, limit, notebook=True)
        if outcome.shown is not None:
            outcome.shown = shorten(outcome.shown, room)
            room = max(0, room - len(outcome.shown))
        spent += outcome.result.cpu_time or 0.0
        cells.append(_cell(outcome))
        if outcome.result.status == "TimeLimitExceeded":
            message = f"cell {number} ran longer than {limit:.3g} s"
        elif not interpreter.is_usable:
            message = f"cell {number} ended the interpreter"
        if message:
            break
    files, problems = get_files(interpreter.sandbox.work, request.fetch_files, options.files_mb * MIB)
    return RunJupyterAnswer(
        status="Failed" if message else "Success",
        message="; ".join([*([message] if message else []), *(f"fetch_files: {problem}" for problem in problems)]),
        cells=cells,
        files=encode(files),
    )


def _cell(outcome: CellOutcome) -> CellResult:
    return CellResult(
        stdout=outcome.result.stdout or "",
        stderr=outcome.result.stderr or "",
        display=[] if outcome.shown is None else [{"text/plain": outcome.shown}],
        error=[outcome.error] if outcome.error else [],
    )
