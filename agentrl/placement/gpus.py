"""Kinds of GPUs: what each computes, reads and holds, according to its maker."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GPUKind:
    """One kind.

    Attributes:
        flops: dense bfloat16 operations per second; of float16, where it has no units for bfloat16.
        bandwidth: bytes of its memory that it reads in a second.
        gib: its usual memory, as one names it (80 for 79.6).
    """

    flops: float
    bandwidth: float
    gib: int


GPUS = {
    "GB200": GPUKind(2500e12, 8.0e12, 186),
    "GH200": GPUKind(989e12, 4.0e12, 96),
    "B200": GPUKind(2250e12, 8.0e12, 180),
    "H20 ": GPUKind(148e12, 4.0e12, 96),
    "H100 PCIe": GPUKind(756e12, 2.0e12, 80),
    "H100": GPUKind(989e12, 3.35e12, 80),
    "H200": GPUKind(989e12, 4.8e12, 141),
    "H800": GPUKind(989e12, 3.35e12, 80),
    "A100": GPUKind(312e12, 2.0e12, 80),
    "A800": GPUKind(312e12, 2.0e12, 80),
    "L40S": GPUKind(362e12, 0.86e12, 48),
    "L40": GPUKind(181e12, 0.86e12, 48),
    "A40 ": GPUKind(150e12, 0.7e12, 48),
    "A30 ": GPUKind(165e12, 0.93e12, 24),
    "A10G": GPUKind(70e12, 0.6e12, 24),
    "A10 ": GPUKind(125e12, 0.6e12, 24),
    "L20": GPUKind(119e12, 0.86e12, 48),
    "L4 ": GPUKind(121e12, 0.3e12, 24),
    "V100": GPUKind(125e12, 0.9e12, 16),
    "T4 ": GPUKind(65e12, 0.32e12, 16),
    "RTX A6000": GPUKind(155e12, 0.77e12, 48),
    "RTX 6000 Ada": GPUKind(364e12, 0.96e12, 48),
    "RTX 5090": GPUKind(210e12, 1.79e12, 32),
    "RTX 4090": GPUKind(165e12, 1.01e12, 24),
    "RTX 3090": GPUKind(71e12, 0.94e12, 24),
}
"""By a part of the name that torch gives a GPU, blanks for hyphens and one behind it; the first match counts."""
_SIZE = re.compile(r"\b(\d+) ?G(?:i?B)?\b", re.IGNORECASE)
_USUAL = {24: "A10 ", 40: "A100", 48: "L40S", 80: "H100", 96: "H20 ", 141: "H200", 180: "B200", 186: "GB200"}
"""The kind that is assumed where only the memory is known."""


def gpu_kind(name: str) -> GPUKind | None:
    """The kind of a GPU by its name, such as `NVIDIA H100 80GB HBM3` or Ray's `A100-40G`; None: not known."""
    plain = f"{name.replace('-', ' ')} ".casefold()
    return next((kind for part, kind in GPUS.items() if part.casefold() in plain), None)


def named_gib(name: str) -> float | None:
    """The memory of a GPU that its own name says, in GiB as one names it: 40 of `A100-SXM4-40GB`; None: it says none.

    `GH200 480GB` is named by the memory of its CPU: more than twice what is usual is none of the GPU's.
    """
    kind, found = gpu_kind(name), _SIZE.search(name.replace("-", " "))
    size = None if found is None else float(found[1])
    return None if size is None or (kind is not None and size > 2 * kind.gib) else size


def usual_gib(name: str) -> float | None:
    """The memory of a GPU by its name: what it says itself, else what its kind usually has; None: not known."""
    kind = gpu_kind(name)
    return named_gib(name) or (None if kind is None else float(kind.gib))


def alike(name: str, other: str, gib: float) -> bool:
    """Whether a GPU of this name is of the kind and size of another one, whose memory was measured."""
    named = named_gib(name)
    return gpu_kind(name) is not None and gpu_kind(name) == gpu_kind(other) and (named is None or _near(gib, named))


def _near(gib: float, named: float) -> bool:
    """Whether a memory is the one that is named so: 79.2 GiB are 80, and a maker's 24 GB are 22.1."""
    return abs(named - gib) <= 0.1 * named


def assumed(name: str | None, gib: float | None) -> tuple[str, GPUKind] | None:
    """A kind and its name: by name, else the usual one of this much memory.

    `None, 80` is an H100: it is the kind that most GPUs with 80 GiB are, and an A100 is a third as fast.
    """
    if name is not None:
        kind = gpu_kind(name)
        return None if kind is None else (name, kind)
    if gib is None:
        return None
    near = min(_USUAL, key=lambda usual: abs(usual - gib))
    found = _USUAL[near]
    return (found.strip(), GPUS[found]) if _near(gib, near) else None
