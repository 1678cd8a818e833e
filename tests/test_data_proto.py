"""DataProto: rows that stay together through every operation, and readable errors where they would not."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.data_proto import DataProto, merge_metrics
from agentrl.errors import DataProtoError


def proto(rows: int = 5, **meta: Any) -> DataProto:
    return DataProto(
        {"x": torch.arange(rows * 2.0).view(rows, 2), "n": torch.arange(rows)},
        {"name": [f"row{row}" for row in range(rows)], "list": [[row] * row for row in range(rows)]},
        meta,
    )


def rows_of(data: DataProto) -> list[int]:
    """Row numbers, after checking that every column tells the same ones."""
    numbers: list[int] = data.batch["n"].tolist()
    assert data.batch["x"][:, 0].tolist() == [2.0 * n for n in numbers]
    assert data.non_tensor_batch["name"].tolist() == [f"row{n}" for n in numbers]
    assert data.non_tensor_batch["list"].tolist() == [[n] * n for n in numbers]
    return numbers


def test_length_and_membership() -> None:
    data = proto(3)
    assert len(data) == 3
    assert "x" in data
    assert "name" in data
    assert "other" not in data
    assert len(DataProto(meta_info={"a": 1})) == 0
    assert len(DataProto(non_tensor_batch={"a": [1, 2]})) == 2


def test_lists_of_equal_length_stay_one_object_per_row() -> None:
    data = DataProto(non_tensor_batch={"ids": [[1, 2], [3, 4]]})
    assert data.non_tensor_batch["ids"].shape == (2,)
    assert data.non_tensor_batch["ids"][1] == [3, 4]


@pytest.mark.parametrize(
    ("batch", "arrays", "message"),
    [
        ({"x": torch.ones(2), "y": torch.ones(3)}, {}, "differ in their number of rows"),
        ({"x": torch.ones(2)}, {"name": ["a"]}, "differ in their number of rows"),
        ({"x": torch.ones(2)}, {"x": ["a", "b"]}, "both a tensor and a non-tensor"),
        ({"x": torch.tensor(1.0)}, {}, "must be a tensor with rows"),
        ({"x": [1, 2]}, {}, "must be a tensor with rows"),
        ({}, {"name": "text"}, "must be an array or a list"),
        ({}, {"name": np.array(3)}, "must be an array with rows"),
    ],
)
def test_parts_that_do_not_fit_are_refused(batch: Any, arrays: Any, message: str) -> None:
    with pytest.raises(DataProtoError, match=message):
        DataProto(batch, arrays)


def test_check_finds_a_later_write() -> None:
    data = proto(3)
    data.batch["late"] = torch.ones(4)
    with pytest.raises(DataProtoError, match="'late': 4"):
        data.check()


def test_select_and_pop() -> None:
    data = proto(3, step=1, other=2)
    part = data.select(["x"], ["name"], ["step"])
    assert (list(part.batch), list(part.non_tensor_batch), part.meta_info) == (["x"], ["name"], {"step": 1})
    assert list(data.select(["n"]).non_tensor_batch) == ["name", "list"]
    taken = data.pop(["x"], ["name"], ["other"])
    assert (list(taken.batch), list(taken.non_tensor_batch), taken.meta_info) == (["x"], ["name"], {"other": 2})
    assert (list(data.batch), list(data.non_tensor_batch), data.meta_info) == (["n"], ["list"], {"step": 1})
    with pytest.raises(DataProtoError, match=r"batch has no \['y'\]; it has \['n'\]"):
        data.pop(["y", "n"])
    assert list(data.batch) == ["n"]


def test_union() -> None:
    left, right = proto(3, step=1), DataProto({"y": torch.ones(3)}, {}, {"epoch": 2})
    both = left.union(right)
    assert set(both.batch) == {"x", "n", "y"}
    assert both.meta_info == {"step": 1, "epoch": 2}
    assert len(left.union(DataProto(meta_info={"a": 1}))) == 3
    assert len(left.union(proto(3, step=1))) == 3


@pytest.mark.parametrize(
    "other",
    [
        DataProto({"x": torch.zeros(3, 2)}),
        DataProto({"x": torch.arange(6.0).view(3, 2).double()}),
        DataProto({}, {"name": ["row0", "row1", "other"]}),
        DataProto({}, {}, {"step": 2}),
        DataProto({"z": torch.zeros(4)}),
    ],
)
def test_union_refuses_conflicts(other: DataProto) -> None:
    with pytest.raises(DataProtoError, match="union"):
        proto(3, step=1).union(other)


def test_union_compares_by_value() -> None:
    def one() -> DataProto:
        return DataProto(
            {"x": torch.tensor([math.nan, 1.0])}, {"a": [np.ones(2), {"k": torch.ones(1)}]}, {"v": float("nan")}
        )

    left, right = one(), one()
    right.non_tensor_batch["a"][1] = left.non_tensor_batch["a"][1]
    assert len(left.union(right)) == 2
    zero = DataProto({"x": torch.tensor([0.0, 1.0])})
    with pytest.raises(DataProtoError, match=r"different values for \['x'\]"):
        left.union(zero)


def test_rows_by_every_kind_of_index() -> None:
    data = proto(5, step=3)
    assert rows_of(data[2]) == [2]
    assert rows_of(data[-1]) == [4]
    assert rows_of(data[1:4]) == [1, 2, 3]
    assert rows_of(data[::2]) == [0, 2, 4]
    assert rows_of(data[[3, 0, 3]]) == [3, 0, 3]
    assert rows_of(data[[]]) == []
    assert rows_of(data[torch.tensor([4, -5])]) == [4, 0]
    assert rows_of(data[[True, False, False, True, False]]) == [0, 3]
    assert rows_of(data[torch.arange(5) > 2]) == [3, 4]
    assert rows_of(data.slice(1, 3)) == [1, 2]
    assert [rows_of(part) for part in data] == [[0], [1], [2], [3], [4]]
    assert data[1:2].meta_info == {"step": 3}


@pytest.mark.parametrize(
    ("index", "message"),
    [([5], "out of range"), (-6, "out of range"), ([True], "mask"), ([0.5], "slice, ints or mask")],
)
def test_bad_indices(index: Any, message: str) -> None:
    with pytest.raises(DataProtoError, match=message):
        proto(5)[index]


@given(rows=st.integers(0, 12), parts=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_chunk_is_uneven_and_concat_undoes_it(rows: int, parts: int) -> None:
    data = proto(rows, step=1)
    chunks = data.chunk(parts)
    sizes = [len(chunk) for chunk in chunks]
    assert len(chunks) == parts
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    whole = DataProto.concat(chunks)
    assert rows_of(whole) == list(range(rows))
    assert whole.meta_info == {"step": 1}


def test_split_and_repeat() -> None:
    data = proto(5)
    assert [rows_of(part) for part in data.split(2)] == [[0, 1], [2, 3], [4]]
    assert rows_of(proto(2).repeat(3)) == [0, 0, 0, 1, 1, 1]
    assert rows_of(proto(2).repeat(3, interleave=False)) == [0, 1, 0, 1, 0, 1]
    assert len(data.repeat(0)) == 0


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "at least one part"),
        ([proto(2), DataProto({"x": torch.ones(2, 2)})], r"missing \['n'\]"),
        ([DataProto({"x": torch.ones(1, 2)}), DataProto({"x": torch.ones(1, 3)})], "rows of different shapes"),
        ([proto(1, step=1), proto(1, step=2)], r"different values for \['step'\]"),
    ],
)
def test_concat_refuses_what_does_not_fit(parts: list[DataProto], message: str) -> None:
    with pytest.raises(DataProtoError, match=message):
        DataProto.concat(parts)


def test_metrics_are_merged() -> None:
    parts = [{"a": 1.0, "t/max": 3, "t_min": 3, "tag": "x"}, {"a": 2.0, "t/max": 5, "t_min": 2, "tag": "y", "b": 1.0}]
    assert merge_metrics(parts) == {"a": 1.5, "t/max": 5, "t_min": 2, "tag": "x", "b": 1.0}
    joined = DataProto.concat([DataProto(meta_info={"metrics": part}) for part in parts])
    assert joined.meta_info["metrics"]["a"] == 1.5


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
def test_pickling_keeps_values_and_types(dtype: torch.dtype) -> None:
    tensor = torch.randn(4, 3).mul(10).to(dtype)
    data = DataProto({"x": tensor, "none": tensor[:, :0]}, {"o": [{"a": 1}, None, "b", [1]]}, {"step": 2})
    buffers: list[pickle.PickleBuffer] = []
    copy = pickle.loads(pickle.dumps(data, protocol=5, buffer_callback=buffers.append), buffers=buffers)
    assert copy.batch["x"].dtype == dtype
    assert torch.equal(copy.batch["x"], tensor)
    assert copy.batch["none"].shape == (4, 0)
    assert copy.non_tensor_batch["o"].tolist() == [{"a": 1}, None, "b", [1]]
    assert copy.meta_info == {"step": 2}


def test_pickled_tensors_are_writable_when_the_buffers_are_not() -> None:
    buffers: list[pickle.PickleBuffer] = []
    blob = pickle.dumps(DataProto({"x": torch.ones(3)}), protocol=5, buffer_callback=buffers.append)
    copy = pickle.loads(blob, buffers=[bytes(buffer) for buffer in buffers])
    copy.batch["x"] += 1
    assert copy.batch["x"].tolist() == [2, 2, 2]


def test_a_slice_does_not_pickle_the_whole_storage() -> None:
    whole = DataProto({"x": torch.zeros(10_000, 10)})
    assert len(pickle.dumps(whole[:2], protocol=5)) < 2_000


def test_columns_without_a_gradient_after_pickling() -> None:
    data = DataProto({"x": torch.ones(2, requires_grad=True)})
    assert not pickle.loads(pickle.dumps(data)).batch["x"].requires_grad


def test_to_device() -> None:
    assert proto(2).to("meta").batch["x"].device.type == "meta"
