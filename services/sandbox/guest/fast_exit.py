"""Ends a forked interpreter as soon as its program is finished.

At its end an interpreter clears all modules. In a fork this copies page after page of the memory that it shares with
the zygote, which takes longer than the rest of a short run. So the zygote's modules are not cleared: the process ends
when the program's exit handlers have run, its own modules are cleared and its output is flushed.
"""

from __future__ import annotations

import atexit
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentrl.services.sandbox.guest import linux_calls
else:
    import linux_calls

_LAST = ("__main__", "builtins", "sys")
_held: list[Any] = []
"""Never taken apart, for no module in `sys.modules` leads here."""


class FastExit:
    """What to do at the end of this process and of those that it forks; make it before any program runs."""

    def __init__(self) -> None:
        self._modules = {name: (module, len(vars(module))) for name, module in sys.modules.items() if name not in _LAST}
        self._code: int | None = None
        atexit.register(self._prepare)  # the first that comes is the last that runs

    def expect(self, code: Any) -> None:
        """Note with what `sys.exit` was called; where that is not plain, the interpreter ends the long way."""
        plain = code is None or (isinstance(code, int) and abs(code) < 1 << 31)
        self._code = int(code or 0) if plain else None

    def _prepare(self) -> None:
        if self._code is None:
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            return  # the long way reports it
        for name, (module, size) in self._modules.items():
            if sys.modules.get(name) is module and len(vars(module)) == size:
                _held.append(sys.modules.pop(name))
        # What a dying interpreter clears last of all that a program can reach is the newest name in `sys`.
        vars(sys)["the end"] = _Last(self._code)


class _Last:
    """Ends the process when it is cleared away."""

    def __init__(self, code: int) -> None:
        self._streams: list[Any] = [sys.__stdout__, sys.__stderr__]
        self._end, self._code = linux_calls.end, code

    def __del__(self) -> None:
        for stream in self._streams:
            try:
                stream.flush()
            except BaseException:
                continue
        self._end(self._code)
