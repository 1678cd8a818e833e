"""Distributes one call over the ranks and joins their results, in the same way for every backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.data_proto import DataProto
from agentrl.errors import DataProtoError
from agentrl.single_controller.decorator import Dispatch

PARTITIONS = "rank_partitions"
"""`meta_info` key: one list of row numbers per part. For groups of several sizes, such lists by the number of parts:
`{1: [[0, 1, 2]], 2: [[0, 2], [1]]}`."""

RankCall = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class DispatchPlan:
    """One call per rank that takes part, and how to join the results."""

    calls: dict[int, RankCall]
    dispatch: Dispatch
    order: list[int] | None = None
    """DP_COMPUTE_PROTO: the input's row number of each row of the concatenated results."""
    copies: int = 1
    """DP_COMPUTE_PROTO: how many neighbouring ranks get the same rows, and give the same results."""

    @property
    def shared(self) -> bool:
        """True when every rank gets the same objects, so that a backend may send them once."""
        return self.dispatch is Dispatch.ONE_TO_ALL

    def collect(self, results: Sequence[Any]) -> Any:
        """Join results, given in rank order."""
        if self.dispatch is Dispatch.RANK_ZERO:
            return results[0]
        if self.dispatch is Dispatch.DP_COMPUTE_PROTO and all(isinstance(item, DataProto) for item in results):
            return _join(list(results[:: self.copies]), self.order)
        return list(results)


def plan_call(
    dispatch: Dispatch, world_size: int, args: tuple[Any, ...], kwargs: dict[str, Any], copies: int = 1
) -> DispatchPlan:
    """Plan the call of every rank. `copies` neighbouring ranks get the same rows.

    Raises:
        DataProtoError: lists or partitions do not fit the number of ranks or rows.
    """
    if dispatch is Dispatch.RANK_ZERO:
        return DispatchPlan({0: (args, kwargs)}, dispatch)
    if dispatch is Dispatch.ONE_TO_ALL:
        return DispatchPlan(dict.fromkeys(range(world_size), (args, kwargs)), dispatch)
    if dispatch is Dispatch.ALL_TO_ALL:
        _require_lists(world_size, [*args, *kwargs.values()])
        return DispatchPlan({rank: _take(rank, args, kwargs) for rank in range(world_size)}, dispatch)
    return _plan_data_parallel(world_size // copies, args, kwargs, copies)


def _plan_data_parallel(num_parts: int, args: tuple[Any, ...], kwargs: dict[str, Any], copies: int) -> DispatchPlan:
    protos = [value for value in (*args, *kwargs.values()) if isinstance(value, DataProto)]
    if not protos:
        raise DataProtoError("a DP_COMPUTE_PROTO method needs a DataProto argument, got none")
    rows = len(protos[0])
    if any(len(proto) != rows for proto in protos):
        raise DataProtoError(
            f"the DataProto arguments of one call must have equal rows, got {[len(proto) for proto in protos]}"
        )
    partitions = protos[0].meta_info.get(PARTITIONS)
    if isinstance(partitions, dict):
        partitions = partitions.get(num_parts)
    if partitions is not None:
        partitions = _check_partitions(partitions, num_parts, rows)

    def spread(value: Any) -> list[Any]:
        if not isinstance(value, DataProto):
            return [value] * num_parts
        value = DataProto(
            value.batch, value.non_tensor_batch, {k: v for k, v in value.meta_info.items() if k != PARTITIONS}
        )
        return value.chunk(num_parts) if partitions is None else [value[part] for part in partitions]

    spread_args = tuple(spread(value) for value in args)
    spread_kwargs = {key: spread(value) for key, value in kwargs.items()}
    parts = [_take(part, spread_args, spread_kwargs) for part in range(num_parts)]
    # Three parts for six ranks, copies 2: ranks 0 1 2 3 4 5 get parts 0 0 1 1 2 2.
    calls = {rank: parts[rank // copies] for rank in range(num_parts * copies)}
    order = None if partitions is None else [row for part in partitions for row in part]
    return DispatchPlan(calls, Dispatch.DP_COMPUTE_PROTO, order, copies)


def _take(rank: int, args: Sequence[Any], kwargs: dict[str, Any]) -> RankCall:
    return tuple(value[rank] for value in args), {key: value[rank] for key, value in kwargs.items()}


def _require_lists(world_size: int, values: Sequence[Any]) -> None:
    for value in values:
        if not isinstance(value, (list, tuple)) or len(value) != world_size:
            raise DataProtoError(f"an ALL_TO_ALL argument must be a list of {world_size} entries, got {value!r:.120}")


def _check_partitions(partitions: Any, world_size: int, rows: int) -> list[list[int]]:
    parts = [[int(row) for row in part] for part in partitions]
    if len(parts) != world_size or sorted(row for part in parts for row in part) != list(range(rows)):
        raise DataProtoError(
            f"{PARTITIONS} must give each of {rows} rows to exactly one of {world_size} ranks, got {parts!r:.200}"
        )
    return parts


def _join(results: list[DataProto], order: list[int] | None) -> DataProto:
    # A rank without rows may lack the columns of the others; it contributes only its metadata. With partitions
    # [[0, 3], [1, 2]] the concatenated rows are 0, 3, 1, 2, and `inverse` [0, 2, 3, 1] puts them back in order.
    joined = DataProto.concat([item for item in results if len(item)] or results[:1])
    joined.meta_info = DataProto.concat([DataProto(meta_info=item.meta_info) for item in results]).meta_info
    if order is None or len(joined) != len(order):
        return joined
    inverse = [0] * len(order)
    for position, row in enumerate(order):
        inverse[row] = position
    return joined[inverse]
