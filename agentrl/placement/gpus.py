"""Kinds of GPUs: what each computes, reads and holds, according to its maker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GPUKind:
    """One kind.

    Attributes:
        flops: dense bfloat16 operations per second.
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
    "A10 ": GPUKind(125e12, 0.6e12, 24),
    "L20": GPUKind(119e12, 0.86e12, 48),
    "L4 ": GPUKind(121e12, 0.3e12, 24),
}
"""By a part of the name that torch gives a GPU, with a blank behind it; the first match counts."""
_USUAL = {24: "A10 ", 40: "A100", 48: "L40S", 80: "H100", 96: "H20 ", 141: "H200", 180: "B200", 186: "GB200"}
"""The kind that is assumed where only the memory is known."""


def gpu_kind(name: str) -> GPUKind | None:
    """The kind of a GPU by its name, such as `NVIDIA H100 80GB HBM3`; None: not known."""
    return next((kind for part, kind in GPUS.items() if part.casefold() in f"{name} ".casefold()), None)


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
    return (found.strip(), GPUS[found]) if abs(near - gib) <= 0.1 * near else None
