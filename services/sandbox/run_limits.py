"""Resource limits of one run, in the form that the program inside the sandbox sets."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What one run may use. Memory and disk are those of all its processes together (see `resource_monitor`)."""

    seconds: float
    memory_mb: int
    processes: int
    file_mb: int
    disk_mb: int

    def rlimits(self, reserves_memory: bool) -> dict[str, int]:
        """Limits by the names of the `resource` module.

        Args:
            reserves_memory: the language's runtime maps far more memory than it uses (V8, the JVM): only data counts.
        """
        # Of one process on all cores; its time limit comes first, and nothing else is to end it.
        cpu_s = math.ceil(self.seconds * (os.cpu_count() or 1)) + 1
        return {
            "RLIMIT_DATA" if reserves_memory else "RLIMIT_AS": self.memory_mb * MIB,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_FSIZE": self.file_mb * MIB,
            "RLIMIT_CPU": cpu_s,
            "RLIMIT_NOFILE": 512,
            "RLIMIT_CORE": 0,
            "RLIMIT_MEMLOCK": 0,
            "RLIMIT_MSGQUEUE": 0,
            "RLIMIT_SIGPENDING": 1024,
        }


def memory_excess(mib: int) -> str:
    """Why a run was stopped that held more memory than this."""
    return f"it used more than {mib} MB of memory"
