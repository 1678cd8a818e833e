"""Which models can be spread over several ranks, and how; part of `checks.CHECKS`."""

from __future__ import annotations

from typing import Any

from agentrl.errors import ConfigError

WHOLE_STYLES = frozenset({"packed_colwise", "moe_tp_experts", "embedding_rowwise", "colwise_gather_output"})
"""Styles of transformers' plans for modules that stay whole: experts are, and the head is cut by its vocabulary."""
CUT_STYLES = frozenset({"colwise", "rowwise", "replicated_with_grad_allreduce"})


def tp_plan_of(config: Any) -> dict[str, str]:
    """The plan of a model by names of modules.

    Raises:
        ConfigError: transformers has none, or one that agentrl cannot follow.
    """
    plan: dict[str, str] = getattr(config, "base_model_tp_plan", None) or {}
    if not plan:
        raise ConfigError(f"transformers has no tensor-parallel plan for models of type '{config.model_type}'")
    unknown = sorted(set(plan.values()) - WHOLE_STYLES - CUT_STYLES)
    if unknown:
        raise ConfigError(
            f"the tensor-parallel plan of '{config.model_type}' in transformers cuts modules as {', '.join(unknown)}, "
            f"which agentrl cannot; it can {', '.join(sorted(CUT_STYLES))}"
        )
    return plan
