"""A process that calls a score function and can be killed: `score_server` runs in it.

It is a plain child process: a `multiprocessing` one would import the caller's main module, and so run a plain script a
second time. It leads a process group of its own, so that what the function has started is killed with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import weakref
from contextlib import ExitStack
from multiprocessing.connection import Connection, Pipe

from agentrl.errors import RewardError
from agentrl.interfaces import RewardResult
from agentrl.own_time import OwnTime
from agentrl.rewards.score_server import FAILED, GOES_ON, READY, SCORED, SPENT, WAITS, Message

START_TIMEOUT_S = 120.0
"""Long, because the function's module may import anything."""
MAX_WAIT_S = 3600.0
"""Of one call, in all queues together."""
_LOOK_S = 0.5
_NOTHING: Message = ("", None)
_MAIN = "import sys; sys.path[:] = {path!r}; import agentrl.rewards.score_server as s; s.serve_scores({end}, {owner})"


class TookTooLong(Exception):
    """The call used up its time; its process has been killed."""


class NotServed(Exception):
    """The call ended for a reason that is not the function's, which the text names; its process has been killed."""


class ProcessDied(Exception):
    """The process ended during a call; the text says how."""


class ScoreProcess:
    """One process, ready for calls; one at a time.

    Args:
        function: pickled `(reference, args, kwargs)`: what `plugins.registry` resolves, and what every call gets.

    Raises:
        RewardError: it does not start.
    """

    def __init__(self, function: bytes) -> None:
        self._end, theirs = Pipe()
        with theirs:
            code = _MAIN.format(path=sys.path, end=theirs.fileno(), owner=os.getpid())
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.kill = weakref.finalize(self, _kill, self._process, self._end, os.getpid())
        """Kill it and whatever it started, and wait for its end; at the latest when this process ends."""
        self._begin(function)

    def _begin(self, function: bytes) -> None:
        try:
            self._end.send_bytes(function)
            message = self._next(START_TIMEOUT_S)
        except ProcessDied as died:
            raise RewardError(f"a process of the score function cannot start ({died}): see its error output") from died
        if message is None or message[0] != READY:
            self.kill()
            raise RewardError(f"a process of the score function did not start within {START_TIMEOUT_S:g} s")

    def ask(self, arguments: bytes, timeout_s: float, caller: OwnTime) -> RewardResult:
        """The result of one call.

        Args:
            arguments: pickled keywords.
            timeout_s: its limit, without the time that the function waits in queues.
            caller: tells when nobody wants the result any more; then the process is killed too.

        Raises:
            TookTooLong: the limit is reached; the process has been killed.
            NotServed: nobody wants the result, or the function waits in a queue that never moves.
            ProcessDied: it ended.
            RewardError: the function raised, or returned no score.
            UserInputError: it raised one.
            InfrastructureError: it raised one.
        """
        with ExitStack() as waits:
            self._send(arguments)
            watch = OwnTime()
            while True:
                if caller.abandoned or watch.waited_s > MAX_WAIT_S:
                    self.kill()
                    why = "is no longer needed" if caller.abandoned else f"waited over {MAX_WAIT_S:g} s in queues"
                    raise NotServed(f"the score function {why}")
                if watch.seconds >= timeout_s:
                    self.kill()
                    raise TookTooLong
                kind, content = self._next(min(max(timeout_s - watch.seconds, 0.001), _LOOK_S)) or _NOTHING
                if kind == WAITS:
                    waits.enter_context(watch.stands())
                elif kind == GOES_ON:
                    waits.close()
                elif kind == SPENT:
                    watch.spend(content)
                elif kind == FAILED:
                    raise content
                elif kind == SCORED:
                    result: RewardResult = content
                    return result

    def _send(self, data: bytes) -> None:
        try:
            self._end.send_bytes(data)
        except OSError:
            raise self._death() from None

    def _next(self, timeout_s: float) -> Message | None:
        """The next message; None: there is none in this time."""
        try:
            return self._end.recv() if self._end.poll(timeout_s) else None
        except (EOFError, OSError):
            raise self._death() from None

    def _death(self) -> ProcessDied:
        """How it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LOOK_S)
        self.kill()
        code = self._process.returncode
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return ProcessDied(how)


def _kill(process: subprocess.Popen[bytes], end: Connection, owner: int) -> None:
    if os.getpid() != owner:  # a fork of the owner
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    end.close()
