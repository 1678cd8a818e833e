"""What counts as a number, and that every value a plug-in reports can be written as JSON."""

from __future__ import annotations

import datetime
import json
import math
from collections import OrderedDict, deque
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pytest
import torch
from pydantic import BaseModel

from agentrl.reported import finite_number_of, json_of, number_of, plain_values, whole_number_of


class Silent:
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Grade(Enum):
    GOOD = "good"


class Point(NamedTuple):
    x: int
    y: float


@dataclass
class Result:
    right: bool
    parts: list[Any]


class Model(BaseModel):
    name: str
    score: float


NUMBERS = [
    *(1, 1.0, True, np.bool_(True), np.int8(1), np.uint64(1), np.float16(1), np.float64(1), np.longdouble(1)),
    *(np.array(1), np.array([1.0]), torch.tensor(1), torch.tensor(True), torch.tensor([1.0]), Decimal(1), Fraction(1)),
    torch.tensor(1.0, dtype=torch.bfloat16, requires_grad=True),
]
NO_NUMBERS = [
    *("1", b"1", None, 1j, [1], (1,), {"x": 1}, Silent(), 10**400, Decimal("sNaN"), np.array([1, 2]), np.str_("1")),
    *(torch.empty(0), torch.empty((), device="meta"), np.datetime64("2020-01-01"), float),
]


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: type(value).__name__)
def test_numbers_of_every_kind(value: Any) -> None:
    assert number_of(value) == finite_number_of(value) == 1.0
    assert type(number_of(value)) is float


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: type(value).__name__)
def test_what_is_no_number(value: Any) -> None:
    assert number_of(value) is finite_number_of(value) is whole_number_of(value) is None


def test_nan_is_a_number_that_no_mean_can_hold() -> None:
    for value in (math.nan, math.inf, np.float32("nan"), torch.tensor(-math.inf), Decimal("Infinity")):
        assert isinstance(number_of(value), float)
        assert finite_number_of(value) is None
        assert whole_number_of(value) is None


def test_whole_numbers() -> None:
    assert [whole_number_of(value) for value in (3, 3.0, np.int64(3), torch.tensor(3), Fraction(3))] == [3] * 5
    assert [whole_number_of(value) for value in (3.5, True, np.bool_(True), "3")] == [None] * 4


CIRCLE: dict[str, Any] = {"a": [1]}
CIRCLE["a"].append(CIRCLE)
DEEP: list[Any] = []
for _ in range(3000):
    DEEP = [DEEP]
JSON: list[tuple[Any, Any]] = [
    ({1: "x", None: 1, (1, 2): [2], 2.5: 3}, {"1": "x", "None": 1, "(1, 2)": [2], "2.5": 3}),
    ({1: "a", "1": "b"}, {"1": "a", "1 (str)": "b"}),
    ({3, 1, 2}, [1, 2, 3]),
    (frozenset({"b"}), ["b"]),
    ((1, (2, "x")), [1, [2, "x"]]),
    (deque([1, 2]), [1, 2]),
    (OrderedDict(a=1), {"a": 1}),
    (b"a\xff", "a\\xff"),
    ("\ud83d!", "\ufffd!"),
    ("\ud83d\ude00", "😀"),
    ({"\udc80": 1}, {"\ufffd": 1}),
    ([math.nan, -math.inf, 0.5], ["nan", "-inf", 0.5]),
    (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
    (np.array(["a", None], dtype=object), ["a", None]),
    ([np.bool_(True), np.int64(2), np.float32(0.5), np.float64("nan")], [True, 2, 0.5, "nan"]),
    (torch.tensor([1.5, math.nan]), [1.5, "nan"]),
    (torch.tensor(2), 2),
    (2**64, "18446744073709551616"),
    (10**5000, "a whole number of 16610 bits"),
    (Grade.GOOD, "good"),
    (Point(1, 2.0), [1, 2.0]),
    (Result(True, [np.int64(1), {2}]), {"right": True, "parts": [1, [2]]}),
    (Model(name="a", score=1), {"name": "a", "score": 1.0}),
    (datetime.date(2026, 1, 2), "2026-01-02"),
    (Path("/x/y"), "/x/y"),
    (Fraction(1, 3), "1/3"),
    (ValueError("wrong"), "wrong"),
    (CIRCLE, {"a": [1, "<it contains itself>"]}),
]


@pytest.mark.parametrize(("value", "wanted"), JSON, ids=lambda value: type(value).__name__)
def test_json_of_every_kind(value: Any, wanted: Any) -> None:
    assert json_of(value) == wanted
    assert json.loads(orjson.dumps(json_of(value))) == wanted


@pytest.mark.parametrize(
    "value", [Silent(), {Silent(): Silent()}, object(), DEEP, lambda: 1, torch.empty(2, device="meta"), Silent]
)
def test_nothing_raises(value: Any) -> None:
    assert orjson.dumps(json_of(value))


def test_the_same_value_twice_is_no_circle() -> None:
    part = [1]
    assert json_of({"a": part, "b": part}) == {"a": [1], "b": [1]}


def test_plain_values_keep_numbers_and_text() -> None:
    given = {
        "acc": np.bool_(True),
        "n": np.int64(2),
        "f": torch.tensor(0.5),
        "d": Decimal("0.5"),
        1: {1: {2}},
        "s": "x",
    }
    plain = plain_values({**given, "nan": math.nan})
    assert math.isnan(plain.pop("nan"))
    assert plain == {"acc": True, "n": 2, "f": 0.5, "d": 0.5, "1": {"1": [2]}, "s": "x"}
    assert [type(plain[name]) for name in ("acc", "n", "f", "d")] == [bool, int, float, float]


class Odd(dict):
    """Raises when it is read."""

    def items(self):
        raise RuntimeError("not now")


class OddFloat(float):
    def __float__(self):
        raise KeyError("no")


def test_keys_and_classes_of_every_kind_become_json() -> None:
    """numpy's texts as keys, keys that collide twice, classes that raise while they are read."""
    released = memoryview(b"x")
    released.release()
    given = {
        np.str_("x"): 1,
        "counts": {np.str_("a"): 2},
        "same": {"1 (str)": "c", 1: "a", "1": "b"},
        "odd": Odd(a=1),
        "float": OddFloat(2.0),
        "memory": released,
    }
    found = orjson.loads(orjson.dumps(json_of(given)))
    assert (found["x"], found["counts"]) == (1, {"a": 2})
    assert sorted(found["same"].values()) == ["a", "b", "c"]
    assert set(found) == {"x", "counts", "same", "odd", "float", "memory"}
    orjson.dumps(plain_values(given))
