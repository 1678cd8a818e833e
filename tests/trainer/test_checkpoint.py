"""Checkpoints are whole or absent."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from agentrl.errors import CheckpointError
from agentrl.trainer.checkpoint import (
    DATA_FILE,
    LATEST,
    STATE_FILE,
    CheckpointManager,
    check_complete,
    load_state,
    save_state,
)


def fill(value: int):
    def write(folder: Path) -> None:
        (folder / "actor").mkdir()
        (folder / "actor" / "weights").write_text(str(value))
        save_state(folder / DATA_FILE, {"cursor": value})
        save_state(folder / STATE_FILE, {"step": value})

    return write


def full_disk(folder: Path) -> None:
    (folder / "actor").mkdir()
    (folder / "actor" / "half").write_text("half a file")
    raise OSError(errno.ENOSPC, "No space left on device", str(folder / "actor" / "half"))


def test_saves_and_finds_the_newest(tmp_path):
    manager = CheckpointManager(tmp_path)
    assert manager.latest() is None
    manager.save(1, fill(1))
    manager.save(2, fill(2))
    assert manager.latest() == tmp_path / "global_step_2"
    assert (tmp_path / LATEST).read_text() == "2"
    assert load_state(tmp_path / "global_step_2" / STATE_FILE) == {"step": 2}


def test_keeps_only_as_many_as_asked(tmp_path):
    manager = CheckpointManager(tmp_path, keep=2)
    for step in (2, 9, 10):
        manager.save(step, fill(step))
    assert sorted(path.name for path in tmp_path.glob("global_step_*")) == ["global_step_10", "global_step_9"]


def test_full_disk_leaves_the_previous_checkpoint(tmp_path):
    manager = CheckpointManager(tmp_path, keep=1)
    manager.save(1, fill(1))
    with pytest.raises(CheckpointError, match=r"No space left.*step 1 is untouched") as caught:
        manager.save(2, full_disk)
    assert caught.value.exit_code == 4
    assert manager.latest() == tmp_path / "global_step_1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_1", LATEST]


def test_saving_a_step_again_replaces_it(tmp_path):
    manager = CheckpointManager(tmp_path)
    manager.save(1, fill(1))
    manager.save(1, fill(7))
    assert load_state(tmp_path / "global_step_1" / STATE_FILE) == {"step": 7}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_1", LATEST]


def test_a_killed_save_is_never_loaded_and_is_cleaned_up(tmp_path):
    manager = CheckpointManager(tmp_path)
    manager.save(1, fill(1))

    def killed(folder: Path) -> None:
        fill(2)(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        manager.save(2, killed)
    (leftover,) = tmp_path.glob(".part_*")
    assert manager.latest() == tmp_path / "global_step_1"
    with pytest.raises(CheckpointError, match="half-written"):
        check_complete(leftover)
    manager.save(2, fill(2))
    assert not list(tmp_path.glob(".part_*"))


def test_killed_while_a_checkpoint_of_the_same_step_takes_its_place(tmp_path):
    manager = CheckpointManager(tmp_path)
    folder = manager.save(1, fill(1))
    folder.rename(tmp_path / ".part_old_global_step_1")
    assert load_state(manager.latest() / STATE_FILE) == {"step": 1}


def test_a_whole_checkpoint_that_was_set_aside_is_no_leftover(tmp_path):
    """A run that resumes from another path cleans the folder too, and looks for no newest checkpoint first."""
    manager = CheckpointManager(tmp_path)
    manager.save(1, fill(1)).rename(tmp_path / ".part_old_global_step_1")
    manager.remove_leftovers()
    assert load_state(manager.latest() / STATE_FILE) == {"step": 1}
    assert not list(tmp_path.glob(".part_*"))


@pytest.mark.parametrize("missing", ["actor", DATA_FILE, STATE_FILE])
def test_an_incomplete_folder_is_refused(tmp_path, missing):
    manager = CheckpointManager(tmp_path)
    folder = manager.save(3, fill(3))
    if missing == "actor":
        (folder / "actor" / "weights").unlink()
        (folder / "actor").rmdir()
    else:
        (folder / missing).unlink()
    with pytest.raises(CheckpointError, match=f"lacks {missing}"):
        manager.latest()


def test_a_step_that_is_not_there_is_told_with_those_that_are(tmp_path):
    manager = CheckpointManager(tmp_path / "run")
    manager.folder.mkdir()
    for step in (9, 10, 12):
        manager.save(step, fill(step))
    (manager.folder / "global_step_12" / DATA_FILE).unlink()
    for wrong in ("global_step_11", "global_step_12", "."):
        with pytest.raises(CheckpointError, match=r"; .*/run has global_step_9, global_step_10$"):
            check_complete(manager.folder / wrong)


def test_resume_modes(tmp_path):
    manager = CheckpointManager(tmp_path / "run")
    manager.folder.mkdir()
    folder = manager.save(3, fill(3))
    assert manager.find("disable", None) is None
    assert manager.find("auto", None) == folder
    assert manager.find("resume_path", str(folder)) == folder
    with pytest.raises(CheckpointError, match="does not exist"):
        manager.find("resume_path", str(tmp_path / "nowhere"))


def test_a_damaged_pointer_or_state_is_a_readable_error(tmp_path):
    manager = CheckpointManager(tmp_path)
    folder = manager.save(3, fill(3))
    whole = (folder / STATE_FILE).read_bytes()
    (folder / STATE_FILE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="cannot read"):
        load_state(folder / STATE_FILE)
    (tmp_path / LATEST).write_text("three")
    with pytest.raises(CheckpointError, match="'three'"):
        manager.latest()


def test_a_full_disk_inside_torch_save(tmp_path):
    with pytest.raises(CheckpointError):
        save_state(Path("/dev/full"), {"tensor": torch.zeros(1 << 20)})
