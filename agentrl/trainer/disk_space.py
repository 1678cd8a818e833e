"""Whether the disks have room for what a run writes: found out at its start, not at the first checkpoint."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agentrl.config import RunConfig

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that are written to a folder, and what they are."""

    what: str
    folder: Path
    num_bytes: int


def room_problems(needs: Iterable[Need]) -> list[str]:
    """One sentence for each disk that has less room than its folders need, with the sum and what is free."""
    disks: dict[int, list[Need]] = {}
    for need in needs:
        disks.setdefault(os.stat(_existing(need.folder)).st_dev, []).append(need)
    problems = []
    for there in disks.values():
        wanted, free = sum(need.num_bytes for need in there), free_bytes(there[0].folder)
        if wanted > free:
            parts = " and ".join(f"{need.what} ({in_gib(need.num_bytes)} in '{need.folder}')" for need in there)
            problems.append(f"the disk has no room for {parts}: {in_gib(wanted)} are needed, {in_gib(free)} are free")
    return problems


def free_bytes(folder: Path) -> int:
    """What may still be written to a folder, which need not exist yet."""
    return shutil.disk_usage(_existing(folder)).free


def in_gib(num_bytes: int) -> str:
    """`12.3 GiB`; small numbers in MiB."""
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**28 else f"{num_bytes / 2**20:.1f} MiB"


def export_need(config: RunConfig, num_bytes: int) -> list[Need]:
    """What an update of the engines writes to a disk; nothing where it travels through memory.

    Args:
        config: the run.
        num_bytes: of the weights as engines read them.
    """
    rollout = config.actor_rollout_ref.rollout
    if rollout.weight_sync not in ("auto", "disk") or config.actor_rollout_ref.model.adapts:
        return []
    if rollout.weight_sync_dir is not None:
        return [Need("an export for the engines", Path(rollout.weight_sync_dir), num_bytes)]
    if SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK) and free_bytes(SHARED_MEMORY) > 2 * num_bytes:
        return []
    return [Need("an export for the engines", Path(tempfile.gettempdir()), num_bytes)]


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
