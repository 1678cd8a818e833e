"""The options of the sandbox service."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field


def default_parallel() -> int:
    """Two runs per core that this process may use."""
    return 2 * len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """Limits and sizes; those of `agentrl serve sandbox` have its names."""

    isolation: str | None = None
    """Level to use: bubblewrap, namespaces or rlimits; None: the strongest that works here."""
    require_isolation: str | None = None
    """Weakest level with which the service starts; None: any."""
    allow_weak_isolation: bool = False
    """Start also where code could end the server, or without libseccomp."""
    fresh_interpreters: bool = False
    """Start an interpreter for each run; else runs are forks of interpreters that are up, where that works."""
    python: str = sys.executable
    """Interpreter of Python code; its packages are what the code can import."""
    parallel: int = field(default_factory=default_parallel)
    """Runs at the same time."""
    queue: int = 256
    """Requests that may wait for a place; more get HTTP 429."""
    queue_seconds: float = 8.0
    """Seconds that a request may wait; after that it gets HTTP 429."""
    warm: int | None = None
    """Interpreters kept started; None: as many as `parallel`."""
    memory_mb: int = 1024
    """Memory of a run whose request names no limit."""
    max_memory_mb: int = 4096
    """Most memory that a request may ask for."""
    processes: int = 64
    """Processes and threads of a run."""
    max_timeout_s: float = 300.0
    """Longest time limit that a request may ask for."""
    output_mb: int = 8
    """Bytes kept of each output stream, in MiB; the rest is read and dropped."""
    file_mb: int = 64
    """Largest file that a run may write."""
    disk_mb: int = 256
    """All that a run may hold in its folder; also the size of its /tmp."""
    files_mb: int = 64
    """Bytes of all files that one request may send, and of those that its answer returns."""
    sessions: int = 64
    """Open sessions."""
    session_ttl_s: float = 600.0
    """A session ends after this time without a run."""
    session_max_s: float = 7200.0
    """A session ends this time after its start."""

    @property
    def warm_count(self) -> int:
        """Interpreters kept started."""
        return self.parallel if self.warm is None else self.warm
