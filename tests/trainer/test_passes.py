"""The order in which the passes over a batch begin: by pools, not by seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from agentrl.data_proto import DataProto
from agentrl.errors import WorkerError
from agentrl.single_controller import ResourcePool
from agentrl.trainer.passes import Pass, Passes

BATCH = DataProto()


class Group:
    """Stands for a worker group; its calls write down that they were sent, and behind whom."""

    def __init__(self, name: str, pool: ResourcePool, log: list[str], error: Exception | None = None) -> None:
        self.name, self.pool, self._log, self._error = name, pool, log, error

    def submit_after(self, groups: Sequence[Any], method: str, batch: DataProto) -> Any:
        assert batch is BATCH
        behind = "".join(f" behind {group.name}" for group in groups)
        self._log.append(f"{self.name} {method}{behind}")
        return self

    def get(self) -> str:
        self._log.append(f"{self.name} asked")
        if self._error is not None:
            raise self._error
        return f"of {self.name}"


def passes(log: list[str], *pools: ResourcePool, error: Exception | None = None, beside: Any = None) -> Passes:
    """Of actor, reference and critic."""
    names = [("old", "actor"), ("ref", "reference"), ("values", "critic")]
    groups = [Group(name, pool, log, error) for (_, name), pool in zip(names, pools, strict=True)]
    made = [Pass(stage, group, "compute") for (stage, _), group in zip(names, groups, strict=True)]  # type: ignore[arg-type]
    return Passes(BATCH, made, beside)


def results(running: Passes) -> list[Any]:
    return [running.result(stage) for stage in running.stages]


def test_in_one_pool_each_is_sent_when_the_last_has_ended() -> None:
    log: list[str] = []
    pool = ResourcePool([2])
    assert results(passes(log, pool, pool, pool)) == ["of actor", "of reference", "of critic"]
    assert log == [f"{name} {what}" for name in ("actor", "reference", "critic") for what in ("compute", "asked")]


def test_in_different_pools_all_are_sent_before_any_is_waited_for() -> None:
    log: list[str] = []
    running = passes(log, ResourcePool([2]), ResourcePool([1]), ResourcePool([1]))
    assert log == ["actor compute", "reference compute", "critic compute"]
    assert results(running) == ["of actor", "of reference", "of critic"]
    assert running.stages == []


def test_those_of_a_shared_pool_take_turns_beside_another_pool() -> None:
    log: list[str] = []
    main, small = ResourcePool([2]), ResourcePool([1])
    running = passes(log, main, small, small)
    assert log == ["actor compute", "reference compute", "critic compute behind reference"]
    assert running.result("values") == "of critic"
    assert running.stages == ["old", "ref"]


def test_a_pass_that_fails_says_so_when_it_is_asked_for() -> None:
    running = passes([], ResourcePool([2]), ResourcePool([1]), ResourcePool([1]), error=WorkerError("died"))
    with pytest.raises(WorkerError, match="died"):
        running.result("old")


def test_beside_the_reward_model_all_are_sent_behind_it_only_in_its_own_pool() -> None:
    log: list[str] = []
    main, small = ResourcePool([2]), ResourcePool([1])
    passes(log, main, main, small, beside=Group("judge", small, log))
    assert log == ["actor compute", "reference compute behind actor", "critic compute behind judge"]
    log.clear()
    passes(log, main, main, main, beside=Group("judge", small, log))
    assert log == ["actor compute", "reference compute behind actor", "critic compute behind actor behind reference"]


def test_results_of_the_rows_that_are_left() -> None:
    pool = ResourcePool([1])
    group = Group("actor", pool, [])
    group.get = lambda: DataProto({"n": torch.tensor([10, 11, 12])})  # type: ignore[method-assign, assignment, return-value]
    running = Passes(BATCH, [Pass("old", group, "compute")])  # type: ignore[arg-type]
    assert running.keep([2, 0]).result("old").batch["n"].tolist() == [12, 10]
