"""A checkpoint holds what `checkpoint.save_contents` names, and a run that resumes takes what `load_contents` names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig

from agentrl.config.checkpoint import CheckpointConfig
from agentrl.errors import CheckpointError
from agentrl.testing.batches import random_batch
from agentrl.testing.models import build_tiny_model
from agentrl.trainer.checkpoint import CheckpointManager
from agentrl.workers import checkpoints, shards

BATCH = random_batch([(3, 5), (7, 1), (1, 9), (4, 4)], 261)


def saving(make_config: Any, *parts: str, load: list[str] | None = None, path: Path | None = None) -> Any:
    contents = CheckpointConfig(save_contents=list(parts), load_contents=load)  # type: ignore[arg-type]
    return make_config(path, checkpoint=contents)


def tensors(worker: Any) -> dict[str, torch.Tensor]:
    named = {**worker.model.state_tensors(), **worker.model.optimizer.state_tensors()}
    return {name: getattr(t, "full_tensor", t.clone)().clone() for name, t in named.items()}


def saved(worker: Any, folder: Path, *, background: bool = False) -> set[str]:
    worker.save_checkpoint(str(folder), background)
    worker.finish_checkpoint()
    return {path.name for path in folder.iterdir()}


STATE_FILES = {".metadata", "__0_0.distcp"}
RANDOM = {"random_state_rank_0.pt"}


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(
    ("parts", "files"),
    [
        (["model", "optimizer", "extra", "hf_model"], STATE_FILES | RANDOM | {"huggingface"}),
        (["model", "optimizer", "extra"], STATE_FILES | RANDOM),
        (["model"], STATE_FILES),
        (["hf_model"], {"huggingface"}),
    ],
)
def test_what_is_written(
    parts: list[str], files: set[str], background: bool, tmp_path: Path, make_config: Any, make_actor: Any
) -> None:
    worker = make_actor(saving(make_config, *parts))
    assert saved(worker, tmp_path / "actor", background=background) == files
    written = sum(
        path.stat().st_size for path in (tmp_path / "actor").rglob("*") if path.suffix in (".distcp", ".safetensors")
    )
    assert worker.checkpoint_bytes() <= written <= 1.5 * worker.checkpoint_bytes() + 2**17


def test_a_run_goes_on_with_fresh_moments_where_only_weights_are_read(
    tmp_path: Path, make_config: Any, make_actor: Any
) -> None:
    first = make_actor(saving(make_config, "model", "optimizer", "extra"))
    first.update_actor(BATCH)
    saved(first, tmp_path / "actor")
    second = make_actor(saving(make_config, "model", load=["model"]))
    second.load_checkpoint(str(tmp_path / "actor"))
    one, other = tensors(first), tensors(second)
    for name, value in one.items():
        if name.startswith(("exp_avg", "step")):
            assert not other[name].any(), name
        else:
            assert torch.equal(value, other[name]), name
    assert second.updates_done == 0


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        (["model"], r"holds no optimizer, but only model: .* Set checkpoint\.load_contents=\[model\]$"),
        (["model", "extra"], r"holds no optimizer, but only model, extra: .*load_contents=\[model,extra\]$"),
        (["optimizer", "extra"], r"holds no model, but only optimizer, extra: .* trainer\.resume_mode=disable$"),
    ],
)
def test_a_part_that_was_not_saved_is_named(
    parts: list[str], wanted: str, tmp_path: Path, make_config: Any, make_actor: Any
) -> None:
    saved(make_actor(saving(make_config, *parts)), tmp_path / "actor")
    with pytest.raises(CheckpointError, match=wanted):
        make_actor().load_checkpoint(str(tmp_path / "actor"))


@pytest.mark.parametrize(
    ("parts", "load", "key"),
    [
        (["hf_model"], None, r"save_contents` is \[hf_model\].* resume_mode=disable and the model .*/huggingface$"),
        (["hf_model", "extra"], None, r"save_contents` is \[hf_model, extra\]"),
        (["optimizer", "extra"], None, r"save_contents` is \[optimizer, extra\], .* Wanted model in it$"),
        (["model", "optimizer"], ["optimizer"], r"load_contents` is \[optimizer\]"),
    ],
)
def test_a_run_never_goes_on_with_its_first_weights(
    parts: list[str], load: list[str] | None, key: str, tmp_path: Path, make_config: Any, make_actor: Any
) -> None:
    """It would say `resumed after step 10`, and train the model that it began with."""
    worker = make_actor(saving(make_config, *parts, load=load))
    saved(worker, tmp_path / "actor")
    with pytest.raises(CheckpointError, match=key.replace(" resume_mode", r" trainer\.resume_mode")):
        worker.load_checkpoint(str(tmp_path / "actor"))


def test_a_folder_for_other_programs_alone_resumes_no_run(tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    saved(make_actor(saving(make_config, "hf_model")), tmp_path / "actor")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        make_actor().load_checkpoint(str(tmp_path / "actor"))


def test_the_folder_has_the_data_type_of_the_model(tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    """Weights are float32 while they learn; files of a bfloat16 model are bfloat16, as they were."""
    source = build_tiny_model(tmp_path / "model", "qwen3_moe")
    config = AutoConfig.from_pretrained(source)
    config.dtype = torch.bfloat16
    config.save_pretrained(source)
    worker = make_actor(saving(make_config, "hf_model", path=source))
    saved(worker, tmp_path / "actor")
    written = load_file(tmp_path / "actor" / "huggingface" / "model.safetensors")
    for name, tensor in load_file(source / "model.safetensors").items():
        assert torch.equal(written[name], tensor.to(torch.bfloat16)), name
    assert AutoConfig.from_pretrained(tmp_path / "actor" / "huggingface").dtype == torch.bfloat16


def test_checkpoints_of_before_still_resume(tmp_path: Path, make_actor: Any) -> None:
    """Without a list of contents: shards, random state and the number of updates, as all runs wrote them."""
    first = make_actor()
    first.update_actor(BATCH)
    shards.state_dict_saver.save(
        {
            "model": first.model.state_tensors(),
            "optimizer": first.model.optimizer.state_tensors(),
            "updates_done": torch.tensor(1),
        },
        checkpoint_id=str(tmp_path),
    )
    second = make_actor()
    second.load_checkpoint(str(tmp_path))
    assert second.updates_done == 1
    expected = tensors(first)
    assert all(torch.equal(value, expected[name]) for name, value in tensors(second).items())


def test_an_error_in_the_background_is_raised_when_it_is_waited_for(
    tmp_path: Path, make_actor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_actor()

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shards.torch, "save", full)
    worker.save_checkpoint(str(tmp_path / "actor"), background=True)
    with pytest.raises(CheckpointError, match="No space left"):
        worker.finish_checkpoint()
    worker.finish_checkpoint()  # it is told once
    monkeypatch.undo()
    assert saved(worker, tmp_path / "again", background=True) >= STATE_FILES


def test_nothing_counts_before_it_is_whole(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    manager.begin(3)
    assert manager.latest() is None


def test_a_file_that_another_rank_renames_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 flushes the folder while rank 1 gives `.model-00002-of-00002.safetensors.part` its name."""
    for name in ("a.part", "b"):
        (tmp_path / name).write_text("weights")
    flushed: list[Path] = []

    def flush(path: Path) -> None:
        if path.name == "a.part":
            path.rename(tmp_path / "a")
            path.open().close()
        flushed.append(path)

    monkeypatch.setattr(checkpoints, "flush", flush)
    checkpoints._flush(tmp_path)
    assert tmp_path / "b" in flushed


@pytest.mark.parametrize("background", [False, True])
def test_a_rank_that_cannot_write_takes_part_in_what_others_gather(
    background: bool, tmp_path: Path, make_actor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own disk is full: without it, each of the others would wait for its shards of the model folder."""

    def refuse(*_arguments: Any) -> Any:
        raise CheckpointError("No space left on device")

    monkeypatch.setattr(checkpoints, "stage_shards" if background else "save_shards", refuse)
    worker = make_actor()
    with pytest.raises(CheckpointError, match="No space left"):
        worker.save_checkpoint(str(tmp_path / "actor"), background)
    worker.finish_checkpoint()
    assert (tmp_path / "actor" / "huggingface" / "model.safetensors").is_file()
