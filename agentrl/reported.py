"""Values that plug-ins report: which of them are numbers, and how any of them is written as JSON.

::

    number_of(np.bool_(True))             # 1.0; so are Decimal("0.5"), Fraction(1, 2), torch.tensor(0.5) numbers
    number_of("0.5")                      # None: text is no number
    json_of({1: {2.5, math.nan}})         # {"1": [2.5, "nan"]}
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from decimal import Decimal
from enum import Enum
from numbers import Real
from typing import Any

from agentrl.errors import repr_of, text_of

_MAX_DEPTH = 64
_LARGEST = 2**63
_CIRCLE = "<it contains itself>"


def number_of(value: Any) -> float | None:
    """A number of Python, numpy or torch as a float; None if the value is none.

    Truth values count as 0 and 1, arrays and tensors if they hold a single number. NaN and infinities are numbers:
    who wants a finite one checks that. A whole number that no float can hold is None.
    """
    if type(value) is float:
        return value
    try:
        item = _item(value)
        return float(item) if isinstance(item, Real | Decimal) else None
    except Exception:  # 10**400, Decimal("sNaN"), a tensor without data, a plug-in's own `__float__`
        return None


def finite_number_of(value: Any) -> float | None:
    """The same; None also for NaN and infinities, which no mean can hold."""
    number = number_of(value)
    return number if number is not None and math.isfinite(number) else None


def whole_number_of(value: Any) -> int | None:
    """A whole number, 2.0 included; None for anything else, truth values too."""
    number = number_of(value)
    is_truth = number is not None and isinstance(_item(value), bool)
    return None if number is None or is_truth or not number.is_integer() else int(number)


def plain_values(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Named values in types that every process and every log knows: numbers of Python, else as `json_of`."""
    plain: dict[str, Any] = {}
    for name, value in values.items():
        number = number_of(value)
        item = _item(value) if number is not None else None
        plain[_text(name)] = json_of(value) if number is None else item if type(item) in (bool, int, float) else number
    return plain


def json_of(value: Any) -> Any:
    """The value as JSON has it: what JSON has no place for becomes text, and nothing raises.

    Keys become text; sets, tuples, arrays and tensors lists; dataclasses and models mappings; NaN, infinities, bytes
    and other objects text.
    """
    return _json_of(value, ())


def valid_text(text: str) -> str:
    """The text with halves of surrogate pairs joined or replaced: tokenizers and files accept no single half."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _item(value: Any) -> Any:
    """The single number of a numpy or torch value, else the value itself."""
    return value.item() if _is_array(value) and math.prod(value.shape) == 1 else value


def _is_array(value: Any) -> bool:
    """Asks the type: the `__getattr__` of a plug-in's own object may do anything."""
    return hasattr(type(value), "item") and hasattr(type(value), "tolist") and hasattr(type(value), "shape")


def _json_of(value: Any, holders: tuple[int, ...]) -> Any:
    """`holders` are the ids of the containers around the value, to find circles: `a = []; a.append(a)`."""
    try:
        return _known(value, holders)
    except Exception:  # of a plug-in's own class: its iteration, its `__float__`, a released memoryview
        return _text(value)


def _known(value: Any, holders: tuple[int, ...]) -> Any:
    if value is None or type(value) is bool:
        return value
    if isinstance(value, Enum):
        return _json_of(value.value, holders)
    if isinstance(value, str):
        return valid_text(str.__str__(value))
    if isinstance(value, int):
        return int(value) if -_LARGEST <= value < _LARGEST else _text(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    if id(value) in holders:
        return _CIRCLE
    if len(holders) == _MAX_DEPTH:
        return valid_text(repr_of(value))
    return _structure(value, (*holders, id(value)))


def _structure(value: Any, holders: tuple[int, ...]) -> Any:
    if isinstance(value, Mapping):
        return _mapping(value.items(), holders)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        return _mapping(((name, getattr(value, name)) for name in names), holders)
    if hasattr(type(value), "model_fields"):  # a pydantic model is an iterable of names and values
        return _mapping(value, holders)
    if isinstance(value, Set):
        return sorted((_json_of(item, holders) for item in value), key=repr)
    if isinstance(value, Sequence):
        return [_json_of(item, holders) for item in value]
    if _is_array(value):
        try:
            return _json_of(value.tolist(), holders)
        except (TypeError, ValueError, RuntimeError):  # a tensor without data, or of a kind without lists
            return _text(value)
    return _text(value)


def _mapping(pairs: Iterable[tuple[Any, Any]], holders: tuple[int, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in pairs:
        name = valid_text(str.__str__(key)) if isinstance(key, str) else _text(key)
        while name in found:  # {1: "a", "1": "b"} -> {"1": "a", "1 (str)": "b"}
            name = f"{name} ({type(key).__name__})"
        found[name] = _json_of(item, holders)
    return found


def _text(value: Any) -> str:
    """What `str` says of a value, also where it raises; at most 2,000 characters."""
    if isinstance(value, str):
        return valid_text(str.__str__(value))
    if isinstance(value, int):
        return valid_text(repr_of(value))
    text = text_of(ValueError(value))
    return valid_text(repr_of(value) if text == "<exception str() failed>" else text)
