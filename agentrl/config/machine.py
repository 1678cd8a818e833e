"""What this machine decides where a configuration says `auto`: the device and the engine."""

from __future__ import annotations

import importlib.util
from typing import Literal

from agentrl.config.planned import planned_gpus
from agentrl.config.root import RunConfig

EngineName = Literal["sglang", "vllm", "hf", "embedded"]
OWN_ENGINES = ("embedded", "hf")
"""Engines that are part of agentrl: they run in its Python and take one device."""


def sglang_installed() -> bool:
    """Whether the sglang package is installed; it is on machines that are planned for."""
    return planned_gpus() is not None or importlib.util.find_spec("sglang") is not None


def cuda_available() -> bool:
    """Whether torch sees a GPU."""
    import torch

    return torch.cuda.is_available()


def uses_cuda(config: RunConfig) -> bool:
    """Whether the run's ranks and engines are on GPUs."""
    return is_cuda(config.trainer.device)


def is_cuda(device: str) -> bool:
    """Whether this `trainer.device` is a GPU here, or on the machines that are planned for."""
    planned = planned_gpus()
    return device == "cuda" or (device == "auto" and (cuda_available() if planned is None else planned))


def engine_name(config: RunConfig, *, installed: bool | None = None) -> EngineName:
    """The engine of `rollout.name`; auto: sglang if CUDA and sglang are present, else embedded.

    Args:
        config: the run.
        installed: whether sglang is; None: look.
    """
    name = config.actor_rollout_ref.rollout.name
    if name != "auto":
        return name
    present = sglang_installed() if installed is None else installed
    return "sglang" if present and uses_cuda(config) else "embedded"
