"""Every policy loss with every aggregation has one gradient, however a mini-batch is cut and over how many ranks."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from two_ranks import BATCH, Gradients, gradients_of_all_losses
from warm_commands import warm_commands

from agentrl.algorithms import AGGREGATION_MODES, POLICY_LOSSES
from agentrl.workers.token_choice import _random

All = dict[str, Gradients]


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def in_one_pass(alone: None, tiny_model_dir: Path) -> All:
    return gradients_of_all_losses(str(tiny_model_dir), list(range(7)), 10_000)


@pytest.fixture(scope="module")
def in_small_passes(alone: None, tiny_model_dir: Path) -> All:
    return gradients_of_all_losses(str(tiny_model_dir), list(range(7)), 30)


@pytest.fixture(scope="module")
def on_two_ranks(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> All:
    folder = tmp_path_factory.mktemp("two_ranks")
    script, output = Path(__file__).with_name("two_ranks.py"), folder / "gradients.pt"
    arguments = [str(warm_commands() / "python"), str(script), str(tiny_model_dir), str(folder / "meeting")]
    ranks = [
        subprocess.Popen([*arguments, str(rank), str(output)], stderr=subprocess.PIPE, text=True) for rank in range(2)
    ]
    errors = [rank.communicate(timeout=200)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    gradients: All = torch.load(output, weights_only=True)
    return gradients


@pytest.mark.parametrize("mode", AGGREGATION_MODES)
@pytest.mark.parametrize("loss", POLICY_LOSSES)
def test_a_gradient_depends_on_neither_cut_nor_ranks(
    loss: str, mode: str, in_one_pass: All, in_small_passes: All, on_two_ranks: All
) -> None:
    expected = in_one_pass[f"{loss}/{mode}"]
    largest = max(float(value.abs().max()) for value in expected.values())
    assert largest > 1e-3
    for other in (in_small_passes, on_two_ranks):
        for name, value in other[f"{loss}/{mode}"].items():
            torch.testing.assert_close(value, expected[name], atol=2e-5 * largest, rtol=1e-4, msg=f"{loss} {name}")


def test_random_numbers_of_tokens_are_even_and_depend_on_the_seed() -> None:
    numbers = np.arange(4096, dtype=np.uint64) << np.uint64(32)
    draws = _random(numbers, [1, 2])
    assert abs(draws.mean() - 0.5) < 0.02
    assert len(set(draws.tolist())) == 4096
    assert np.array_equal(draws, _random(numbers, [1, 2]))
    assert not np.array_equal(draws, _random(numbers, [1, 3]))


def test_the_batch_tells_losses_apart(in_one_pass: All) -> None:
    names = [name for name in next(iter(in_one_pass.values())) if "embed" in name]
    firsts = [in_one_pass[f"{loss}/token-mean"][names[0]] for loss in POLICY_LOSSES]
    assert all(not torch.allclose(one, other) for i, one in enumerate(firsts) for other in firsts[:i])
    assert int(BATCH.batch["loss_mask"].sum()) > 20
