"""A dump says of every token whether and by which weights it was sampled: the audit proves it from the file alone."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from agentrl.data_proto import DataProto
from agentrl.observability import rollout_log
from agentrl.observability.audit import audit
from agentrl.observability.dumps import find_dumps
from agentrl.observability.rollout_log import TrainedTokens, write_rollouts
from agentrl.rollout.batching import collate
from agentrl.rollout.records import RolloutRow, TokenArrays
from agentrl.testing.loops import sampled
from agentrl.trajectory import Trajectory
from agentrl.types import AgentLoopOutput, StopReason


def batch() -> DataProto:
    """A long and a short trajectory, as they leave the rollout manager."""
    rows = []
    for number, turns in enumerate(([[10, 11, 2], [12, 2]], [[13]])):
        stream = Trajectory([1] * (number + 1), 100)
        for turn in turns:
            if stream.response_ids:
                stream.append_observation([30, 31])
            stream.append_completion(sampled(turn))
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
    fields = ("ground_truth", "score", "uid", "data_source", "stop_reason", "num_turns", "num_tool_calls")
    values = {name: np.array([1, 1], dtype=object) for name in (*fields, "messages", "reward_extra_info")}
    return DataProto(collate(rows, 0), values)


def words(ids: list[int]) -> str:
    return "".join(f"[{token}]" for token in ids)


def without_end(ids: list[int]) -> str:
    return words(ids[:-1] if ids[-1:] == [2] else ids)


def test_what_is_written_passes_the_audit(tmp_path: Path) -> None:
    write_rollouts(tmp_path, 4, [batch()], without_end, exact=words)
    first, second = audit(find_dumps(tmp_path).values())
    assert first.violations == second.violations == []
    assert first.segments == [("trained", 3, "[10][11][2]"), ("observed", 2, "[30][31]"), ("trained", 2, "[12][2]")]
    assert first.record["output"] == "[10][11][2][30][31][12]"
    assert sum(first.trained_by.values()) == 5
    assert second.segments == [("trained", 1, "[13]")]


@pytest.mark.parametrize(("name", "bad"), [("response_mask", [0, 1, 2]), ("loss_mask", [])])
def test_a_turn_that_is_not_trained_is_still_marked_as_sampled(tmp_path: Path, name: str, bad: list[int]) -> None:
    data = batch()
    data.batch[name][0, :3] = 0
    write_rollouts(tmp_path, 4, [data], words)
    first, _ = audit(find_dumps(tmp_path).values())
    assert [violation.token for violation in first.violations] == bad
    if name == "loss_mask":
        assert first.segments[0] == ("sampled", 3, "[10][11][2]")


def test_whatever_a_score_function_reports_is_written(tmp_path: Path) -> None:
    data, odd = batch(), {"score": 0.0, "pred": {1: "x"}, "set": {1}, "nan": float("nan"), "half": "\ud83d", "b": b"x"}
    odd["itself"] = odd
    for name in ("reward_extra_info", "messages", "ground_truth"):
        data.non_tensor_batch[name][0] = odd
    file = write_rollouts(tmp_path, 4, [data], words)
    assert file is not None
    first = json.loads(file.read_text().splitlines()[0])
    wanted = {"score": 0.0, "pred": {"1": "x"}, "set": [1], "nan": "nan", "half": "\ufffd", "b": "x"}
    assert (
        first["reward_extra_info"] == first["messages"] == first["gts"] == wanted | {"itself": "<it contains itself>"}
    )
    assert next(iter(audit([file]))).violations == []


def test_a_full_disk_is_said_once_and_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(rollout_log.os, "replace", full)
    assert [write_rollouts(tmp_path, step, [batch()], words) for step in (1, 2, 3)] == [None] * 3
    assert list(tmp_path.iterdir()) == []
    (record,) = caplog.records
    assert f"cannot write rollouts to {tmp_path}: No space left on device" in record.getMessage()
    (tmp_path / "file").write_text("")
    assert write_rollouts(tmp_path / "file" / "below", 1, [batch()], words) is None


def test_a_dump_holds_what_a_score_function_got(tmp_path: Path) -> None:
    done = batch()
    done.non_tensor_batch["extra_info"] = np.array([{"answer": "4"}, {}], dtype=object)
    done.non_tensor_batch["extra_fields"] = np.array([{"turn_scores": [0.5]}, {}], dtype=object)
    file = write_rollouts(tmp_path, 4, [done], without_end, exact=words)
    assert file is not None
    first, second = map(json.loads, file.read_text().splitlines())
    assert (first["solution_str"], second["solution_str"]) == ("[10][11]\n[12]", "[13]")
    assert (first["extra_info"], second["extra_info"]) == ({"answer": "4", "turn_scores": [0.5]}, {})


def test_what_is_known_of_failures_is_beside_the_dump(tmp_path: Path) -> None:
    done = batch()
    done.meta_info["failures"] = [{"row": 3, "stop_reason": "timeout", "error": "no answer", "extra": {1, 2}}]
    write_rollouts(tmp_path, 4, [done], words)
    (line,) = (tmp_path / "4.failed.jsonl").read_text().splitlines()
    assert json.loads(line) == {"row": 3, "stop_reason": "timeout", "error": "no answer", "extra": [1, 2], "step": 4}
    assert [file.name for file in find_dumps(tmp_path).values()] == ["4.jsonl"]
    write_rollouts(tmp_path, 4, [batch()], words)  # the run resumed, and this time none failed
    assert sorted(os.listdir(tmp_path)) == ["4.jsonl"]


def test_what_training_knew_of_each_token(tmp_path: Path) -> None:
    data = batch()
    data.non_tensor_batch["uid"] = np.array(["4-0", "4-0"], dtype=object)
    data.non_tensor_batch["row"] = np.array([0, 1], dtype=object)
    kept = data[[1]]
    advantages = torch.tensor([[0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    known = TrainedTokens.of(kept, advantages, torch.tensor([[-0.25, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0]]))
    file = write_rollouts(tmp_path, 4, [data], words, trained=known)
    assert file is not None
    left_out, trained = map(json.loads, file.read_text().splitlines())
    assert (trained["advantages"], trained["train_log_probs"]) == ([0.5], [-0.25])
    assert (left_out["advantages"], left_out["train_log_probs"]) == (None, None)
    assert list(trained)[:5] == ["input", "output", "gts", "score", "step"]
    assert all(item.violations == [] for item in audit([file]))


def test_tool_messages_say_whether_they_answer_a_mistake(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "?"}, *({"role": "tool", "content": text} for text in ("Error codes", "no"))]
    done = batch()
    done.non_tensor_batch["messages"] = np.array([None, None], dtype=object)
    done.non_tensor_batch["messages"][:] = [said, said]
    done.non_tensor_batch["extra_fields"] = np.array([{"tool_errors": [2]}, {}], dtype=object)
    file = write_rollouts(tmp_path, 4, [done], words)
    assert file is not None
    known, unknown = (json.loads(line)["messages"] for line in file.read_text().splitlines())
    assert [message.get("is_error") for message in known] == [None, False, True]
    assert unknown == said
