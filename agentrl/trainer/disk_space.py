"""Whether the disks have room for what a run writes: found out at its start, not at the first checkpoint."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


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


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
