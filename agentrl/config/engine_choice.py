"""What `rollout.name=vllm` means on a machine without vLLM, and whether an engine's package is installed somewhere."""

from __future__ import annotations

import importlib.util
import subprocess
from functools import cache

from agentrl.config.planned import planned_gpus
from agentrl.config.value_tree import Tree, leaves, set_value

_ROLLOUT = "actor_rollout_ref.rollout."
CONTEXT_MARGIN = 8
"""Tokens of its context that SGLang does not use (it refuses prompts from the sixth last on and cuts answers two tokens
before the end), and two more to be safe: for requests of C tokens a server is started with a context of C + 8."""
INSTALL_VLLM = "pip install vllm, or name a Python that has it in rollout.server.python"


def vllm_installed() -> bool:
    """Whether the vllm package is installed here; it is on machines that are planned for."""
    return planned_gpus() is not None or importlib.util.find_spec("vllm") is not None


@cache
def has_package(python: str, package: str) -> bool:
    """Whether another Python has a package; False also if it cannot be run."""
    code = f"import importlib.util; raise SystemExit(importlib.util.find_spec({package!r}) is None)"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, check=False, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def vllm_is_named(addresses: object, python: object) -> bool:
    """Whether the run says where its vLLM is: at running servers, or in a Python of its own."""
    return bool(addresses or python)


def settle_engine(tree: Tree) -> dict[str, str]:
    """Read `vllm` as `auto` where vLLM is absent, so that commands written for it also run on a laptop.

    Returns:
        The note about it, by key; empty if nothing was changed.
    """
    key = f"{_ROLLOUT}name"
    given = dict(leaves(tree))
    server = (given.get(f"{_ROLLOUT}server.{name}") for name in ("addresses", "python"))
    if given.get(key) != "vllm" or vllm_is_named(*server) or vllm_installed():
        return {}
    set_value(tree, key, "auto")
    return {key: f"{key}: vllm is read as auto: vLLM is not installed here ({INSTALL_VLLM})"}
