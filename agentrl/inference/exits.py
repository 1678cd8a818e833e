"""How a process ended, in words."""

from __future__ import annotations

import signal

_CAUSES = {
    signal.SIGKILL: ", out of memory?",
    signal.SIGBUS: ", is shared memory full (/dev/shm)?",
    signal.SIGILL: ", is it built for another processor?",
}
"""What is usually behind a signal that nobody sent by hand."""


def how_it_ended(code: int | None) -> str:
    """For example `ended with exit code 3` or `was killed by SIGKILL (9), out of memory?`.

    Args:
        code: as `subprocess` has it: the number of a signal is negative; None: it has not ended. Shells and containers
            report signal 9 as 137 (128 + 9).
    """
    if code is None:
        return "has not ended"
    number = -code if code < 0 else code - 128
    if number not in {each.value for each in signal.Signals}:
        return f"ended with exit code {code}"
    name = signal.Signals(number)
    told = "" if code < 0 else f" (exit code {code})"
    return f"was killed by {name.name} ({number}){told}{_CAUSES.get(name, '')}"
