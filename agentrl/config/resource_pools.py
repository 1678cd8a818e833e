"""The pools of a run: which roles are in each, and its ranks by machine.

With `trainer: {n_gpus_per_node: 2, resource_pools: {small: {n_gpus: 1}}, role_pools: {critic: small}}`::

    global_pool    (2,)    actor, ref
    small          (1,)    critic
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agentrl.config.problems import show_value
from agentrl.config.root import RunConfig
from agentrl.config.trainer import DEFAULT_POOL, MOST_MACHINES, MOST_RANKS, RolePools
from agentrl.errors import suggest

Problems = Iterator[str]

ROLES = tuple(RolePools.model_fields)
REWARD_POOL = "reward_pool"
"""The pool of `reward_model.enable_resource_pool`."""
_PER_MACHINE = ("n_gpus", "n_gpus_per_node")
_WANTED = "wanted {nnodes: 1, n_gpus: 2} (the ranks of each machine), or a list of the ranks of every machine"


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool that roles of the run are in.

    Attributes:
        name: as in `trainer.resource_pools`; or `global_pool`.
        process_on_nodes: ranks of each machine.
        roles: in the order of `ROLES`.
        key: where its machines are given, for errors.
    """

    name: str
    process_on_nodes: tuple[int, ...]
    roles: tuple[str, ...]
    key: str = field(default="", compare=False)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return sum(self.process_on_nodes)


def roles_of(config: RunConfig) -> list[str]:
    """The roles for which this run starts ranks."""
    trains = not config.trainer.val_only
    present = {
        "actor": True,
        "ref": trains and config.needs_reference and not config.has_adapters_off,
        "critic": trains and config.needs_critic,
        "reward_model": config.reward_model.enable,
    }
    return [role for role in ROLES if present[role]]


def pools_in_use(config: RunConfig) -> list[Pool]:
    """The pools with a role of this run, that of the actor first."""
    sizes = _sizes(config)
    roles: dict[str, list[str]] = {}
    for role in roles_of(config):
        roles.setdefault(_pool_names(config)[role], []).append(role)
    # An unknown name is reported by `check_pools`; until then it counts as the pool that every run has.
    return [
        Pool(name, sizes.get(name, sizes[DEFAULT_POOL]), tuple(members), _key(config, name))
        for name, members in roles.items()
    ]


def _key(config: RunConfig, name: str) -> str:
    if name in config.trainer.resource_pools:
        return f"trainer.resource_pools.{name}"
    return "reward_model.nnodes" if name == REWARD_POOL else "trainer.nnodes"


def pool_of(config: RunConfig, role: str) -> Pool:
    """The pool of a role that the run has."""
    return next(pool for pool in pools_in_use(config) if role in pool.roles)


def total_ranks(config: RunConfig) -> int:
    """Ranks of all pools: on GPUs, the GPUs that the run trains on."""
    return sum(pool.world_size for pool in pools_in_use(config))


def declares_default(config: RunConfig) -> bool:
    """Whether `trainer.resource_pools` itself says what `global_pool` is."""
    return DEFAULT_POOL in config.trainer.resource_pools


def check_pools(config: RunConfig) -> Problems:
    """Every pool has ranks and a role, every role has a pool."""
    trainer = config.trainer
    declared = trainer.resource_pools
    for name, spec in declared.items():
        yield from (f"trainer.resource_pools.{name}{problem}" for problem in _problems(spec))
    mapped = _pool_names(config)
    yield from _reward_pool_problems(config)
    for role, name in mapped.items():
        if name not in declared and name not in (DEFAULT_POOL, REWARD_POOL if _has_reward_pool(config) else None):
            hint = suggest(name, [*declared, DEFAULT_POOL])
            yield f"trainer.role_pools.{role}: got '{name}', which is no pool.{hint}"
    for name in declared.keys() - set(mapped.values()):
        yield (
            f"trainer.resource_pools.{name}: no role is in this pool: name it in trainer.role_pools, whose roles are "
            f"{', '.join(ROLES)}"
        )


def _has_reward_pool(config: RunConfig) -> bool:
    return config.reward_model.enable and config.reward_model.enable_resource_pool


def _reward_pool_problems(config: RunConfig) -> Problems:
    if not _has_reward_pool(config):
        return
    section = config.reward_model
    key = "reward_model.enable_resource_pool"
    for name in ("nnodes", "n_gpus_per_node"):
        if getattr(section, name) < 1:
            yield f"reward_model.{name}: got {getattr(section, name)}, wanted at least 1: {key} is true"
    own = config.trainer.role_pools.reward_model
    if own != DEFAULT_POOL:
        yield f"{key}: got true, but trainer.role_pools.reward_model is '{own}': give one of them"
    if REWARD_POOL in config.trainer.resource_pools:
        yield f"{key}: got true, but trainer.resource_pools has a {REWARD_POOL} too: give one of them"


def _pool_names(config: RunConfig) -> dict[str, str]:
    """The pool of every role, also of those that this run does not have."""
    names: dict[str, str] = {role: getattr(config.trainer.role_pools, role) for role in ROLES}
    if _has_reward_pool(config) and names["reward_model"] == DEFAULT_POOL:
        names["reward_model"] = REWARD_POOL
    return names


def _sizes(config: RunConfig) -> dict[str, tuple[int, ...]]:
    """The ranks of each machine, by pool; pools that are written wrong are left out."""
    trainer = config.trainer
    default: dict[str, tuple[int, ...]] = {DEFAULT_POOL: (trainer.n_gpus_per_node,) * trainer.nnodes}
    if _has_reward_pool(config):
        default[REWARD_POOL] = (max(1, config.reward_model.n_gpus_per_node),) * max(1, config.reward_model.nnodes)
    right = {name: spec for name, spec in trainer.resource_pools.items() if not list(_problems(spec))}
    return default | {name: _process_on_nodes(spec) for name, spec in right.items()}


def _process_on_nodes(spec: Any) -> tuple[int, ...]:
    if isinstance(spec, list):
        return tuple(spec)
    if "process_on_nodes" in spec:
        return tuple(spec["process_on_nodes"])
    ranks: int = next(spec[key] for key in _PER_MACHINE if key in spec)
    return (ranks,) * int(spec.get("nnodes", 1))


def _problems(spec: Any) -> Problems:
    """What is wrong with one pool; each begins with `: ` or with a key in it."""
    if isinstance(spec, list):
        yield from _list_problems("", spec)
        return
    if not isinstance(spec, dict) or not spec:
        yield f": got {show_value(spec)}, {_WANTED}"
        return
    known = ("nnodes", *_PER_MACHINE, "process_on_nodes")
    unknown = [key for key in spec if key not in known]
    yield from (f".{key}: unknown key.{suggest(str(key), known)}" for key in unknown)
    for key in ("nnodes", *_PER_MACHINE):
        most = MOST_MACHINES if key == "nnodes" else MOST_RANKS
        if key in spec and not _is_count(spec[key], most):
            yield f".{key}: got {show_value(spec[key])}, wanted a whole number at least 1 and at most {most}"
    given = [key for key in (*_PER_MACHINE, "process_on_nodes") if key in spec]
    if len(given) > 1:
        yield f": got {' and '.join(given)}, wanted one of them"
    elif not given and not unknown:
        yield f".n_gpus: not given, {_WANTED}"
    if "process_on_nodes" in spec:
        yield from _list_problems(".process_on_nodes", spec["process_on_nodes"])
        if "nnodes" in spec:
            yield ".nnodes: given, but process_on_nodes has one entry for each machine"


def _list_problems(key: str, given: Any) -> Problems:
    if not isinstance(given, list) or not given or not all(map(_is_count, given)):
        yield (
            f"{key}: got {show_value(given)}, wanted a list of whole numbers at least 1 and at most {MOST_RANKS}, the "
            "ranks of each machine"
        )


def _is_count(value: Any, most: int = MOST_RANKS) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
