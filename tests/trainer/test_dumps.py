"""The dump of a step holds what training knew of each token, however far the step came."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.data_proto import DataProto
from agentrl.rollout.batching import collate
from agentrl.rollout.records import RolloutRow, TokenArrays
from agentrl.testing.loops import sampled
from agentrl.trainer.dumps import RolloutDumps
from agentrl.trajectory import Trajectory
from agentrl.types import AgentLoopOutput, StopReason

RENDERER: Any = SimpleNamespace(decode=str, encoder=SimpleNamespace(decode=str))


def rollouts(*lengths: int) -> DataProto:
    """Trajectories of one turn each, of one group."""
    rows = []
    for number, length in enumerate(lengths):
        stream = Trajectory([1], 100)
        stream.append_completion(sampled(list(range(10, 10 + length))))
        output = AgentLoopOutput(
            prompt_ids=stream.prompt_ids,
            response_ids=stream.response_ids,
            response_mask=stream.response_mask,
            response_logprobs=stream.rollout_log_probs,
            weight_versions=stream.weight_versions,
            num_turns=2,
            stop_reason=StopReason.COMPLETED,
        )
        rows.append(RolloutRow(number, TokenArrays.of(output), StopReason.COMPLETED, num_turns=2))
    names = ("ground_truth", "score", "data_source", "stop_reason", "num_turns", "num_tool_calls", "messages")
    columns = {name: np.array([1] * len(rows), dtype=object) for name in (*names, "reward_extra_info")}
    columns |= {"uid": np.array(["1-0"] * len(rows), dtype=object), "row": np.arange(len(rows)).astype(object)}
    return DataProto(collate(rows, 0), columns)


def trained(kept: DataProto, **columns: torch.Tensor) -> DataProto:
    """The batch of an update: the rows' tensors, and what was added to them."""
    return DataProto({**kept.batch, **columns})


def fields(folder: Path, name: str) -> list[Any]:
    return [json.loads(line)[name] for line in (folder / "1.jsonl").read_text().splitlines()]


@pytest.fixture
def dumps(tmp_path: Path) -> RolloutDumps:
    return RolloutDumps(str(tmp_path), RENDERER)


def test_rows_that_were_left_out_have_null(dumps: RolloutDumps, tmp_path: Path) -> None:
    every = rollouts(1, 2, 3)
    kept = every[[2, 0]]
    advantages, old = torch.tensor([[1.0, 1.0, 1.0], [-1.0, 0.0, 0.0]]), torch.full((2, 3), -0.25)
    dumps.begin(every)
    dumps.trains_on(kept, trained(kept, advantages=advantages, old_log_probs=old))
    dumps.write(1)
    assert fields(tmp_path, "advantages") == [[-1.0], None, [1.0, 1.0, 1.0]]
    assert fields(tmp_path, "train_log_probs") == [[-0.25], None, [-0.25] * 3]


def test_an_update_that_computes_the_log_probs_itself(dumps: RolloutDumps, tmp_path: Path) -> None:
    kept = rollouts(2, 3)
    batch = trained(kept, advantages=torch.ones(2, 3))
    batch.batch["loss_mask"][1, 0] = 0
    dumps.begin(kept)
    dumps.trains_on(kept, batch)
    dumps.updated(DataProto({"old_log_probs": torch.tensor([[-0.5, -0.75, 0.0], [0.0, torch.nan, -0.25]])}))
    dumps.write(1)
    assert fields(tmp_path, "train_log_probs") == [[-0.5, -0.75], [None, None, -0.25]]


def test_the_engines_own_log_probs_are_not_written_twice(dumps: RolloutDumps, tmp_path: Path) -> None:
    kept = rollouts(2)
    batch = trained(kept, advantages=torch.ones(1, 2))
    batch.batch["old_log_probs"] = batch.batch["rollout_log_probs"]
    dumps.begin(kept)
    dumps.trains_on(kept, batch)
    dumps.updated(DataProto({}))
    dumps.write(1)
    assert (fields(tmp_path, "advantages"), fields(tmp_path, "train_log_probs")) == ([[1.0, 1.0]], [None])


def test_a_step_that_trains_on_nothing_is_dumped(dumps: RolloutDumps, tmp_path: Path) -> None:
    dumps.begin(rollouts(2))
    dumps.write(1)
    assert "advantages" not in json.loads((tmp_path / "1.jsonl").read_text())


def test_a_step_is_written_once_and_leaves_nothing_for_the_next(dumps: RolloutDumps, tmp_path: Path) -> None:
    kept = rollouts(2)
    dumps.begin(kept)
    dumps.trains_on(kept, trained(kept, advantages=torch.ones(1, 2)))
    dumps.write(1)
    (tmp_path / "1.jsonl").unlink()
    dumps.write(1)
    assert not (tmp_path / "1.jsonl").exists()
    dumps.begin(rollouts(1))
    dumps.write(2)
    assert "advantages" not in json.loads((tmp_path / "2.jsonl").read_text())


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    dumps, kept = RolloutDumps(None, RENDERER), rollouts(2)
    dumps.begin(kept)
    dumps.trains_on(kept, trained(kept, advantages=torch.ones(1, 2)))
    dumps.updated(DataProto({}))
    dumps.write(1)
    assert list(tmp_path.iterdir()) == []
