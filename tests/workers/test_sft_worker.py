"""The SFT worker: packed rows equal rows on their own, and the GPU path equals the CPU, offloaded or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from test_gpu import assert_places, gpu  # noqa: F401  (a fixture)

from agentrl.config.sft import SFTConfig
from agentrl.data_proto import DataProto
from agentrl.single_controller import Placement
from agentrl.trainer.sft_data import Example, as_batch
from agentrl.workers.attention import VARLEN
from agentrl.workers.micro_batch_plan import MicroLimits
from agentrl.workers.micro_batches import RowLayout
from agentrl.workers.sft import SFTWorker

DRAW = torch.Generator().manual_seed(5)
EXAMPLES = [
    Example(torch.randint(0, 261, (n,), generator=DRAW).tolist(), [0, 0, *(int(i % 7 < 4) for i in range(n - 2))])
    for n in (9, 40, 12, 25, 31, 3)
]


@pytest.fixture
def make(tiny_model_dir: Path) -> Iterator[object]:
    workers: list[SFTWorker] = []

    def make_worker(*, use_gpu: bool = False, offload: bool = False, **data: object) -> SFTWorker:
        config = SFTConfig()
        config.model.path = str(tiny_model_dir)
        config.optim.lr = 1e-3
        config.model.fsdp_config.compute_dtype = "bfloat16" if use_gpu or data.pop("bfloat16", False) else "float32"
        config.model.fsdp_config.param_offload = config.model.fsdp_config.optimizer_offload = offload
        for name, value in data.items():
            setattr(config.data, name, value)
        worker = SFTWorker.place(Placement(use_gpu=use_gpu), None, config)
        workers.append(worker)
        worker.init_model(10)
        return worker

    yield make_worker
    for worker in workers:
        worker.close()


def losses_of(worker: SFTWorker, batch: DataProto) -> list[float]:
    """Sum of the loss before, in two updates, and after."""
    steps = [worker.evaluate, worker.update, worker.update, worker.evaluate]
    return [step(batch).meta_info["metrics"]["loss"] for step in steps]


def test_packed_rows_do_not_see_each_other(make) -> None:
    """End to end in one row of 120 tokens, every token has the log-prob that it has in a row of its own."""
    worker = make()
    layout = RowLayout(as_batch(EXAMPLES), "loss_mask")
    (packed,) = layout.micro_batches(None, MicroLimits(10_000, packed=True)).batches
    assert packed.input_ids.shape == (1, sum(layout.run_lengths.tolist()))
    together, hits = worker.model.net(packed)
    together, right = packed.spread(together), packed.spread(hits.float())
    for place, row in enumerate(packed.rows.tolist()):
        alone = as_batch([EXAMPLES[row]])
        (micro,) = RowLayout(alone, "loss_mask").micro_batches(None, MicroLimits(10_000)).batches
        log_probs, own_hits = worker.model.net(micro)
        width = micro.mask.shape[1]
        torch.testing.assert_close(together[place, :width][micro.mask[0]], log_probs, atol=1e-5, rtol=0)
        assert torch.equal(right[place, :width][micro.mask[0]], own_hits.float())


def test_micro_batches_do_not_change_the_result(make) -> None:
    batch = as_batch(EXAMPLES)
    expected = losses_of(make(), batch)
    assert expected[3] < expected[0]
    assert losses_of(make(max_token_len=41), batch) == pytest.approx(expected, rel=1e-5)
    by_rows = make(micro_batch_size_per_gpu=2, use_dynamic_bsz=False)
    assert [len(micro.rows) for micro in by_rows._cut(batch)[1].batches] == [2, 2, 2]
    assert losses_of(by_rows, batch) == pytest.approx(expected, rel=1e-5)


def test_a_batch_without_anything_to_learn_changes_nothing(make) -> None:
    metrics = make().update(as_batch([Example([1, 2, 3], [0, 0, 0])])).meta_info["metrics"]
    assert (metrics["tokens"], metrics["loss"], metrics["grad_norm"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("gpu", [True, False], indirect=True, ids=["varlen", "sdpa"])
@pytest.mark.parametrize("offload", [False, True])
def test_a_gpu_learns_what_a_cpu_learns(offload: bool, gpu: None, make, tmp_path: Path, request) -> None:  # noqa: F811
    packed = "varlen" in request.node.callspec.id
    batch = as_batch(EXAMPLES)
    expected = losses_of(make(bfloat16=True), batch)
    worker = make(use_gpu=True, offload=offload)
    assert (worker._lm.config._attn_implementation == VARLEN) is packed
    assert worker._limits.packed is packed
    assert losses_of(worker, batch) == pytest.approx(expected, rel=0.02)
    assert_places(worker, (offload, offload))
    worker.save_checkpoint(str(tmp_path / "shards"))
    worker.export_hf(str(tmp_path / "huggingface"))
    again = make(use_gpu=True)
    again.load_checkpoint(str(tmp_path / "shards"))
    assert again.evaluate(batch).meta_info["metrics"]["loss"] == pytest.approx(losses_of(worker, batch)[0], rel=0.01)
