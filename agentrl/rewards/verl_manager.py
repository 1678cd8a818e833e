"""Runs a reward manager written for verl: it gets a padded batch of tokens, and its rewards stay on their tokens."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from agentrl.errors import PluginError, RewardError, repr_of, suggest
from agentrl.interfaces import RewardInput, RewardManager, RewardResult
from agentrl.plugins.plugin_files import IMPORT_ERRORS
from agentrl.plugins.verl.batch import DataProto
from agentrl.plugins.verl.run_view import ConfigView
from agentrl.rewards.batch import BatchRewardManager
from agentrl.rewards.dispatcher import ScoreFunction

_OFFERED = ("config", "tokenizer", "num_examine", "compute_score", "reward_fn_key")
_FACTS = ("turn_scores", "tool_rewards")


def is_verl_manager(plugin: Any) -> bool:
    """Whether a class has verl's `__call__(data, return_dict)`, or the `run_single(data)` of its newer ones."""
    return isinstance(plugin, type) and not issubclass(plugin, RewardManager) and _method(plugin) is not None


def load_verl_manager(
    cls: type,
    score_fn: ScoreFunction,
    timeout_s: float,
    *,
    tokenizer: Any,
    config: Any,
    reward_kwargs: Mapping[str, Any],
) -> RewardManager:
    """Build a reward manager written for verl.

    Args:
        cls: `(tokenizer, num_examine, compute_score=None, reward_fn_key="data_source", **reward_kwargs)`, as far as its
            constructor names them.
        score_fn: its `compute_score`.
        timeout_s: deadline of one call.
        tokenizer: of the model.
        config: the run's configuration, as such classes read it.
        reward_kwargs: options of the class.

    Raises:
        PluginError: the class cannot be built so.
    """
    settled = _Settled(score_fn)
    offered = dict(zip(_OFFERED, (config, tokenizer, 0, settled, "data_source"), strict=True))
    takes = inspect.signature(cls).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
    for name in reward_kwargs:
        if name not in takes and not takes_any:
            raise PluginError(f"reward_model.reward_kwargs: {cls.__name__} takes no '{name}'.{suggest(name, takes)}")
    known = {name: value for name, value in offered.items() if name in takes}
    missing = [
        name
        for name, parameter in takes.items()
        if name not in known and name not in reward_kwargs and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]  # fmt: skip
    if missing:
        raise PluginError(f"reward manager {cls.__name__} needs {', '.join(missing)}: give reward_model.reward_kwargs")
    try:
        # A mapping among them reads as attributes too, as in verl: `overlong_buffer_cfg.len`.
        manager = cls(**known, **ConfigView(reward_kwargs, "reward_model.reward_kwargs"))
    except IMPORT_ERRORS as error:
        raise PluginError(f"reward manager {cls.__name__} cannot be built: {type(error).__name__}: {error}") from error
    return VerlRewardManager(manager, timeout_s, tokenizer, settled)


class VerlRewardManager(BatchRewardManager):
    """Calls a verl manager with the trajectories that end at about the same time, as one batch.

    Args:
        manager: has `__call__(data, return_dict=False)`, or `run_single(data)` for one row.
        timeout_s: deadline of one call.
        tokenizer: of the model.
        compute_score: the score function that the manager has; it waits for async ones.
    """

    def __init__(self, manager: Any, timeout_s: float, tokenizer: Any, compute_score: _Settled) -> None:
        self._name = type(manager).__name__
        method = _method(type(manager))
        self._single = method == "run_single"
        function = manager.run_single if self._single else manager.__call__
        takes = inspect.signature(function).parameters
        self._options = {"return_dict": True} if "return_dict" in takes and not self._single else {}
        self._tokenizer = tokenizer
        self._compute_score = compute_score
        super().__init__(function, timeout_s, takes=("data", *self._options), what=f"reward manager {self._name}")

    async def _scores(self, items: Sequence[RewardInput]) -> Sequence[Any]:
        self._compute_score.loop = asyncio.get_running_loop()
        if self._single:
            return [self._of_single(await self._call(data=self._batch([item]))) for item in items]
        data = self._batch(items)
        return self._results(await self._call(data=data, **self._options), data)

    def _batch(self, items: Sequence[RewardInput]) -> DataProto:
        """The trajectories as verl's managers read them."""
        pad = getattr(self._tokenizer, "pad_token_id", None) or 0
        prompts = [torch.tensor(item.output.prompt_ids if item.output else self._prompt_of(item)) for item in items]
        responses = [torch.tensor(self._response_of(item), dtype=torch.long) for item in items]
        masks = [
            torch.tensor(item.output.response_mask) if item.output else torch.ones_like(ids)
            for item, ids in zip(items, responses, strict=True)
        ]
        ones = [torch.ones_like(ids) for ids in prompts], [torch.ones_like(ids) for ids in responses]
        prompts_BP = pad_sequence(prompts, batch_first=True, padding_value=pad, padding_side="left")
        responses_BR = _wide(pad_sequence(responses, batch_first=True, padding_value=pad), pad)
        valid = pad_sequence(ones[0], batch_first=True, padding_side="left"), pad_sequence(ones[1], batch_first=True)
        attention_BT = torch.cat([valid[0], _wide(valid[1], 0)], dim=1)
        tensors = {
            "prompts": prompts_BP,
            "responses": responses_BR,
            "response_mask": _wide(pad_sequence(masks, batch_first=True), 0),
            "input_ids": torch.cat([prompts_BP, responses_BR], dim=1),
            "attention_mask": attention_BT,
            "position_ids": (attention_BT.cumsum(1) - 1).clamp(min=0),
        }
        rows = [_row_values(item) for item in items]
        return DataProto(tensors, {name: [row[name] for row in rows] for name in rows[0]}, {})

    def _prompt_of(self, item: RewardInput) -> list[int]:
        """A prompt for an answer that no model gave (`agentrl check --grader`)."""
        messages = item.extra_info.get("messages") or [{"role": "user", "content": ""}]
        return list(self._tokenizer.apply_chat_template(messages[:-1] or messages, add_generation_prompt=True))

    def _response_of(self, item: RewardInput) -> list[int]:
        return item.output.response_ids if item.output else self._tokenizer.encode(item.solution_str)

    def _results(self, returned: Any, data: DataProto) -> list[Any]:
        """One result per row of a tensor of token rewards, or of `{reward_tensor, reward_extra_info}`."""
        rewards_BR = returned.get("reward_tensor") if isinstance(returned, Mapping) else returned
        shape = tuple(data.batch["responses"].shape)
        if not isinstance(rewards_BR, torch.Tensor) or tuple(rewards_BR.shape) != shape:
            got = f"a tensor of shape {tuple(rewards_BR.shape)}" if isinstance(rewards_BR, torch.Tensor) else None
            raise RewardError(
                f"reward manager {self._name} returned {got or repr_of(returned)}, wanted a tensor of shape {shape} "
                "(one reward per response token), or a mapping with it as reward_tensor"
            )
        extras = self._extras_of(returned)
        for name, values in extras.items():
            listed = hasattr(values, "__len__") and not isinstance(values, Mapping | Set)
            if not listed or len(values) != len(data):
                raise RewardError(
                    f"reward manager {self._name} returned reward_extra_info['{name}'] {repr_of(values)}, wanted one "
                    f"value for each of {len(data)} trajectories"
                )
        masks = data.batch["response_mask"].tolist()
        return [
            _result(rewards, mask, {str(name): values[row] for name, values in extras.items()})
            for row, (rewards, mask) in enumerate(zip(rewards_BR.double().tolist(), masks, strict=True))
        ]

    def _of_single(self, returned: Any) -> Any:
        """The result of `run_single`, `{reward_score, reward_extra_info}`."""
        if not isinstance(returned, Mapping) or "reward_score" not in returned:
            raise RewardError(
                f"reward manager {self._name} returned {repr_of(returned)}, wanted a mapping with reward_score"
            )
        extras = {str(name): value for name, value in self._extras_of(returned).items()}
        return {**extras, "score": returned["reward_score"]}

    def _extras_of(self, returned: Any) -> Mapping[Any, Any]:
        extras = returned.get("reward_extra_info") if isinstance(returned, Mapping) else None
        if extras is not None and not isinstance(extras, Mapping):
            raise RewardError(
                f"reward manager {self._name} returned reward_extra_info {repr_of(extras)}, wanted a mapping from names"
            )
        return extras or {}


class _Settled:
    """A score function for code that cannot await: it waits for async ones in the worker's event loop."""

    def __init__(self, score_fn: ScoreFunction) -> None:
        functools.update_wrapper(self, getattr(score_fn, "func", score_fn))
        self._score_fn = score_fn
        self.loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outcome = self._score_fn(*args, **kwargs)
        if not inspect.iscoroutine(outcome) or self.loop is None:
            return outcome
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        return outcome if running is not None else asyncio.run_coroutine_threadsafe(outcome, self.loop).result()


def _result(rewards: Sequence[float], mask: Sequence[int], extra: dict[str, Any]) -> Any:
    """A trajectory's rewards where they stand; those on tokens that were not sampled go to the sampled one before.

    Rewards [0, .5, 0, 1] and mask [1, 1, 0, 1]: .5 is placed on token 1, and 1 is on the last sampled token anyway.
    """
    sampled = [place for place, one in enumerate(mask) if one]
    score = sum(rewards)
    if not math.isfinite(score):  # an error of this trajectory alone, once it is read
        return {**extra, "score": score}
    placed: dict[int, float] = {}
    for place, reward in enumerate(rewards):
        if reward and sampled:
            home = max((one for one in sampled if one <= place), default=sampled[0])
            if home != sampled[-1]:
                placed[home] = placed.get(home, 0.0) + reward
    extra.pop("score", None)
    return RewardResult(score, extra, placed=tuple(placed.items()))


def _row_values(item: RewardInput) -> dict[str, Any]:
    """The row's columns, and what the rollout knows, under verl's names."""
    sample = item.sample
    return {
        "data_source": item.data_source,
        "ability": sample.ability if sample else "",
        "reward_model": dict(sample.reward_model) if sample else {"style": "rule", "ground_truth": item.ground_truth},
        "extra_info": dict(item.extra_info),
        "raw_prompt": sample.prompt if sample else [],
        "index": sample.index if sample else 0,
        "uid": str(sample.index if sample else 0),
        "__num_turns__": item.extra_info.get("num_turns"),
        "reward_scores": dict(item.extra_info.get("tool_scores") or {}),
        **{name: item.extra_info.get(name) or [] for name in _FACTS},
    }


def _wide(tensor: torch.Tensor, fill: int) -> torch.Tensor:
    """At least one column, also where no trajectory has a response token."""
    return tensor if tensor.shape[1] else torch.full((tensor.shape[0], 1), fill, dtype=tensor.dtype)


def _method(cls: type) -> str | None:
    for name in ("run_single", "__call__"):
        method = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
        if callable(method) and "data" in inspect.signature(method).parameters:
            return name
    return None
