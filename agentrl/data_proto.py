"""DataProto: the container that trainer, rollout and workers exchange.

It holds tensors, object arrays and free metadata whose rows belong together. Every operation checks that they still
do, and its error says what is wrong if they do not. Nothing here pads or invents rows.

Conventions:

* every tensor in `batch` and every array in `non_tensor_batch` has the same first dimension, the number of rows;
* operations return new containers that share memory where torch does (slices are views, index lists are copies);
* pickling turns tensors into numpy buffers, so Ray moves them without torch's own serialisation and a slice never
  drags its whole storage along.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
import torch

from agentrl.errors import DataProtoError
from agentrl.reported import number_of

Rows = slice | Sequence[int] | Sequence[bool] | np.ndarray[Any, Any] | torch.Tensor


class DataProto:
    """Tensors, object arrays and metadata over the same rows.

    Args:
        batch: tensors with the rows in the first dimension.
        non_tensor_batch: arrays (any sequence becomes an object array) with one entry per row.
        meta_info: values for all rows together.

    Raises:
        DataProtoError: the parts differ in their number of rows, or a name is used twice.
    """

    def __init__(
        self,
        batch: Mapping[str, torch.Tensor] | None = None,
        non_tensor_batch: Mapping[str, Any] | None = None,
        meta_info: Mapping[str, Any] | None = None,
    ) -> None:
        self.batch: dict[str, torch.Tensor] = dict(batch or {})
        self.non_tensor_batch = {key: _as_object_array(key, value) for key, value in (non_tensor_batch or {}).items()}
        self.meta_info: dict[str, Any] = dict(meta_info or {})
        self.check()

    def check(self) -> None:
        """Verify that all parts have the same rows; call it after writing into `batch` directly."""
        rows: dict[str, int] = {}
        for key, tensor in self.batch.items():
            if not isinstance(tensor, torch.Tensor) or tensor.ndim == 0:
                raise DataProtoError(f"batch['{key}'] must be a tensor with rows, got {_describe(tensor)}")
            rows[key] = tensor.shape[0]
        for key, array in self.non_tensor_batch.items():
            if key in rows:
                raise DataProtoError(f"'{key}' is both a tensor and a non-tensor")
            if not isinstance(array, np.ndarray) or array.ndim == 0:
                raise DataProtoError(f"non_tensor_batch['{key}'] must be an array with rows, got {_describe(array)}")
            rows[key] = array.shape[0]
        if len(set(rows.values())) > 1:
            raise DataProtoError(f"the parts differ in their number of rows: {rows}")

    def __len__(self) -> int:
        for tensor in self.batch.values():
            return int(tensor.shape[0])
        for array in self.non_tensor_batch.values():
            return int(array.shape[0])
        return 0

    def __contains__(self, key: str) -> bool:
        return key in self.batch or key in self.non_tensor_batch

    def __repr__(self) -> str:
        tensors = ", ".join(f"{key}{tuple(value.shape)}" for key, value in self.batch.items())
        return (
            f"DataProto({len(self)} rows; {tensors}; {', '.join(self.non_tensor_batch)}; meta {list(self.meta_info)})"
        )

    # ------------------------------------------------------------------ columns

    def select(
        self,
        batch_keys: Iterable[str] | None = None,
        non_tensor_batch_keys: Iterable[str] | None = None,
        meta_info_keys: Iterable[str] | None = None,
    ) -> DataProto:
        """Keep only these columns; None keeps all of that part."""
        return DataProto(
            _pick("batch", self.batch, batch_keys),
            _pick("non_tensor_batch", self.non_tensor_batch, non_tensor_batch_keys),
            _pick("meta_info", self.meta_info, meta_info_keys),
        )

    def pop(
        self,
        batch_keys: Iterable[str] = (),
        non_tensor_batch_keys: Iterable[str] = (),
        meta_info_keys: Iterable[str] = (),
    ) -> DataProto:
        """Move columns from this container to a new one; a missing key changes nothing."""
        taken = self.select(list(batch_keys), list(non_tensor_batch_keys), list(meta_info_keys))
        for source, keys in (
            (self.batch, taken.batch),
            (self.non_tensor_batch, taken.non_tensor_batch),
            (self.meta_info, taken.meta_info),
        ):
            for key in keys:
                del source[key]
        return taken

    def union(self, other: DataProto) -> DataProto:
        """Columns of both. A name in both must hold equal values, else it is an error.

        Raises:
            DataProtoError: other rows, or one name with two values.
        """
        if self._has_rows() and other._has_rows() and len(self) != len(other):
            raise DataProtoError(f"union of {len(self)} and {len(other)} rows")
        return DataProto(
            _merge("batch", self.batch, other.batch),
            _merge("non_tensor_batch", self.non_tensor_batch, other.non_tensor_batch),
            _merge("meta_info", self.meta_info, other.meta_info),
        )

    # ------------------------------------------------------------------ rows

    @overload
    def __getitem__(self, rows: int) -> DataProto: ...
    @overload
    def __getitem__(self, rows: Rows) -> DataProto: ...
    def __getitem__(self, rows: int | Rows) -> DataProto:
        """Rows by slice, index list or mask; a single int gives a container of one row."""
        if isinstance(rows, slice):
            return self._map_rows(lambda tensor: tensor[rows], lambda array: array[rows])
        index = self._as_index(rows)
        tensor_index = torch.from_numpy(index)
        return self._map_rows(lambda tensor: tensor[tensor_index.to(tensor.device)], lambda array: array[index])

    def slice(self, start: int = 0, stop: int | None = None) -> DataProto:
        """Rows `start` to `stop`, as views."""
        return self[start:stop]

    def chunk(self, chunks: int) -> list[DataProto]:
        """Exactly `chunks` consecutive parts whose sizes differ by at most one; some are empty if rows are few."""
        if chunks < 1:
            raise DataProtoError(f"chunk needs at least one part, got {chunks}")
        base, extra = divmod(len(self), chunks)
        bounds = [part * base + min(part, extra) for part in range(chunks + 1)]
        return [self[start:stop] for start, stop in itertools.pairwise(bounds)]

    def split(self, size: int) -> list[DataProto]:
        """Consecutive parts of `size` rows; the last one may be shorter."""
        if size < 1:
            raise DataProtoError(f"split needs a positive size, got {size}")
        return [self[start : start + size] for start in range(0, len(self), size)]

    def __iter__(self) -> Iterator[DataProto]:
        return (self[row : row + 1] for row in range(len(self)))

    @staticmethod
    def concat(parts: Sequence[DataProto]) -> DataProto:
        """Rows of all parts, in order. `meta_info` must agree, except `metrics`, which is merged (see `merge_metrics`).

        Raises:
            DataProtoError: no part, other columns, other trailing shapes, or metadata that disagrees.
        """
        if not parts:
            raise DataProtoError("concat needs at least one part")
        first = parts[0]
        for number, part in enumerate(parts[1:], start=1):
            _require_same_columns(first, part, number)
        batch = {key: _concat_tensors(key, [part.batch[key] for part in parts]) for key in first.batch}
        arrays = {key: np.concatenate([part.non_tensor_batch[key] for part in parts]) for key in first.non_tensor_batch}
        return DataProto(batch, arrays, _concat_meta([part.meta_info for part in parts]))

    def repeat(self, repeat_times: int, interleave: bool = True) -> DataProto:
        """Each row `repeat_times` times: `a a b b` when interleaved, else `a b a b`."""
        if repeat_times < 0:
            raise DataProtoError(f"repeat_times must not be negative, got {repeat_times}")
        index = np.arange(len(self))
        return self[index.repeat(repeat_times) if interleave else np.tile(index, repeat_times)]

    def to(self, device: torch.device | str) -> DataProto:
        """Tensors on `device`."""
        return self._map_rows(lambda tensor: tensor.to(device), lambda array: array)

    # ------------------------------------------------------------------ pickling

    def __getstate__(self) -> dict[str, Any]:
        return {
            "batch": {key: _to_numpy(tensor) for key, tensor in self.batch.items()},
            "non_tensor_batch": self.non_tensor_batch,
            "meta_info": self.meta_info,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.batch = {key: _from_numpy(array, dtype) for key, (array, dtype) in state["batch"].items()}
        self.non_tensor_batch = state["non_tensor_batch"]
        self.meta_info = state["meta_info"]

    # ------------------------------------------------------------------ helpers

    def _has_rows(self) -> bool:
        return bool(self.batch or self.non_tensor_batch)

    def _map_rows(self, on_tensor: Any, on_array: Any) -> DataProto:
        return DataProto(
            {key: on_tensor(tensor) for key, tensor in self.batch.items()},
            {key: on_array(array) for key, array in self.non_tensor_batch.items()},
            self.meta_info,
        )

    def _as_index(self, rows: int | Rows) -> np.ndarray[Any, np.dtype[np.int64]]:
        array = np.atleast_1d(rows.cpu().numpy() if isinstance(rows, torch.Tensor) else np.asarray(rows))
        if array.dtype == bool:
            if array.shape != (len(self),):
                raise DataProtoError(f"a mask over {len(self)} rows has shape {array.shape}")
            return np.flatnonzero(array)
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise DataProtoError(f"rows are chosen by slice, ints or mask, got {_describe(rows)}")
        index = array.astype(np.int64)
        if index.size and not (-len(self) <= index.min() and index.max() < len(self)):
            raise DataProtoError(f"row out of range: {len(self)} rows, asked for {index.min()} to {index.max()}")
        return index % max(len(self), 1)


def merge_metrics(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge one metric dictionary per rank: names that end in max / min take that, other numbers the mean.

    A name that only some ranks report is merged over those. Values that are not numbers are the first rank's.
    """
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _merge_values(name, [part[name] for part in parts if name in part]) for name in names}


def _merge_values(name: str, values: list[Any]) -> Any:
    if any(number_of(value) is None or isinstance(value, bool) for value in values):
        return values[0]
    last = name.rsplit("/", 1)[-1].rsplit("_", 1)[-1]
    if last in ("max", "min"):
        return max(values) if last == "max" else min(values)
    return values[0] if all(value == values[0] for value in values) else sum(values) / len(values)


def _describe(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ + (f" of shape {tuple(shape)}" if shape is not None else f" {value!r:.80}")


def _as_object_array(key: str, value: Any) -> np.ndarray[Any, Any]:
    """Rows as an array; nested lists stay one Python object per row."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise DataProtoError(f"non_tensor_batch['{key}'] must be an array or a list, got {_describe(value)}")
    array = np.empty(len(value), dtype=object)
    for row, item in enumerate(value):
        array[row] = item
    return array


def _pick(part: str, source: Mapping[str, Any], keys: Iterable[str] | None) -> dict[str, Any]:
    if keys is None:
        return dict(source)
    wanted = list(keys)
    missing = [key for key in wanted if key not in source]
    if missing:
        raise DataProtoError(f"{part} has no {missing}; it has {list(source)}")
    return {key: source[key] for key in wanted}


def _merge(part: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    clash = [key for key in right if key in left and not _equal(left[key], right[key])]
    if clash:
        raise DataProtoError(f"union: {part} holds different values for {clash}")
    return {**left, **right}


def _equal(left: Any, right: Any) -> bool:
    if left is right:
        return True
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        right = right.to(left.device)
        return bool(((left == right) | ((left != left) & (right != right))).all())
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        return all(_equal(a, b) for a, b in zip(left.tolist(), right.tolist(), strict=True))
    if isinstance(left, (torch.Tensor, np.ndarray)) or isinstance(right, (torch.Tensor, np.ndarray)):
        return False
    return bool(left == right) or (left != left and right != right)


def _require_same_columns(first: DataProto, part: DataProto, number: int) -> None:
    for name, ours, theirs in (
        ("batch", first.batch, part.batch),
        ("non_tensor_batch", first.non_tensor_batch, part.non_tensor_batch),
    ):
        if ours.keys() != theirs.keys():
            raise DataProtoError(
                f"concat: {name} of part {number} differs from part 0: "
                f"missing {sorted(ours.keys() - theirs.keys())}, extra {sorted(theirs.keys() - ours.keys())}"
            )


def _concat_tensors(key: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    shapes = {tuple(tensor.shape[1:]) for tensor in tensors}
    if len(shapes) > 1:
        raise DataProtoError(f"concat: batch['{key}'] has rows of different shapes: {sorted(shapes)}")
    return torch.cat(tensors)


def _concat_meta(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    for part in parts:
        rest = {key: value for key, value in part.items() if key != "metrics"}
        meta = _merge("meta_info", meta, rest)
    metrics = [part["metrics"] for part in parts if "metrics" in part]
    if metrics:
        meta["metrics"] = merge_metrics(metrics)
    return meta


def _to_numpy(tensor: torch.Tensor) -> tuple[np.ndarray[Any, Any], str]:
    """A contiguous numpy view of the values and the torch dtype's name (numpy has no bfloat16)."""
    host = tensor.detach().cpu().contiguous()
    dtype = str(host.dtype).removeprefix("torch.")
    return (host.view(torch.int16) if host.dtype == torch.bfloat16 else host).numpy(), dtype


def _from_numpy(array: np.ndarray[Any, Any], dtype: str) -> torch.Tensor:
    """A tensor with its own writable memory: buffers from Ray's object store are read-only and shared."""
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor
