"""Sampling parameters of a request, checked field by field; names and defaults are SGLang's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from agentrl.errors import UserInputError, suggest

GREEDY_BELOW = 1e-6
UNSUPPORTED = {
    "json_schema": "constrained decoding needs a grammar engine",
    "regex": "constrained decoding needs a grammar engine",
    "ebnf": "constrained decoding needs a grammar engine",
    "structural_tag": "constrained decoding needs a grammar engine",
    "stop_regex": "only stop strings and stop ids end a generation",
    "custom_params": "the engine has no custom logit processors",
}


class UnsupportedFeatureError(UserInputError):
    """A field of SGLang's API that the embedded engine does not offer; the server answers 501."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How one request is sampled."""

    max_new_tokens: int | None = None
    """Most tokens to sample; None: 128, or what the context leaves if that is less."""
    temperature: float = 1.0
    """Divides the logits; 0: greedy."""
    top_p: float = 1.0
    top_k: int = -1
    """-1: all."""
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_new_tokens: int = 0
    repetition_penalty: float = 1.0
    """Divides positive logits of sampled tokens, multiplies negative ones."""
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    n: int = 1
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    sampling_seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def greedy(self) -> bool:
        """Whether to take the most likely token."""
        return self.temperature < GREEDY_BELOW

    @property
    def truncates(self) -> bool:
        """Whether top_k, top_p or min_p cut the distribution."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def changes_logits(self) -> bool:
        """Whether logits may need work before sampling: penalties, biases, `min_new_tokens`."""
        penalties = self.repetition_penalty != 1 or self.frequency_penalty or self.presence_penalty
        return bool(penalties or self.logit_bias or self.min_new_tokens)

    @classmethod
    def parse(cls, given: Mapping[str, Any] | None) -> SamplingParams:
        """Check the `sampling_params` of a request; null means "not given".

        Raises:
            UserInputError: an unknown field or a value that cannot be used.
            UnsupportedFeatureError: a field that SGLang supports and this engine does not.
        """
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            raise UserInputError(f"sampling_params: got {type(given).__name__}, wanted an object")
        values: dict[str, Any] = {}
        for name, value in given.items():
            if value is None:
                continue
            if name in UNSUPPORTED:
                raise UnsupportedFeatureError(f"sampling_params.{name} is not supported: {UNSUPPORTED[name]}")
            if name not in _CHECKS:
                raise UserInputError(f"sampling_params: unknown field '{name}'." + suggest(name, _CHECKS))
            values[name] = _CHECKS[name](name, value)
        params = cls(**values)
        if params.max_new_tokens is not None and params.min_new_tokens > params.max_new_tokens:
            raise UserInputError(
                f"sampling_params.min_new_tokens: got {params.min_new_tokens}, "
                f"wanted at most max_new_tokens ({params.max_new_tokens})"
            )
        return params


def _bad(name: str, value: object, wanted: str) -> UserInputError:
    return UserInputError(f"sampling_params.{name}: got {value!r}, wanted {wanted}")


def _number(low: float, high: float, *, open_low: bool = False) -> Any:
    def check(name: str, value: object) -> float:
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not good or not low <= value <= high or (open_low and value == low):  # type: ignore[operator]
            above = "a number above" if open_low else "a number of at least"
            raise _bad(name, value, f"{above} {low:g}" + (f" and at most {high:g}" if math.isfinite(high) else ""))
        return float(value)  # type: ignore[arg-type]

    return check


def _integer(low: int, high: int = 2**63 - 1) -> Any:
    def check(name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _bad(name, value, f"an integer of at least {low}")
        return value

    return check


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _bad(name, value, "true or false")
    return value


def _top_k(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1):
        raise _bad(name, value, "-1 (all) or an integer of at least 1")
    return value


def _strings(name: str, value: object) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        raise _bad(name, value, "a non-empty string or a list of them")
    return tuple(items)


def _ids(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in value):
        raise _bad(name, value, "a list of token ids")
    return tuple(value)


def _bias(name: str, value: object) -> tuple[tuple[int, float], ...]:
    try:
        pairs = tuple((int(token), float(bias)) for token, bias in value.items())  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError):
        raise _bad(name, value, "an object of token id to number") from None
    if any(token < 0 or math.isnan(bias) for token, bias in pairs):
        raise _bad(name, value, "an object of token id to number")
    return pairs


_CHECKS: dict[str, Any] = {
    "max_new_tokens": _integer(0),
    "temperature": _number(0, math.inf),
    "top_p": _number(0, 1, open_low=True),
    "top_k": _top_k,
    "min_p": _number(0, 1),
    "stop": _strings,
    "stop_token_ids": _ids,
    "ignore_eos": _boolean,
    "min_new_tokens": _integer(0),
    "repetition_penalty": _number(0, 2, open_low=True),
    "frequency_penalty": _number(-2, 2),
    "presence_penalty": _number(-2, 2),
    "n": _integer(1, 1024),
    "skip_special_tokens": _boolean,
    "spaces_between_special_tokens": _boolean,
    "no_stop_trim": _boolean,
    "sampling_seed": _integer(-(2**63)),
    "logit_bias": _bias,
}
assert set(_CHECKS) == {field.name for field in fields(SamplingParams)}
