"""Operations of an update against torch's own count, and peaks by the names of GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from agentrl.workers import flops
from agentrl.workers.flops import FlopCounter, peak_flops, utilization

LENGTH = 40


@pytest.mark.parametrize("tied", [True, False])
def test_the_count_is_torchs_own(tiny_model_dir: Path, tied: bool) -> None:
    lm = AutoModelForCausalLM.from_pretrained(tiny_model_dir, attn_implementation="eager")
    if not tied:
        lm.lm_head.weight = torch.nn.Parameter(lm.lm_head.weight.detach().clone())
    with FlopCounterMode(display=False) as counter:
        lm(input_ids=torch.ones(1, LENGTH, dtype=torch.long)).logits.sum().backward()
    counted = FlopCounter(lm)(torch.tensor([LENGTH]))
    attention = 6 * FlopCounter(lm)._attention * LENGTH**2
    # Torch counts the masked half of the attention too, and leaves out the gradient of what the first layer reads.
    assert counted + attention == pytest.approx(counter.get_total_flops(), rel=0.1)


def test_rows_add_up(tiny_model_dir: Path) -> None:
    count = FlopCounter(AutoModelForCausalLM.from_pretrained(tiny_model_dir))
    assert count(torch.tensor([3, 9])) == count(torch.tensor([3])) + count(torch.tensor([9]))
    assert count(torch.tensor([12])) > count(torch.tensor([3, 9]))


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_the_peak_of_a_gpu(monkeypatch: pytest.MonkeyPatch, name: str, peak: float | None) -> None:
    monkeypatch.setattr(flops.torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda"), torch.bfloat16) == peak
    assert peak_flops(torch.device("cuda"), torch.float32) is None
    assert peak_flops(torch.device("cpu"), torch.bfloat16) is None


def test_utilization() -> None:
    assert utilization(2e12, 4.0, 1e12) == {"perf/mfu/actor": 0.5}
    assert utilization(2e12, 4.0, None) == {}
