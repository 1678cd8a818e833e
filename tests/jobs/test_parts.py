"""Finished batches survive, and belong to one job and one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.errors import CheckpointError, UserInputError
from agentrl.jobs.parts import JobParts, identity_of


def test_batches_are_found_by_the_next_start_and_deleted_with_the_output(tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    with JobParts(output, {"k": 1}) as parts:
        parts.keep(0, [["a"]])
        assert parts.read(1) is None
    with JobParts(output, {"k": 1}) as parts:
        assert parts.read(0) == [["a"]]
        parts.finish((output, lambda path: path.write_text("done")))
    assert output.read_text() == "done"
    assert list(tmp_path.iterdir()) == [output]


def test_batches_of_another_job_are_not_mixed_in(tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    with JobParts(output, {"data.n_samples": 4, "seed": 1}) as parts:
        parts.keep(0, 1)
    with (
        pytest.raises(UserInputError, match=r"another job \(data\.n_samples 4 there, 2 here\).*--overwrite"),
        JobParts(output, {"data.n_samples": 2, "seed": 1}),
    ):
        pass
    with JobParts(output, {"data.n_samples": 2, "seed": 1}, overwrite=True) as parts:
        assert parts.read(0) is None


def test_an_output_is_kept_until_the_new_one_is_complete(tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    output.write_text("old")
    with (
        pytest.raises(UserInputError, match=r"already exists: give another output, or --overwrite"),
        JobParts(output, {}),
    ):
        pass

    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with JobParts(output, {}, overwrite=True) as parts:
        parts.keep(0, 1)
        with pytest.raises(CheckpointError, match="No space left"):
            parts.finish((output, fail))
    assert output.read_text() == "old"
    with JobParts(output, {}, overwrite=True) as parts:
        assert parts.read(0) == 1
        parts.finish((output, lambda path: path.write_text("new")))
    assert output.read_text() == "new"


def test_two_processes_do_not_write_one_output(tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    with JobParts(output, {}), pytest.raises(UserInputError, match="by another process"), JobParts(output, {}):
        pass


def test_a_damaged_batch_is_named(tmp_path: Path) -> None:
    with JobParts(tmp_path / "out", {}) as parts:
        (parts.folder / "batch_000000.json").write_text('["cut')
        with pytest.raises(UserInputError, match=r"batch_000000\.json is damaged"):
            parts.read(0)


def test_what_a_job_reads_is_part_of_it(tmp_path: Path) -> None:
    rows, model = tmp_path / "rows", tmp_path / "model"
    rows.write_bytes(b"1")
    model.mkdir()
    (model / "a.safetensors").write_bytes(b"1")
    first = identity_of([str(rows)], str(model))
    assert identity_of([str(rows)], str(model)) == first
    rows.write_bytes(b"2")
    assert identity_of([str(rows)], str(model)) != first
    rows.write_bytes(b"1")
    (model / "a.safetensors").write_bytes(b"22")
    assert identity_of([str(rows)], str(model)) != first
