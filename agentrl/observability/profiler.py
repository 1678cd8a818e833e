"""Profiles one process for a while: a Chrome trace, a window for Nsight, or a snapshot of a GPU's memory."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch

Tool = Literal["auto", "torch", "nsys", "torch_memory"]
UNDER_NSIGHT = "NSYS_PROFILING_SESSION_ID"
"""An environment variable that `nsys profile` sets."""
_MOST_ALLOCATIONS = 100_000
"""Most events of a memory history."""


class ProcessProfiler:
    """Profiles this process from `start` to `stop`.

    Args:
        tool: `torch` writes a Chrome trace; `nsys` opens a cudaProfilerApi window, for `nsys profile
            --capture-range=cudaProfilerApi`; `torch_memory` writes a history of the GPU's memory. auto: nsys under
            Nsight, else torch.
        file: what is written, without its suffix.
    """

    def __init__(self, tool: Tool, file: Path) -> None:
        self.tool = ("nsys" if UNDER_NSIGHT in os.environ else "torch") if tool == "auto" else tool
        self._file = file
        self._trace: torch.profiler.profile | None = None

    def start(self) -> None:
        """Begin."""
        if self.tool == "nsys":
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        elif self.tool == "torch_memory":
            torch.cuda.memory._record_memory_history(max_entries=_MOST_ALLOCATIONS)
        else:
            kinds = [torch.profiler.ProfilerActivity.CPU]
            kinds += [torch.profiler.ProfilerActivity.CUDA] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
            self._trace = torch.profiler.profile(activities=kinds, acc_events=True)
            self._trace.start()

    def stop(self) -> None:
        """End, and write what was found.

        Raises:
            OSError: the file cannot be written.
        """
        if self.tool == "nsys":
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_name(f".{self._file.name}.partial")
        try:
            if self._trace is None:
                torch.cuda.memory._dump_snapshot(str(partial))  # type: ignore[no-untyped-call]
                torch.cuda.memory._record_memory_history(enabled=None)
                os.replace(partial, self._file.with_name(f"{self._file.name}.pickle"))
                return
            self._trace.stop()
            self._trace.export_chrome_trace(str(partial))
            os.replace(partial, self._file.with_name(f"{self._file.name}.json"))
        finally:
            with suppress(OSError):
                partial.unlink()
