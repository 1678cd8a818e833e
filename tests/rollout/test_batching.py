"""The one padding site, and the checks on what a loop gives back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.data_proto import DataProto
from agentrl.errors import TokenStreamError
from agentrl.rollout.batching import collate, join
from agentrl.rollout.records import RolloutRow, TokenArrays
from agentrl.trajectory import NO_VERSION
from agentrl.types import AgentLoopOutput, StopReason

PAD = 99


def output(prompt: list[int], mask: list[int], **fields: object) -> AgentLoopOutput:
    base: dict[str, object] = {
        "prompt_ids": prompt,
        "response_ids": list(range(10, 10 + len(mask))),
        "response_mask": mask,
        "response_logprobs": [-0.5 * m for m in mask],
        "weight_versions": [3 if m else NO_VERSION for m in mask],
        "num_turns": 2,
        "stop_reason": StopReason.COMPLETED,
    }
    return AgentLoopOutput(**{**base, **fields})  # type: ignore[arg-type]


def row(number: int, prompt: list[int], mask: list[int], score: float) -> RolloutRow:
    return RolloutRow(number, TokenArrays.of(output(prompt, mask)), StopReason.COMPLETED, score=score)


def test_worked_example() -> None:
    first = row(0, [1, 2, 3], [1, 0, 1], 0.5)
    first.tokens = replace(first.tokens, loss_mask=np.array([0, 0, 1], np.int8))  # its first turn is not trained on
    second = row(1, [4], [1, 1, 0, 0, 1], -1.0)
    second.tokens = replace(second.tokens, loss_mask=np.array([1, 1, 0, 0, 0], np.int8))
    batch = collate([first, second], PAD)
    expected = {
        "prompts": [[1, 2, 3], [PAD, PAD, 4]],
        "responses": [[10, 11, 12, PAD, PAD], [10, 11, 12, 13, 14]],
        "response_mask": [[1, 0, 1, 0, 0], [1, 1, 0, 0, 1]],
        "loss_mask": [[0, 0, 1, 0, 0], [1, 1, 0, 0, 0]],
        "input_ids": [[1, 2, 3, 10, 11, 12, PAD, PAD], [PAD, PAD, 4, 10, 11, 12, 13, 14]],
        "attention_mask": [[1, 1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1, 1]],
        "position_ids": [[0, 1, 2, 3, 4, 5, 5, 5], [0, 0, 0, 1, 2, 3, 4, 5]],
        "rollout_log_probs": [[-0.5, 0, -0.5, 0, 0], [-0.5, -0.5, 0, 0, -0.5]],
        "weight_versions": [[3, -1, 3, -1, -1], [3, 3, -1, -1, 3]],
        "rm_scores": [[0, 0, 0.5, 0, 0], [0, 0, 0, 0, -1.0]],
    }
    assert {name: tensor.tolist() for name, tensor in batch.items()} == expected
    floats = {name for name, tensor in batch.items() if tensor.dtype == torch.float32}
    assert floats == {"rollout_log_probs", "rm_scores"}
    assert all(tensor.dtype == torch.int64 for name, tensor in batch.items() if name not in floats)


def proto(rows: list[RolloutRow], metrics: dict[str, float], failures: list[str]) -> DataProto:
    uid = np.array([str(row.row) for row in rows], dtype=object)
    return DataProto(collate(rows, PAD), {"uid": uid}, {"global_step": 3, "metrics": metrics, "failures": failures})


def test_batches_are_joined_as_if_they_had_been_one() -> None:
    short = [row(0, [1, 2, 3], [1, 0, 1], 0.5), row(1, [4], [1], -1.0)]
    long = [row(2, [5], [1, 1, 0, 0, 1], 2.0)]
    joined = join([proto(short, {"a/mean": 1, "a/max": 1}, ["x"]), proto(long, {"a/mean": 2, "a/max": 4}, [])], PAD)
    whole = collate([*short, *long], PAD)
    assert set(joined.batch) == set(whole)
    for name, tensor in whole.items():
        assert joined.batch[name].equal(tensor), name
        assert joined.batch[name].dtype == tensor.dtype
    assert list(joined.non_tensor_batch["uid"]) == ["0", "1", "2"]
    assert joined.meta_info == {"global_step": 3, "metrics": {"a/mean": 1.5, "a/max": 4}, "failures": ["x"]}


rows = st.lists(
    st.tuples(
        st.lists(st.integers(0, 50), min_size=1, max_size=7),
        st.lists(st.integers(0, 1), max_size=9).map(lambda mask: [*mask, 1]),
        st.floats(-2, 2, width=32).filter(lambda score: score != 0),
    ),
    min_size=1,
    max_size=6,
)


@given(rows)
def test_nothing_is_lost_and_nothing_is_invented(trajectories: list[tuple[list[int], list[int], float]]) -> None:
    batch = collate([row(i, *trajectory) for i, trajectory in enumerate(trajectories)], PAD)
    width = batch["prompts"].shape[1]
    assert width == max(len(prompt) for prompt, _, _ in trajectories)
    for i, (prompt, mask, score) in enumerate(trajectories):
        real = batch["attention_mask"][i].bool()
        assert batch["input_ids"][i][real].tolist() == [*prompt, *range(10, 10 + len(mask))]
        assert batch["position_ids"][i][real].tolist() == list(range(len(prompt) + len(mask)))
        assert batch["response_mask"][i].tolist() == mask + [0] * (batch["response_mask"].shape[1] - len(mask))
        rewards = batch["rm_scores"][i]
        assert rewards.nonzero().flatten().tolist() == [len(mask) - 1]
        assert rewards.sum().item() == score
        assert (batch["rollout_log_probs"][i][batch["response_mask"][i] == 0] == 0).all()


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"response_logprobs": [-0.5]}, "wanted 3, the number of response_ids"),
        ({"response_mask": [1, 0]}, "wanted 3, the number of response_ids"),
        ({"weight_versions": [1]}, "wanted 3, the number of response_ids"),
        ({"response_mask": [1, 2, 1]}, "values other than 0 and 1"),
        ({"response_logprobs": [-0.5, -0.5, -0.5]}, "mask 0 has a log-prob other than 0.0"),
        ({"response_mask": [1, 1, 0], "response_logprobs": [-0.5, -0.5, 0.0]}, "follow the last sampled token"),
        ({"response_logprobs": [float("nan"), 0.0, -0.5]}, "not finite"),
    ],
)
def test_a_loop_that_breaks_a_token_rule_is_caught(fields: dict[str, object], rule: str) -> None:
    with pytest.raises(TokenStreamError, match=rule):
        TokenArrays.of(output([1], [1, 0, 1], **fields))


def test_an_empty_response_and_missing_versions_pack() -> None:
    assert len(TokenArrays.of(output([1], [])).response) == 0
    packed = TokenArrays.of(output([1], [1, 0, 1], weight_versions=[]))
    assert packed.versions.tolist() == [NO_VERSION] * 3
    assert packed.mask.dtype == np.int8
