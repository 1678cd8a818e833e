"""Checkpoints in the background count when they are whole; what goes wrong is told, and the one before stays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sft_runs import sft_config, sums, write_rows

from agentrl.errors import CheckpointError, ConfigError
from agentrl.trainer import disk_space, saving
from agentrl.trainer.checkpoint import DATA_FILE, LATEST, STATE_FILE, CheckpointManager, save_state
from agentrl.trainer.disk_space import Need, room_problems
from agentrl.trainer.saving import Saver
from agentrl.trainer.sft import run_sft
from agentrl.workers.hf_folder import HFFolder


class Writers:
    """A worker group that has written when it is told so."""

    def __init__(self, size: int = 10) -> None:
        self.done, self.error, self.size = True, None, size
        self.folder: Path | None = None

    def save_checkpoint(self, folder: str, background: bool) -> None:
        self.folder = Path(folder)
        self.folder.mkdir()
        if not background:
            self.write()

    def write(self) -> None:
        assert self.folder is not None
        (self.folder / "weights").write_text("all")
        self.done = True

    def checkpoint_written(self) -> list[bool]:
        return [True, self.done]

    def finish_checkpoint(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error
        if self.folder is not None:
            self.write()

    def checkpoint_bytes(self) -> list[int]:
        return [self.size, self.size]


def write_state(folder: Path) -> None:
    save_state(folder / DATA_FILE, {})
    save_state(folder / STATE_FILE, {})


def saver(folder: Path, *writers: Any, background: bool = True, keep: int | None = None) -> Saver:
    names = zip(("actor", "critic"), writers, strict=False)
    return Saver(CheckpointManager(folder, keep), list(names), write_state, background=background)


def test_a_checkpoint_counts_when_all_have_written(tmp_path: Path) -> None:
    actor, critic = Writers(), Writers()
    own = saver(tmp_path, actor, critic)
    actor.done = critic.done = False
    own.save(1)
    for done in (actor, critic):
        own.poll()
        assert not (tmp_path / LATEST).exists()
        assert own.saved_step is None
        done.done = True
    own.poll()
    assert (tmp_path / LATEST).read_text() == "1"
    assert (own.saved_step, own.under_way) == (1, False)
    assert CheckpointManager(tmp_path).latest() == tmp_path / "global_step_1"


def test_the_next_save_completes_the_one_before_and_only_then_removes_an_old_one(tmp_path: Path) -> None:
    own = saver(tmp_path, Writers(), keep=1)
    own.save(1)
    own.save(2)
    assert [path.name for path in tmp_path.glob("global_step_*")] == ["global_step_1"]
    own.finish()
    assert [path.name for path in tmp_path.glob("global_step_*")] == ["global_step_2"]


def test_a_crash_while_files_are_written_leaves_the_one_before(tmp_path: Path) -> None:
    own = saver(tmp_path, Writers())
    own.save(1)
    own.finish()
    own.save(2)  # and the process dies here
    found = CheckpointManager(tmp_path)
    assert found.latest() == tmp_path / "global_step_1"
    again = saver(tmp_path, Writers())
    again.save(2)
    again.finish()
    assert not list(tmp_path.glob(".part_*"))


@pytest.mark.parametrize("meet", [lambda own: own.poll(), lambda own: own.finish(), lambda own: own.save(3)])
def test_an_error_of_the_writer_is_raised_and_the_half_is_removed(
    tmp_path: Path, meet: Callable[[Saver], None]
) -> None:
    actor = Writers()
    own = saver(tmp_path, actor)
    own.save(1)
    own.finish()
    own.save(2)
    actor.error = CheckpointError("rank 1: No space left on device")
    with pytest.raises(CheckpointError, match=r"global_step_2: rank 1: No space left.*step 1 is untouched"):
        meet(own)
    assert not list(tmp_path.glob(".part_*"))
    assert (own.under_way, own.failed) == (False, True)
    assert CheckpointManager(tmp_path).latest() == tmp_path / "global_step_1"


def test_at_once(tmp_path: Path) -> None:
    own = saver(tmp_path, Writers(), Writers(), background=False)
    own.save(4)
    assert own.saved_step == 4
    assert sorted(path.name for path in (tmp_path / "global_step_4").iterdir()) == sorted(
        ["actor", "critic", DATA_FILE, STATE_FILE]
    )


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (disk_space, saving):
        monkeypatch.setattr(module, "free_bytes", lambda folder: 3 * 2**30)


@pytest.mark.usefixtures("small_disk")
def test_a_disk_that_is_too_small_is_told_before_the_first_step(tmp_path: Path) -> None:
    """3 GiB are free: for a checkpoint of 2 GiB, but not for an export of 1.5 GiB on the same disk beside it."""
    own = saver(tmp_path, Writers(2**30), Writers(2**30))
    own.check_room(1)
    export = Need("an export for the engines", tmp_path / "not yet there", 3 * 2**29)
    with pytest.raises(
        ConfigError, match=r"a checkpoint \(2\.0 GiB.*an export.*1\.5 GiB.*3\.5 GiB are needed, 3\.0 GiB"
    ):
        own.check_room(1, [export])
    assert room_problems([export]) == []
    own.check_room(0, [export])


def test_what_a_killed_run_has_half_written_takes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = tmp_path / ".part_global_step_2"
    killed.mkdir()
    for module in (disk_space, saving):
        monkeypatch.setattr(module, "free_bytes", lambda folder: (1 if killed.exists() else 3) * 2**30)
    saver(tmp_path, Writers(2**31)).check_room(1)
    assert not killed.exists()


@pytest.mark.usefixtures("small_disk")
def test_more_checkpoints_than_the_disk_has_room_for_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        saver(tmp_path, Writers(2**30), keep=2).check_room(100)
        assert not caplog.text
        saver(tmp_path, Writers(2**30)).check_room(100)
    assert "100 checkpoints of 1.0 GiB" in caplog.text


@pytest.mark.usefixtures("small_disk")
def test_a_disk_that_others_have_filled_meanwhile(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"it needs 4\.0 GiB, 3\.0 GiB are free\. There is no earlier one"):
        saver(tmp_path, Writers(2**32)).save(1)
    assert not list(tmp_path.glob(".part_*"))


def run_behind(model: Path, folder: Path, *, behind: bool, name: str) -> None:
    data = write_rows(folder / "rows.parquet", sums(12))
    saves = {"trainer.save_freq": 1, "trainer.total_training_steps": 3, "data.train_batch_size": 2}
    run_sft(sft_config(model, data, folder / name, {**saves, "trainer.async_save": behind}), [])


def weights_of(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run / f"global_step_{step}" / "actor" / "huggingface" / "model.safetensors")


def test_checkpoints_written_behind_are_those_written_at_once(tiny_model_dir: Path, tmp_path: Path) -> None:
    for behind in (False, True):
        run_behind(tiny_model_dir, tmp_path, behind=behind, name=f"behind {behind}")
    for step in (1, 2, 3):
        one, other = (weights_of(tmp_path / f"behind {behind}", step) for behind in (False, True))
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert (tmp_path / "behind True" / LATEST).read_text() == "3"
    assert not list((tmp_path / "behind True").glob(".part_*"))


def test_an_error_behind_ends_the_run_and_it_goes_on_from_the_checkpoint_before(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    write = HFFolder._write_files

    def second_fails(folder: HFFolder, buckets: Any) -> None:
        written.append(folder)
        if len(written) == 2:
            raise CheckpointError("No space left on device")
        write(folder, buckets)

    monkeypatch.setattr(HFFolder, "_write_files", second_fails)
    with pytest.raises(
        CheckpointError, match=r"global_step_2: No space left on device\. The one of step 1 is untouched"
    ):
        run_behind(tiny_model_dir, tmp_path, behind=True, name="run")
    assert (tmp_path / "run" / LATEST).read_text() == "1"
    monkeypatch.undo()
    run_behind(tiny_model_dir, tmp_path, behind=True, name="run")
    run_behind(tiny_model_dir, tmp_path, behind=False, name="whole")
    one, other = (weights_of(tmp_path / name, 3) for name in ("run", "whole"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
