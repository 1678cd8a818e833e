"""Which models can be spread over several ranks, and how; `check_parallel` is part of `checks.CHECKS`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from agentrl.config.actor import BackboneConfig, FSDPConfig
from agentrl.config.chosen import MESH
from agentrl.config.parallel import SP, TP, mesh_sizes
from agentrl.config.resource_pools import pool_of, roles_of
from agentrl.config.reward_model import ClassifierConfig
from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError
from agentrl.hub import config_file

Problems = Iterator[str]
Model = BackboneConfig | ClassifierConfig

WHOLE_STYLES = frozenset({"packed_colwise", "moe_tp_experts", "embedding_rowwise", "colwise_gather_output"})
"""Styles of transformers' plans for modules that stay whole: experts do, and the head is cut by its vocabulary."""
CUT_STYLES = frozenset({"colwise", "rowwise", "replicated_with_grad_allreduce"})
"""Styles that `workers/tensor_parallel.py` follows."""
WHOLE_ROWS = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers whose attention over packed rows can be shared by heads."""
WITH_SINKS = frozenset({"gpt_oss"})
"""Types of models whose attention has sinks: weights of its layers, which no key of a configuration tells."""


def check_parallel(config: RunConfig) -> Problems:
    """Each model can be spread over the ranks of its pool as its section asks."""
    models = sections(config)
    for role in roles_of(config):
        key, fsdp, model_key, model = models[role]
        problems = parallel_problems(f"{key}.fsdp_config", fsdp, pool_of(config, role).world_size, model_key, model)
        yield from (f"{problem}{_from_actor(config, role)}" for problem in problems)


def _from_actor(config: RunConfig, role: str) -> str:
    """Where the sizes of a reference in a pool of its own come from, if they are not its own."""
    own = config.actor_rollout_ref.ref.fsdp_config.model_fields_set
    taken = [name for name in MESH if name not in own]
    if role != "ref" or not taken or pool_of(config, role) == pool_of(config, "actor"):
        return ""
    return f". Where {', '.join(taken)} of actor_rollout_ref.ref.fsdp_config are not given, they are the actor's"


def mesh_of(config: RunConfig, role: str) -> str:
    """How a model is spread: `shard 2 x sp 2`; empty: it is sharded over all ranks of its pool, and no more."""
    fsdp = sections(config)[role][1]
    return "" if fsdp.copies == 1 and fsdp.fsdp_size < 1 else str(mesh_sizes(fsdp, pool_of(config, role).world_size)[0])


def sections(config: RunConfig) -> dict[str, tuple[str, FSDPConfig, str, Model]]:
    """By role, the key of its section, its sharding, and the key and section of its model."""
    policy, critic, classifier = config.actor_rollout_ref, config.critic, config.reward_model
    value_model = critic.model if critic.model.path else critic.model.model_copy(update={"path": policy.model.path})
    return {
        "actor": ("actor_rollout_ref.actor", policy.actor.fsdp_config, "actor_rollout_ref.model", policy.model),
        "ref": ("actor_rollout_ref.ref", policy.ref.fsdp_config, "actor_rollout_ref.model", policy.model),
        "critic": ("critic", critic.fsdp_config, "critic.model", value_model),
        "reward_model": ("reward_model", classifier.fsdp_config, "reward_model.model", classifier.model),
    }


def parallel_problems(key: str, fsdp: FSDPConfig, world: int, model_key: str, model: Model) -> Problems:
    """What does not fit in one section.

    Args:
        key: of the `fsdp_config`.
        fsdp: the section.
        world: ranks of this model.
        model_key: of the section of the model.
        model: that section.
    """
    yield from mesh_sizes(fsdp, world, key)[1]
    sp, tp = fsdp.ulysses_sequence_parallel_size, fsdp.tensor_parallel_size
    if sp > 1 and not model.use_remove_padding:
        yield (
            f"{key}.{SP}: got {sp}, but {model_key}.use_remove_padding is false, and ranks share only packed rows: "
            "set it to true"
        )
    if max(sp, tp) > 1 and (own := model_config(model)) is not None:
        yield from model_problems(key, fsdp, own)


def model_problems(key: str, fsdp: FSDPConfig, config: Any) -> Problems:
    """What in a model does not fit a `fsdp_config`; `config` is transformers' own."""
    sp, tp = fsdp.ulysses_sequence_parallel_size, fsdp.tensor_parallel_size
    if getattr(config, "vision_config", None) is not None:
        name, size = (SP, sp) if sp > 1 else (TP, tp)
        yield f"{key}.{name}: got {size}, but '{config.model_type}' reads images, and those models are not spread"
        return
    try:
        config = config.get_text_config()
        heads = _counts(config, "num_attention_heads")
    except (ValueError, RuntimeError):  # several language models, or one number per layer
        heads = []
    if len(heads) != 1:
        name, size = (SP, sp) if sp > 1 else (TP, tp)
        yield f"{key}.{name}: got {size}, but '{config.model_type}' has no one number of attention heads: wanted 1"
        return
    if tp > 1:
        yield from _tp_problems(f"{key}.{TP}", tp, config, heads[0])
    if sp > 1 and heads[0] % tp == 0 and heads[0] // tp % sp:
        left, on_each = heads[0] // tp, f" on each of {tp} tensor-parallel ranks" if tp > 1 else ""
        yield f"{key}.{SP}: {_no_divisor(sp, left, f'{left} attention heads{on_each}')}: wanted {_divisors(left)}"
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - WHOLE_ROWS)
    if sp > 1 and kinds:
        yield f"{key}.{SP}: got {sp}, but '{config.model_type}' has layers of {', '.join(kinds)}, which read whole rows"
    if sp > 1 and getattr(config, "attn_logit_softcapping", None) is not None:
        yield f"{key}.{SP}: got {sp}, but '{config.model_type}' caps its scores, which attention over ranks does not"
    if sp > 1 and config.model_type in WITH_SINKS:
        yield f"{key}.{SP}: got {sp}, but '{config.model_type}' has attention sinks, which attention over ranks lacks"
    if sp > 1 and not _attention_can_be_set(config):
        yield (
            f"{key}.{SP}: got {sp}, but models of type '{config.model_type}' compute attention in code of their own, "
            "which knows nothing of ranks that share a row: wanted 1"
        )


def _attention_can_be_set(config: Any) -> bool:
    """Whether transformers lets another attention take the place of the model's.

    True for a model with code of its own, which is not imported here: its loading tells.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    model = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return model is None or bool(model._can_set_attn_implementation())


def _tp_problems(key: str, tp: int, config: Any, heads: int) -> Problems:
    try:
        plan = tp_plan_of(config)
    except ConfigError as error:
        yield f"{key}: got {tp}, but {error}"
        return
    counts = {
        f"{count} {what}": count
        for what, found in (
            ("attention heads", [heads]),
            ("heads of keys and values", _counts(config, "num_key_value_heads") or [heads]),
            *_columns(plan, config),
        )
        for count in found
    }
    wrong = [(count, what) for what, count in counts.items() if count % tp]
    if wrong:
        what = " and ".join(what for _, what in wrong)
        yield f"{key}: {_no_divisor(tp, wrong[0][0], what)}: wanted {_divisors(math.gcd(*counts.values()))}"


def _columns(plan: dict[str, str], config: Any) -> Iterator[tuple[str, list[int]]]:
    """What the MLPs that a plan cuts have columns of, and how many, one number for each width that there is."""
    cut = [name for name, style in plan.items() if ".mlp." in name and style in CUT_STYLES and ".experts." not in name]
    shared = [name for name in cut if ".shared_expert" in name]
    widths = [
        (len(shared) < len(cut), "MLPs", ("intermediate_size", "n_inner")),
        (bool(shared), "shared experts", ("shared_expert_intermediate_size", "moe_intermediate_size")),
    ]
    for is_cut, where, names in widths:
        found = next(((name, counts) for name in names if (counts := _counts(config, name))), None)
        if is_cut and found is not None:
            yield f"columns in its {where} ({found[0]})", found[1]


def _counts(config: Any, name: str) -> list[int]:
    """The different numbers that a model has in a field, of which some models have one per layer; empty: none."""
    found = getattr(config, name, None)
    return sorted(set(found)) if isinstance(found, list | tuple) else [found] if isinstance(found, int) else []


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


def _no_divisor(size: int, count: int, what: str) -> str:
    """`got 3, but the model has 4 attention heads (4 / 3 = 1.33)`."""
    return f"got {size}, but the model has {what} ({count} / {size} = {count / size:.2f})"


def _divisors(count: int) -> str:
    found = [str(n) for n in range(1, count + 1) if count % n == 0]
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} or {found[-1]}"


def model_config(model: Model) -> Any:
    """The configuration of a model; None: another check or the loading of the model tells what is wrong."""
    from transformers import AutoConfig

    file = config_file(model.path)
    if file is None:
        return None
    try:
        return AutoConfig.from_pretrained(str(file.parent), trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError, KeyError):
        return None
