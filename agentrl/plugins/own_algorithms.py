"""Advantage estimators and policy losses of the user's own: by name, entry point, dotted path or `file.py:name`.

::

    def centred(token_level_rewards, response_mask, group_ids, scale=1.0):      # algorithm.adv_estimator: my.py:centred
        rewards = token_level_rewards.sum(-1)
        return scale * (rewards - rewards.mean())                               # (B,) or (B, T)

    def ratio(log_probs, old_log_probs, advantages, response_mask):             # actor.policy_loss: my.py:ratio
        return -advantages * (log_probs - old_log_probs).exp()                  # token losses, (B, T)

A function gets what its parameters are named after, and nothing else. It is bound when the run starts: a parameter that
nothing fills is an error that names its file and line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from agentrl.algorithms.advantages import ADVANTAGE_ESTIMATORS, AdvantageEstimator
from agentrl.algorithms.aggregation import aggregate_loss
from agentrl.algorithms.masked import zero_outside
from agentrl.algorithms.policy_losses import POLICY_LOSSES, PolicyLoss, wide
from agentrl.errors import PluginError, repr_of, suggest
from agentrl.plugins.plugin_files import IMPORT_ERRORS
from agentrl.plugins.registry import resolve
from agentrl.plugins.users_code import described, raised_at
from agentrl.reported import number_of

AlgorithmKind = Literal["advantages", "policy_losses"]
_GIVEN: dict[AlgorithmKind, dict[str, str]] = {
    "advantages": {
        **{
            name: name
            for name in (
                *("token_level_rewards", "response_mask", "group_ids", "outcomes"),
                *("gamma", "lam", "norm_adv_by_std"),
            )
        },
        "index": "group_ids",
        "norm_adv_by_std_in_grpo": "norm_adv_by_std",
    },
    "policy_losses": {
        **{
            name: name
            for name in (
                *("log_probs", "old_log_probs", "advantages", "response_mask"),
                *("clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "loss_agg_mode", "rollout_is_weights"),
                *("scale", "num_tokens", "num_sequences"),
            )
        },
        "log_prob": "log_probs",
        "old_log_prob": "old_log_probs",
    },
}
"""What a function may ask for, by the name of the parameter; the last ones of each kind are verl's names."""
_ELSEWHERE = {"values": "only gae has a critic", "baselines": "only remax has greedy rollouts"}


class OwnFunction:
    """A user's function and the values that its parameters take.

    Args:
        kind: what it is.
        function: as the user wrote it.
        kwargs: values of parameters that the run does not fill.

    Raises:
        PluginError: a parameter is filled by nothing, or a keyword fits no parameter.
    """

    def __init__(self, kind: AlgorithmKind, function: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
        if not callable(function):
            raise PluginError(f"{function!r} is not a function")
        self._function, self._kwargs = function, dict(kwargs)
        self.name = described(function)
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError) as error:
            raise PluginError(f"{self.name}: its parameters cannot be read: {error}") from error
        given, any_name = _GIVEN[kind], any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        self._takes = {name: ours for name, ours in given.items() if name in parameters or (any_name and name == ours)}
        for name, each in parameters.items():
            filled = name in self._takes or name in kwargs or each.default is not each.empty
            if each.kind is each.POSITIONAL_ONLY:
                raise PluginError(f"{self.name}: parameter '{name}' is positional only, wanted one with a name")
            if not filled and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL):
                why = _ELSEWHERE.get(name, f"wanted one of {', '.join(given)}, or a default")
                raise PluginError(f"{self.name}: nothing fills its parameter '{name}': {why}")
        own = [name for name in parameters if name not in given]
        for name in kwargs:
            if name in given or (name not in parameters and not any_name):
                hint = suggest(name, own) if own else " It has no parameter of its own."
                raise PluginError(f"{self.name}: got the keyword '{name}', which it does not take.{hint}")

    def takes(self, name: str) -> bool:
        """Whether a parameter asks for what the run calls so."""
        return name in self._takes.values()

    def __call__(self, **values: Any) -> Any:
        """Call it.

        Raises:
            PluginError: it raised; the message has the file and line.
        """
        arguments = {name: values[ours] for name, ours in self._takes.items()}
        try:
            return self._function(**arguments, **self._kwargs)
        except IMPORT_ERRORS as error:
            where = raised_at(error, self._function)
            raise PluginError(f"{self.name}: {type(error).__name__}: {error}{where}") from error


def find_estimator(name: str, kwargs: Mapping[str, Any] | None = None) -> AdvantageEstimator:
    """The advantage estimator with a name.

    Args:
        name: in `ADVANTAGE_ESTIMATORS`, or that of a plug-in of the kind `advantages`.
        kwargs: keywords of a function of the user's own.

    Raises:
        PluginError: it is not found, or cannot be bound.
    """
    if name in ADVANTAGE_ESTIMATORS:
        return ADVANTAGE_ESTIMATORS[name]
    own = OwnFunction("advantages", _resolved("advantages", name), kwargs or {})

    def estimate(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        *,
        values: Tensor | None = None,
        group_ids: Sequence[Hashable] | None = None,
        baselines: Tensor | None = None,
        outcomes: Tensor | None = None,
        gamma: float = 1.0,
        lam: float = 1.0,
        norm_adv_by_std: bool = True,
    ) -> tuple[Tensor, Tensor]:
        rewards = zero_outside(token_level_rewards, response_mask)
        sums = rewards.sum(-1) if outcomes is None else outcomes.to(rewards.dtype)
        with torch.no_grad():
            result = own(
                token_level_rewards=rewards.clone(),
                response_mask=response_mask.clone(),
                group_ids=group_ids,
                outcomes=sums,
                gamma=gamma,
                lam=lam,
                norm_adv_by_std=norm_adv_by_std,
            )
        pair = result if isinstance(result, tuple) else (result, result)
        if len(pair) != 2:
            raise PluginError(f"{own.name}: returned {len(pair)} values, wanted advantages, or advantages and returns")
        advantages, returns = (_per_token(each, response_mask, own.name).to(rewards.dtype) for each in pair)
        return advantages, returns

    return estimate


def find_policy_loss(name: str, kwargs: Mapping[str, Any] | None = None) -> PolicyLoss:
    """The policy loss with a name.

    Args:
        name: in `POLICY_LOSSES`, or that of a plug-in of the kind `policy_losses`.
        kwargs: keywords of a function of the user's own.

    Raises:
        PluginError: it is not found, or cannot be bound.
    """
    if name in POLICY_LOSSES:
        return POLICY_LOSSES[name]
    own = OwnFunction("policy_losses", _resolved("policy_losses", name), kwargs or {})

    def loss(
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        *,
        clip_ratio_low: float = 0.2,
        clip_ratio_high: float = 0.2,
        clip_ratio_c: float = 3.0,
        loss_agg_mode: str = "token-mean",
        rollout_is_weights: Tensor | None = None,
        scale: float | None = None,
        num_tokens: float | Tensor | None = None,
        num_sequences: float | Tensor | None = None,
        **_options: Any,
    ) -> tuple[Tensor, dict[str, float]]:
        mask = response_mask.bool()
        clean, old, gains = (zero_outside(wide(each), mask) for each in (log_probs, old_log_probs, advantages))
        result = own(
            log_probs=clean,
            old_log_probs=old,
            advantages=gains,
            response_mask=mask,
            clip_ratio_low=clip_ratio_low,
            clip_ratio_high=clip_ratio_high,
            clip_ratio_c=clip_ratio_c,
            loss_agg_mode=loss_agg_mode,
            rollout_is_weights=rollout_is_weights,
            scale=scale,
            num_tokens=num_tokens,
            num_sequences=num_sequences,
        )
        value, metrics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        _check_loss(value, mask, own, weighed=rollout_is_weights is not None)
        if value.ndim == 2:
            if rollout_is_weights is not None and not own.takes("rollout_is_weights"):
                value = value * rollout_is_weights
            value = aggregate_loss(
                value, mask, loss_agg_mode, scale=scale, num_tokens=num_tokens, num_sequences=num_sequences
            )
        return value, _shares({"ppo_kl": (old - clean).detach(), **metrics}, mask, num_tokens, own.name)

    return loss


@lru_cache(maxsize=64)
def own_takes(kind: AlgorithmKind, name: str, parameter: str) -> bool:
    """Whether a plug-in's function has a parameter; False where it is not found, which a check tells."""
    try:
        function = resolve(kind, name)
        return parameter in inspect.signature(function).parameters
    except (PluginError, TypeError, ValueError):
        return False


def _resolved(kind: AlgorithmKind, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = resolve(kind, name)
    return found


def _per_token(values: Any, mask: Tensor, name: str) -> Tensor:
    """Row or token values `(B, T)`, 0 outside the mask."""
    if not isinstance(values, Tensor) or values.shape not in (mask.shape, mask.shape[:1]):
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise PluginError(f"{name}: returned {got}, wanted a tensor {tuple(mask.shape)} or {tuple(mask.shape[:1])}")
    spread = zero_outside(values if values.ndim == 2 else values.unsqueeze(-1).expand(mask.shape), mask)
    if not bool(spread.isfinite().all()):
        raise PluginError(f"{name}: returned values that are not finite at sampled tokens")
    return spread


def _check_loss(value: Any, mask: Tensor, own: OwnFunction, *, weighed: bool) -> None:
    if not isinstance(value, Tensor) or (value.ndim != 0 and value.shape != mask.shape):
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise PluginError(f"{own.name}: returned {got}, wanted token losses {tuple(mask.shape)}, or one number")
    if value.ndim == 0 and not (own.takes("num_tokens") or own.takes("num_sequences")):
        raise PluginError(
            f"{own.name}: returned one number, which depends on how the mini-batch is cut: return token losses "
            f"{tuple(mask.shape)}, or take num_tokens or num_sequences (of the whole mini-batch) and divide by it"
        )
    if value.ndim == 0 and weighed and not own.takes("rollout_is_weights"):
        raise PluginError(
            f"{own.name}: returned one number, which importance weights (algorithm.rollout_correction.is_level) "
            "cannot correct any more: take rollout_is_weights, which is (B, T) or None, or return token losses"
        )


def _shares(metrics: Mapping[str, Any], mask: Tensor, num_tokens: float | Tensor | None, name: str) -> dict[str, float]:
    """Means over the tokens of the mini-batch; a number counts as the mean over the tokens of this call."""
    shares = {}
    for key, value in metrics.items():
        known = value.detach() if isinstance(value, Tensor) else number_of(value)
        column = None if known is None else torch.as_tensor(known)
        if column is None or (column.ndim and column.shape != mask.shape):
            got = repr_of(value) if column is None else tuple(column.shape)
            raise PluginError(f"{name}: metric '{key}' is {got}, wanted {tuple(mask.shape)} or a number")
        spread = column.to(mask.device, torch.float32).expand(mask.shape)
        shares[key] = float(aggregate_loss(spread, mask, "token-mean", num_tokens=num_tokens))
    return shares
