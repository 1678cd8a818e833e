"""A Python session inside the sandbox: runs cells one after another in one namespace.

Each cell is a message on the control socket, behind a byte that carries the cell's own stdout and stderr. The answer is
a JSON message with the cell's number, `{"code": 0, "number": ...}`. An interrupt (Ctrl-C) ends a cell, not the session.
"""

from __future__ import annotations

import _socket
import ast
import contextlib
import io
import json
import linecache
import os
import signal
import sys
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_SHOWN_CHARS = 200_000


def run(
    job: dict[str, Any],
    control: int,
    receive: Callable[[int], dict[str, Any] | None],
    prepare: Callable[[dict[str, Any], str], ModuleType],
) -> int:
    """Serve until the server hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main = prepare(job, os.getcwd())
    sys.argv[:] = [""]
    os.set_inheritable(control, False)
    os.write(control, b"S")
    own_pid = os.getpid()
    socket = _socket.socket(fileno=control)
    count, streams = 0, list[int]()
    while True:
        streams = _next_streams(socket, streams)
        cell = receive(control)
        if cell is None:
            return 0
        count += 1
        answer = _run_cell(cell, main.__dict__, f"<cell {count}>")
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for name in ("stdout", "stderr"):
            try:
                getattr(sys, name).flush()
            except BaseException:  # the cell may have put anything there
                continue
        if os.getpid() != own_pid:  # the cell has forked, and this is the end of the fork's code
            os._exit(answer["code"])
        # the code's texts may hold halves of surrogate pairs, which no answer can
        answer["number"] = cell["number"]
        data = json.dumps(answer, ensure_ascii=False).encode(errors="replace")
        os.write(control, b"%08d" % len(data) + data)


def _next_streams(socket: _socket.socket, last: list[int]) -> list[int]:
    """Wait for the next cell and make its stdout and stderr this interpreter's.

    They stay open a second time until the next call: so there is room for them even if the code opens all files it may.
    """
    socket.recv(1, _socket.MSG_PEEK)  # only waits
    for fd in last:
        with contextlib.suppress(OSError):  # the code may have closed it
            os.close(fd)
    mark, ancillary, _, _ = socket.recvmsg(1, _socket.CMSG_SPACE(2 * 4))
    fds = [int.from_bytes(data[at : at + 4], sys.byteorder) for *_, data in ancillary for at in range(0, len(data), 4)]
    if mark and len(fds) != 2:
        os._exit(1)
    for stream, fd in zip((1, 2), fds, strict=False):  # none when the server has hung up
        os.dup2(fd, stream)
        os.set_inheritable(fd, False)
    return fds


def _run_cell(cell: dict[str, Any], namespace: dict[str, Any], name: str) -> dict[str, Any]:
    source = cell["code"].encode(errors="surrogatepass")  # as `/run_code` writes it into a file
    lines = io.StringIO(cell["code"].removeprefix("\ufeff") + "\n", newline=None).readlines()
    linecache.cache[name] = (len(source), None, lines, name)
    value = None
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tree = ast.parse(source, name)
        last = None
        if cell["show_last"] and tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        exec(compile(tree, name, "exec", dont_inherit=True), namespace)
        if last is not None:
            value = eval(compile(last, name, "eval", dont_inherit=True), namespace)
        shown = None if value is None else repr(value)[:_SHOWN_CHARS]
    except SystemExit as error:
        return _leave(error)
    except BaseException as error:
        return _describe(error)
    if value is not None:
        namespace["_"] = value
    return {"code": 0} if shown is None else {"code": 0, "shown": shown}


def _leave(error: SystemExit) -> dict[str, Any]:
    """Print what a plain interpreter would at its end; the answer has its exit code."""
    try:
        code = 0 if error.code is None else error.code
        text, number = str(code), 1
        if not isinstance(code, int):
            _print(f"{text}\n")
        else:
            number = code & 0xFF if abs(code) < 1 << 63 else 0xFF
    except BaseException as worse:
        return _describe(worse)
    name = type(error).__name__
    return _failed(number, name, text, [f"{name}: {text}\n"]) if number else {"code": 0}


def _describe(error: BaseException) -> dict[str, Any]:
    """Print the traceback, without the frames that lead to the code."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, ast.__file__):
        frames = frames.tb_next
    try:
        lines = traceback.format_exception(type(error), error, frames)
        text = str(error)
    except BaseException as worse:  # the exception's own text fails
        lines, text = [f"{type(error).__name__}: {type(worse).__name__} in its text\n"], ""
    if not _print("".join(lines)):
        lines.append("(stderr is closed)\n")
    return _failed(1, type(error).__name__, text, lines)


def _failed(code: int, name: str, text: str, lines: list[str]) -> dict[str, Any]:
    whole = "".join(lines)
    lines = lines if len(whole) <= _SHOWN_CHARS else [whole[:_SHOWN_CHARS]]
    return {"code": code, "error": {"ename": name, "evalue": text[:_SHOWN_CHARS], "traceback": lines}}


def _print(text: str) -> bool:
    """Write to what the code has made of stderr; False: it does not take it."""
    try:
        sys.stderr.write(text)
    except BaseException:
        return False
    return True
