"""Whether the run's advantage estimator and policy loss exist and take what they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from agentrl.config.actor import ActorConfig
from agentrl.config.root import RunConfig
from agentrl.errors import UserInputError, suggest

_LOSS_OF = "It is a loss: set algorithm.adv_estimator=grpo and actor_rollout_ref.actor.policy_loss={}"
_ESTIMATORS = {
    "ppo": "PPO's estimator is 'gae'",
    "reinforce++": "Its name here is 'reinforce_plus_plus'",
    "reinforce++-baseline": "Its name here is 'reinforce_plus_plus_baseline'",
    **{f"{name}_vectorized": f"Its name here is '{name}'" for name in ("grpo", "rloo")},
    "dr_grpo": (
        "It is grpo with algorithm.norm_adv_by_std_in_grpo=false and "
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm"
    ),
    "dapo": (
        "It is grpo with actor_rollout_ref.actor.clip_ratio_high=0.28, "
        "actor_rollout_ref.actor.loss_agg_mode=token-mean and algorithm.filter_zero_variance_groups=true"
    ),
    **{name: _LOSS_OF.format(name) for name in ("gspo", "cispo", "sapo")},
}
"""Names under which users ask for an estimator, with what they mean here."""


def check_algorithms(config: RunConfig) -> Iterator[str]:
    """The advantage estimator and the policy loss, which may be the user's own, are found and can be called."""
    from agentrl.algorithms import ADVANTAGE_ESTIMATORS, POLICY_LOSSES
    from agentrl.plugins import load_registrations

    names = config.algorithm.adv_estimator, config.actor_rollout_ref.actor.policy_loss
    if names[0] not in ADVANTAGE_ESTIMATORS or names[1] not in POLICY_LOSSES:
        try:
            load_registrations(config.plugins)
        except UserInputError as error:
            yield f"plugins: {error}"
            return
    yield from _estimator_problems(config)
    yield from policy_loss_problems(config.actor_rollout_ref.actor)


def _estimator_problems(config: RunConfig) -> Iterator[str]:
    from agentrl.algorithms import ADVANTAGE_ESTIMATORS
    from agentrl.plugins.own_algorithms import find_estimator

    name, kwargs, key = config.algorithm.adv_estimator, config.algorithm.adv_estimator_kwargs, "algorithm.adv_estimator"
    if name.lower() in _ESTIMATORS:
        yield f"{key}: got '{name}'. {_ESTIMATORS[name.lower()]}."
    elif name not in ADVANTAGE_ESTIMATORS:
        yield from _own_problems(key, name, ADVANTAGE_ESTIMATORS, lambda: find_estimator(name, kwargs))
    elif kwargs:
        yield f"{key}_kwargs: got {kwargs}, but {name} is agentrl's own estimator and takes none"


def policy_loss_problems(actor: ActorConfig) -> Iterator[str]:
    """The policy loss is known and takes the options that it is given.

    An option at the default of the loss that it belongs to asks for nothing: verl's recipes list those of every loss.
    """
    from agentrl.algorithms import POLICY_LOSSES, loss_options
    from agentrl.plugins.own_algorithms import find_policy_loss

    loss, key, kwargs = actor.policy_loss, "actor_rollout_ref.actor.policy_loss", actor.policy_loss_kwargs
    if loss not in POLICY_LOSSES:
        yield from _own_problems(key, loss, POLICY_LOSSES, lambda: find_policy_loss(loss, kwargs))
        own: Mapping[str, float] = {}
    else:
        own = loss_options(loss)
        if kwargs:
            yield f"{key}_kwargs: got {kwargs}, but {loss} is agentrl's own loss, with {key}_options"
    for option, value in actor.policy_loss_options.given().items():
        defaults = {name: loss_options(name)[option] for name in POLICY_LOSSES if option in loss_options(name)}
        if option not in own and value not in defaults.values():
            takes = f"takes only {', '.join(own)}" if own else "takes no options"
            yield (
                f"{key}_options.{option}: got {value:g}, but policy_loss is '{loss}', which {takes}; "
                f"{option} is an option of {', '.join(defaults)}"
            )
    if loss == "clip_cov":
        lowest, highest = ({**own, **actor.policy_loss_options.given()}[f"clip_cov_{side}"] for side in ("lb", "ub"))
        if lowest >= highest:
            yield f"{key}_options.clip_cov_lb: got {lowest:g}, wanted less than clip_cov_ub, which is {highest:g}"


def _own_problems(key: str, name: str, built_in: Iterable[str], find: Callable[[], Any]) -> Iterator[str]:
    """Problems of a function that is not agentrl's; a plain name that nobody has is a misspelt one of agentrl's."""
    from agentrl.plugins import known

    kind: Any = "advantages" if key.startswith("algorithm") else "policy_losses"
    if not any(mark in name for mark in ".:") and name not in known(kind):
        yield f"{key}: got '{name}'.{suggest(name, [*built_in, *known(kind)])}"
        return
    try:
        find()
    except UserInputError as error:
        yield f"{key}: {error}"
