"""How one call is spread over ranks and joined again, without any process."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.data_proto import DataProto
from agentrl.errors import ConfigError, DataProtoError
from agentrl.single_controller import Dispatch, Execute, ResourcePool, Worker, register
from agentrl.single_controller.decorator import registered_methods
from agentrl.single_controller.dispatch import plan_call


@given(data=st.data(), ranks=st.integers(1, 4), rows=st.integers(0, 9), balanced=st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_partition_comes_back_in_the_order_of_the_input(
    data: st.DataObject, ranks: int, rows: int, balanced: bool
) -> None:
    proto = DataProto({"n": torch.arange(rows)}, meta_info={"step": 4})
    if balanced:
        order = data.draw(st.permutations(range(rows)))
        cuts = sorted(data.draw(st.lists(st.integers(0, rows), min_size=ranks - 1, max_size=ranks - 1)))
        bounds = [0, *cuts, rows]
        proto.meta_info["rank_partitions"] = [order[a:b] for a, b in itertools.pairwise(bounds)]
    plan = plan_call(Dispatch.DP_COMPUTE_PROTO, ranks, (proto,), {"factor": 3})
    parts = []
    for rank in range(ranks):
        (part,), kwargs = plan.calls[rank]
        assert part.meta_info == {"step": 4}
        parts.append(DataProto({"m": part.batch["n"] * kwargs["factor"]}, meta_info={"metrics": {"r/max": rank}}))
    joined = plan.collect(parts)
    assert joined.batch["m"].tolist() == [3 * n for n in range(rows)]
    assert joined.meta_info == {"metrics": {"r/max": ranks - 1}}


def test_ranks_that_share_rows_get_the_same_part() -> None:
    """Six ranks in pairs: three parts, and of each pair the first answers."""
    proto = DataProto({"n": torch.arange(7)}, meta_info={"rank_partitions": [[6, 0], [1, 2, 3], [4, 5]]})
    plan = plan_call(Dispatch.DP_COMPUTE_PROTO, 6, (proto,), {}, 2)
    rows = [plan.calls[rank][0][0].batch["n"].tolist() for rank in range(6)]
    assert rows == [[6, 0], [6, 0], [1, 2, 3], [1, 2, 3], [4, 5], [4, 5]]
    joined = plan.collect([DataProto({"m": torch.tensor(part) + 10 * (rank % 2)}) for rank, part in enumerate(rows)])
    assert joined.batch["m"].tolist() == list(range(7))


def test_a_rank_without_rows_needs_no_columns() -> None:
    plan = plan_call(Dispatch.DP_COMPUTE_PROTO, 2, (DataProto({"n": torch.arange(1)}),), {})
    joined = plan.collect([DataProto({"m": torch.ones(1)}, meta_info={"metrics": {"a": 1}}), DataProto()])
    assert joined.batch["m"].tolist() == [1]
    assert joined.meta_info["metrics"] == {"a": 1}


def test_results_that_are_no_containers_come_as_a_list() -> None:
    plan = plan_call(Dispatch.DP_COMPUTE_PROTO, 2, (DataProto({"n": torch.arange(3)}),), {})
    assert plan.collect([1, None]) == [1, None]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((1,), "needs a DataProto argument"),
        ((DataProto({"a": torch.ones(2)}), DataProto({"a": torch.ones(3)})), "must have equal rows"),
        ((DataProto({"a": torch.ones(2)}, meta_info={"rank_partitions": [[0], [0]]}),), "exactly one of 2 ranks"),
        ((DataProto({"a": torch.ones(2)}, meta_info={"rank_partitions": [[0, 1]]}),), "exactly one of 2 ranks"),
    ],
)
def test_bad_data_parallel_calls(args: tuple[object, ...], message: str) -> None:
    with pytest.raises(DataProtoError, match=message):
        plan_call(Dispatch.DP_COMPUTE_PROTO, 2, args, {})


def test_other_modes() -> None:
    assert plan_call(Dispatch.ONE_TO_ALL, 2, (1,), {"k": 2}).calls == {0: ((1,), {"k": 2}), 1: ((1,), {"k": 2})}
    assert plan_call(Dispatch.RANK_ZERO, 3, (1,), {}).calls == {0: ((1,), {})}
    plan = plan_call(Dispatch.ALL_TO_ALL, 2, ([1, 2],), {"k": [3, 4]})
    assert plan.calls == {0: ((1,), {"k": 3}), 1: ((2,), {"k": 4})}
    with pytest.raises(DataProtoError, match="list of 2 entries"):
        plan_call(Dispatch.ALL_TO_ALL, 2, ([1, 2, 3],), {})


def test_overrides_and_bases_are_registered() -> None:
    class Base(Worker):
        @register(Dispatch.RANK_ZERO)
        def first(self) -> None: ...

        @register(blocking=False)
        def second(self) -> None: ...

    class Child(Base):
        def first(self) -> None: ...

        @register(Dispatch.DP_COMPUTE_PROTO)
        def second(self) -> None: ...

    specs = registered_methods(Child)
    assert specs["first"].dispatch is Dispatch.RANK_ZERO
    assert specs["second"].dispatch is Dispatch.DP_COMPUTE_PROTO
    assert specs["second"].blocking


def test_register_takes_a_dispatch_and_an_execution() -> None:
    with pytest.raises(TypeError, match=r"got 'one_to_all', wanted one of Dispatch\.ONE_TO_ALL, "):
        register("one_to_all")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got 'all', wanted one of Execute\.ALL, Execute\.RANK_ZERO"):
        register(execute_mode="all")  # type: ignore[arg-type]


@pytest.mark.parametrize("dispatch", Dispatch)
def test_rank_zero_gets_what_was_passed_whatever_the_dispatch_mode(dispatch: Dispatch) -> None:
    class Own(Worker):
        @register(dispatch_mode=dispatch, execute_mode=Execute.RANK_ZERO)
        def method(self) -> None: ...

    spec = registered_methods(Own)["method"]
    assert spec.dispatch is Dispatch.RANK_ZERO
    assert spec.blocking


def test_partitions_by_the_number_of_ranks() -> None:
    """A group takes those of its size; for another size rows are dealt in order."""
    proto = DataProto({"n": torch.arange(3)}, meta_info={"rank_partitions": {1: [[0, 1, 2]], 2: [[2], [1, 0]]}})
    dealt = {
        ranks: [
            args[0].batch["n"].tolist()
            for args, _ in plan_call(Dispatch.DP_COMPUTE_PROTO, ranks, (proto,), {}).calls.values()
        ]
        for ranks in (1, 2, 3)
    }
    assert dealt == {1: [[0, 1, 2]], 2: [[2], [1, 0]], 3: [[0], [1], [2]]}


@pytest.mark.parametrize(
    ("nodes", "options"), [([], {}), ([0], {}), ([1], {"threads_per_rank": 0}), ([1], {"max_colocate": 0})]
)
def test_bad_pools(nodes: list[int], options: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        ResourcePool(nodes, **options)  # type: ignore[arg-type]


def test_slots_of_a_pool() -> None:
    pool = ResourcePool([2, 1])
    assert pool.world_size == 3
    assert pool.rank_slots() == [(0, 0), (0, 1), (1, 0)]
