"""What is between two steps survives a restart; a step that was given up leaves no trace."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from agentrl.config.data import DataConfig
from agentrl.config.health import HealthConfig
from agentrl.config.root import KLControlConfig
from agentrl.data.dataset import RLHFDataset
from agentrl.data.loader import StatefulLoader
from agentrl.errors import CheckpointError
from agentrl.trainer.alarms import make_monitor
from agentrl.trainer.batch_columns import make_kl_controller
from agentrl.trainer.checkpoint import STATE_FILE, load_state, save_state
from agentrl.trainer.state import TrainerState, seed_everything


@pytest.fixture
def make(tmp_path: Path):
    path = tmp_path / "rows.parquet"
    rows = [{"prompt": f"question {i}", "data_source": "x", "reward_model": {"ground_truth": "1"}} for i in range(7)]
    pq.write_table(pa.Table.from_pylist(rows), path)

    def build() -> TrainerState:
        loader = StatefulLoader(RLHFDataset(str(path), DataConfig()), 2, shuffle=True, seed=3)
        controller = make_kl_controller(KLControlConfig(type="adaptive", kl_coef=0.5))
        return TrainerState(loader, controller, make_monitor(HealthConfig(window=1)))

    return build


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(1))]


def test_resume_goes_on_where_the_last_finished_step_ended(make, tmp_path: Path):
    seed_everything(5)
    first = make()
    for _ in range(4):
        first.loader.next_batch()
    first.kl_controller.value = 0.25
    first.weight_version = 4
    first.health.observe({"actor/entropy": 2.0}, 4)
    draw()
    first.finish_step(4)
    first.save(tmp_path)
    expected_rows = [sample.index for sample in first.loader.next_batch()]
    expected_draws = draw()

    second = make()
    second.load(tmp_path)
    assert (second.step, second.weight_version, second.kl_controller.value) == (4, 4, 0.25)
    assert second.health.observe({"actor/entropy": 7.0}, 5) == {"health/alarms": 1.0, "health/alarm/entropy_high": 1.0}
    assert [sample.index for sample in second.loader.next_batch()] == expected_rows
    assert draw() == expected_draws


def test_a_step_that_was_given_up_leaves_no_trace(make, tmp_path: Path):
    state = make()
    state.loader.next_batch()
    state.finish_step(1)
    given_up = [sample.index for sample in state.loader.next_batch()]
    state.kl_controller.value = 9.0
    state.save(tmp_path)
    resumed = make()
    resumed.load(tmp_path)
    assert [sample.index for sample in resumed.loader.next_batch()] == given_up
    assert resumed.kl_controller.value == 0.5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kl_controller": None}, "no 'kl_controller'"),
        ({"weight_version": None}, "no 'weight_version'"),
        ({"random": [1]}, "a value of another kind"),
    ],
)
def test_a_state_that_another_program_wrote(make, tmp_path: Path, changes: dict[str, object], said: str) -> None:
    first = make()
    first.finish_step(3)
    first.save(tmp_path)
    state = {**load_state(tmp_path / STATE_FILE), **changes}
    save_state(tmp_path / STATE_FILE, {name: value for name, value in state.items() if value is not None})
    with pytest.raises(CheckpointError, match=rf"is no checkpoint of `agentrl train`: its .* have {said}"):
        make().load(tmp_path)
    torch.save([3], tmp_path / STATE_FILE)
    with pytest.raises(CheckpointError, match=r"trainer_state\.pt: it holds a list, wanted"):
        make().load(tmp_path)
