"""How long a CPU thread waits awake for the others of its group."""

from __future__ import annotations

from collections.abc import MutableMapping

SPINS = "GOMP_SPINCOUNT"
SPIN_COUNT = "2000"
"""Some microseconds. By default a thread that waits for another keeps its core busy for milliseconds, and on a machine
where anything else runs the other may wait for that very core: a step of the demo beside one busy process took 11 s in
place of 0.6 s. So it takes 1.4 s, and a quiet machine is not slower (2 cores)."""
OWN_WISHES = (SPINS, "OMP_WAIT_POLICY")


def wait_asleep(environment: MutableMapping[str, str]) -> None:
    """Let threads sleep soon, here and in processes that inherit this environment; settings of the user's own stay.

    The OpenMP library reads it when torch is imported.
    """
    if not any(name in environment for name in OWN_WISHES):
        environment[SPINS] = SPIN_COUNT
