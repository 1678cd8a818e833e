"""Values that other keys decide where the user gave none: of rollouts, of mini-batches, and of the reference's mesh.

::

    {adv_estimator: grpo}                   -> rollout.n 8       {adv_estimator: grpo, n: 4} -> 4
    {adv_estimator: gae}                    -> rollout.n 1
    {train_batch_size: 16}                  -> ppo_mini_batch_size 16, not 256
    {actor.fsdp_config.tensor_parallel_size: 2}    -> ref.fsdp_config.tensor_parallel_size 2

The third of the kind, micro-batches by rows or by tokens, belongs to single sections: `base.RowsDecide`.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.config.actor import ActorRolloutRefConfig
from agentrl.config.base import Section

GROUP_ESTIMATORS = frozenset({"grpo", "rloo", "reinforce_plus_plus_baseline", "opo", "gpg", "grpo_passk"})
"""Advantage estimators that compare the rollouts of one prompt."""
GROUP_SIZE = 8
"""Rollouts of a prompt that such an estimator gets where `rollout.n` is not given."""

MESH = ("fsdp_size", "ulysses_sequence_parallel_size", "tensor_parallel_size")
"""Keys of the reference's `fsdp_config` that are the actor's where they are not given."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """One such value; `why` is empty where there is nothing to tell: it is the default, or what the docs say."""

    section: Section
    name: str
    value: int
    why: str


def choose(policy: ActorRolloutRefConfig, estimator: str, train_batch_size: int) -> list[Chosen]:
    """The values of keys that were not given."""
    return [
        choice
        for choice in (_group_size(policy, estimator), _mini_batch(policy, train_batch_size), *_mesh(policy))
        if choice.name not in choice.section.model_fields_set
    ]


def _group_size(policy: ActorRolloutRefConfig, estimator: str) -> Chosen:
    compares = estimator in GROUP_ESTIMATORS
    why = (
        f"actor_rollout_ref.rollout.n is {GROUP_SIZE}: it is not given, and algorithm.adv_estimator {estimator} "
        "compares the rollouts of a prompt"
    )
    return Chosen(
        policy.rollout, "n", GROUP_SIZE if compares else _default(policy.rollout, "n"), why if compares else ""
    )


def _mini_batch(policy: ActorRolloutRefConfig, train_batch_size: int) -> Chosen:
    usual = _default(policy.actor, "ppo_mini_batch_size")
    why = (
        f"actor_rollout_ref.actor.ppo_mini_batch_size is {train_batch_size}, as data.train_batch_size: it is not "
        f"given, and its default is {usual}"
    )
    smaller = train_batch_size < usual
    return Chosen(policy.actor, "ppo_mini_batch_size", train_batch_size if smaller else usual, why if smaller else "")


def _mesh(policy: ActorRolloutRefConfig) -> list[Chosen]:
    """The reference is the same model: it fits where the policy fits."""
    actor, reference = policy.actor.fsdp_config, policy.ref.fsdp_config
    return [Chosen(reference, name, getattr(actor, name), "") for name in MESH]


def _default(section: Section, name: str) -> int:
    value: int = type(section).model_fields[name].default
    return value
