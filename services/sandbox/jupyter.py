"""`/run_jupyter`: cells one after another in one interpreter, without a Jupyter kernel."""

from __future__ import annotations

import time

from agentrl.services.sandbox.folders import get_files
from agentrl.services.sandbox.interpreter import Interpreter, Piece
from agentrl.services.sandbox.judge import shorten
from agentrl.services.sandbox.limits import MIB
from agentrl.services.sandbox.options import Options
from agentrl.services.sandbox.protocol import CellResult, RunJupyter, RunJupyterAnswer, encode


async def run_cells(interpreter: Interpreter, request: RunJupyter, options: Options) -> RunJupyterAnswer:
    """Run cells until one fails or the time is over; then take the files. All cells share the limit of output."""
    room = options.output_mb * MIB
    began = time.monotonic()
    cells: list[CellResult] = []
    message = ""
    for number, code in enumerate(request.cells, start=1):
        left = request.total_timeout - (time.monotonic() - began)
        if left <= 0:
            message = f"cell {number} and those after it did not run: {request.total_timeout:g} s are over"
            break
        limit = min(left, request.cell_timeout or left)
        piece = await interpreter.run(code, limit, notebook=True)
        if piece.shown is not None:
            piece.shown = shorten(piece.shown, room)
            room = max(0, room - len(piece.shown))
        cells.append(_cell(piece))
        if piece.result.status == "TimeLimitExceeded":
            message = f"cell {number} ran longer than {limit:.3g} s"
        elif piece.result.return_code != 0:
            message = f"cell {number} failed"
        if message:
            break
    files, problems = get_files(interpreter.jail.work, request.fetch_files, options.files_mb * MIB)
    return RunJupyterAnswer(
        status="Failed" if message else "Success",
        message="; ".join([*([message] if message else []), *(f"fetch_files: {problem}" for problem in problems)]),
        cells=cells,
        files=encode(files),
    )


def _cell(piece: Piece) -> CellResult:
    return CellResult(
        stdout=piece.result.stdout or "",
        stderr=piece.result.stderr or "",
        display=[] if piece.shown is None else [{"text/plain": piece.shown}],
        error=[piece.error] if piece.error else [],
    )
