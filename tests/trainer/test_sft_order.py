"""The order of demonstrations, and their batches."""

from __future__ import annotations

import pytest
import torch

from agentrl.errors import ConfigError
from agentrl.trainer.sft_data import Example, RowOrder, as_batch
from agentrl.workers.micro_batch_plan import MicroLimits
from agentrl.workers.micro_batches import RowLayout


def test_every_epoch_draws_each_row_once_even_where_batches_do_not_divide():
    order = RowOrder(5, shuffle=True, seed=1)
    drawn = [row for _ in range(10) for row in order.take(3)]
    epochs = [drawn[start : start + 5] for start in range(0, 30, 5)]
    assert all(sorted(epoch) == list(range(5)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    ordered = RowOrder(4, shuffle=False, seed=1)
    assert [ordered.take(4), ordered.take(4)] == [[0, 1, 2, 3]] * 2
    assert RowOrder(2, shuffle=False, seed=1).take(5) == [0, 1, 0, 1, 0]


def test_the_order_goes_on_where_its_state_was_taken():
    first, second = RowOrder(7, shuffle=True, seed=3), RowOrder(7, shuffle=True, seed=3)
    first.take(5)
    second.load_state_dict(first.state_dict())
    assert second.take(11) == first.take(11)
    with pytest.raises(ConfigError, match=r"data\.train_files: the checkpoint was made with rows=7, this run has 8"):
        RowOrder(8, shuffle=True, seed=3).load_state_dict(first.state_dict())


def test_a_batch_holds_every_label_once_behind_the_token_before_it():
    examples = [Example(list(range(10, 10 + n)), [0, 0] + [1] * (n - 2)) for n in (5, 40, 6, 38)]
    layout = RowLayout(as_batch(examples), "loss_mask")
    for limits in (MicroLimits(80), MicroLimits(80, packed=True), MicroLimits(1, max_rows=3)):
        batches = layout.micro_batches(None, limits).batches
        labels = sorted(label for batch in batches for label in batch.labels.tolist())
        assert labels == sorted(token for example in examples for token in example.ids[2:])
        for batch in batches:  # ids count up within a row
            assert torch.equal(batch.input_ids.flatten()[batch.sources] + 1, batch.labels)
            assert limits.max_rows or batch.input_ids.numel() <= 80
