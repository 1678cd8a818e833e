"""Models that start on the meta device are those that are loaded whole, bit for bit; a rank reads only its part."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from mesh_ranks import FAMILIES, by_mesh
from meta_ranks import PIECE_BYTES, started_whole, world_of
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from warm_commands import warm_commands

from agentrl.config.actor import ModelConfig
from agentrl.errors import ConfigError
from agentrl.testing.models import build_tiny_classifier, build_tiny_model
from agentrl.workers.loading import start_causal_lm
from agentrl.workers.tensor_files import TensorFiles

pytestmark = pytest.mark.timeout(900)  # the first test starts the ranks of all
CORE = ("qwen2", "qwen3", "llama", "qwen3_moe")
ALONE = [
    *(f"actor/{family}/" for family in CORE),
    *("critic/qwen3_moe/", "critic/qwen2/", "lora/qwen3_moe/", "lora/qwen2/", "reward_model/qwen3/", "sft/llama/"),
]
SPREAD = [
    *(f"actor/{family}/shard 2" for family in CORE),
    *("lora/qwen3_moe/shard 2", "critic/qwen3_moe/shard 2"),
]
SLOW = [
    *(f"actor/{family}/shard 2 x tp 2" for family in CORE),
    *("reward_model/qwen3_moe/shard 2", "actor/qwen2/replicate 2", "actor/qwen3/shard 4", "critic/qwen2/sp 2 x tp 2"),
    *("actor/llama/replicate 2 x tp 2", "actor/llama/tp 2"),
]
SAVED = ["save/llama/", "save/llama/shard 2", "save/qwen3_moe/", "save/qwen3_moe/shard 2"]
SLOW_SAVED = "save/llama/shard 2 x tp 2"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("families")
    for family in CORE:
        build_tiny_model(folder / family, family, **FAMILIES[family])
        build_tiny_classifier(folder / f"{family}_classifier", family, **FAMILIES[family])
    return folder


class Found:
    """By job, what each rank found; the quick jobs are done together, and so are the slow ones."""

    def __init__(self, models: Path, folder: Path) -> None:
        self._models, self._folder = models, folder
        self._known: dict[str, list[Any]] = {}

    def __getitem__(self, job: str) -> list[Any]:
        if job not in self._known:
            slow = [*SLOW, SLOW_SAVED]
            output = Path(tempfile.mkdtemp(dir=self._folder)) / "found"  # ranks that failed left files
            self._known |= find(self._models, output, slow if job in slow else [*ALONE, *SPREAD, *SAVED])
        return self._known[job]


@pytest.fixture(scope="module")
def found(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return Found(models, tmp_path_factory.mktemp("found"))


def find(models: Path, output: Path, jobs: Sequence[str]) -> dict[str, list[Any]]:
    """One start of ranks for each mesh."""
    script = Path(__file__).with_name("meta_ranks.py")
    with subprocess.Popen(
        [str(warm_commands() / "python"), str(script), str(models), str(output), *jobs],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as ranks:
        try:
            errors = ranks.communicate(timeout=850)[1]
        except BaseException:
            os.killpg(ranks.pid, signal.SIGKILL)
            raise
    assert ranks.returncode == 0, errors[-5000:]
    found: dict[str, list[Any]] = {}
    for number, own in enumerate(by_mesh(jobs)):
        parts = [torch.load(f"{output}{number}.{rank}", weights_only=True) for rank in range(world_of(own[0]))]
        found |= {job: [part[job] for part in parts] for job in own}
    return found


def slow(*values: str) -> list[Any]:
    return [pytest.param(*value.split(" of "), marks=pytest.mark.slow, id=value) for value in values]


@pytest.mark.parametrize("job", [*ALONE, *SPREAD, *slow(*SLOW)])
def test_both_ways_give_the_same_weights(job: str, found: Found) -> None:
    """Parameters, buffers, heads, adapters and the random state after them."""
    assert [rank["odd"] for rank in found[job]] == [[]] * len(found[job])


@pytest.mark.parametrize(
    ("mesh", "family"),
    [
        *(("shard 2", family) for family in CORE),
        *slow(*(f"shard 2 x tp 2 of {family}" for family in CORE)),
    ],
)
def test_a_rank_reads_its_part_in_small_pieces(family: str, mesh: str, found: Found, models: Path) -> None:
    """Every byte is read by one rank, but for what a mesh holds twice: norms, and what no plan cuts."""
    ranks = [rank["reads"] for rank in found[f"actor/{family}/{mesh}"]]
    held = {name: t.numel() * 4 for name, t in load_file(models / family / "model.safetensors").items()}
    total = sum(map(sum, ranks))
    assert max(map(max, ranks)) <= PIECE_BYTES
    if mesh == "shard 2":
        assert total == sum(held.values())
        assert max(map(sum, ranks)) <= 0.51 * total
    else:
        whole = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
        uncut = sum(size for name, size in held.items() if not whole & set(name.split(".")) or "experts" in name)
        assert sum(held.values()) < total <= sum(held.values()) + uncut


@pytest.mark.parametrize("job", [*SAVED, *slow(SLOW_SAVED)])
def test_a_checkpoint_in_the_background_is_of_the_moment_when_it_began(job: str, found: Found) -> None:
    """An update meanwhile changes weights and moments, and not what is written; and the checkpoint resumes."""
    assert [rank["odd"] for rank in found[job]] == [[]] * len(found[job])


@pytest.mark.parametrize(
    "jobs", [SAVED[:2], SAVED[2:], pytest.param([*SAVED[:2], SLOW_SAVED], marks=pytest.mark.slow)], ids=" ".join
)
@pytest.mark.parametrize("how", ["at once", "behind/huggingface"])
def test_the_model_folder_is_the_same_for_any_number_of_ranks(
    jobs: Sequence[str], how: str, found: Found, models: Path
) -> None:
    assert all(found[job] for job in jobs)
    _, family, _ = jobs[0].split("/")
    folders = [models / "saved" / f"{family} {job.split('/')[2]}" / how for job in jobs]
    first = {file.name: file.read_bytes() for file in folders[0].iterdir()}
    assert len([name for name in first if name.endswith(".safetensors")]) > 2
    for folder in folders[1:]:
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == first
    written = AutoModelForCausalLM.from_pretrained(folders[0]).state_dict()
    for name, tensor in AutoModelForCausalLM.from_pretrained(models / family).state_dict().items():
        assert torch.equal(tensor, written[name]), name
    index = json.loads(first["model.safetensors.index.json"])
    held = {file.name: load_file(file) for file in folders[0].glob("*.safetensors")}
    assert index["weight_map"] == {name: file for file, tensors in held.items() for name in tensors}
    assert index["metadata"]["total_size"] == sum(t.nbytes for tensors in held.values() for t in tensors.values())


def split(folder: Path) -> None:
    """Into two files and an index."""
    weights = load_file(folder / "model.safetensors")
    parts: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for number, (name, tensor) in enumerate(weights.items()):
        parts[f"model-{1 + number % 2:05}-of-00002.safetensors"][name] = tensor
    (folder / "model.safetensors").unlink()
    for file, tensors in parts.items():
        save_file(tensors, folder / file, metadata={"format": "pt"})
    places = {name: file for file, tensors in parts.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def test_several_files(models: Path, tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    shutil.copytree(models / "qwen3_moe", tmp_path / "parts")
    split(tmp_path / "parts")
    one, parts = (
        make_actor(make_config(path)).model.full_weights() for path in (models / "qwen3_moe", tmp_path / "parts")
    )
    assert one.keys() == parts.keys()
    assert all(torch.equal(tensor, parts[name]) for name, tensor in one.items())


def test_a_file_of_the_index_is_missing(models: Path, tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    shutil.copytree(models / "llama", tmp_path / "parts")
    split(tmp_path / "parts")
    (tmp_path / "parts" / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model-00002-of-00002|holds no whole model"):
        make_actor(make_config(tmp_path / "parts"))


def test_a_weight_of_another_shape(models: Path, tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    shutil.copytree(models / "llama", tmp_path / "other")
    weights = load_file(tmp_path / "other" / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(31)
    save_file(weights, tmp_path / "other" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"'model\.norm\.weight' has the shape \[31\], wanted \[32\]"):
        make_actor(make_config(tmp_path / "other"))


def test_an_expert_is_missing(models: Path, tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    shutil.copytree(models / "qwen3_moe", tmp_path / "other")
    weights = load_file(tmp_path / "other" / "model.safetensors")
    del weights["model.layers.1.mlp.experts.2.up_proj.weight"]
    save_file(weights, tmp_path / "other" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"layers\.1\.mlp\.experts"):
        make_actor(make_config(tmp_path / "other"))


@pytest.mark.parametrize("equal", [True, False])
def test_files_that_hold_a_tied_weight_twice(
    equal: bool, models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Equal: one weight. Not equal: two, as transformers has it, although the configuration ties them."""
    shutil.copytree(models / "qwen2", tmp_path / "twice")
    weights = load_file(tmp_path / "twice" / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] + (0.0 if equal else 1.0)
    save_file(weights, tmp_path / "twice" / "model.safetensors", metadata={"format": "pt"})
    lm, started = start_causal_lm(ModelConfig(path=str(tmp_path / "twice")), torch.float32)
    assert (started is not None) == equal
    assert (lm.lm_head.weight is lm.model.embed_tokens.weight) == equal
    assert ("but the files hold two" in caplog.text) != equal


def test_weights_that_are_no_safetensors_are_loaded_whole(
    models: Path, tmp_path: Path, make_config: Any, make_actor: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(models / "llama", tmp_path / "bin")
    torch.save(load_file(tmp_path / "bin" / "model.safetensors"), tmp_path / "bin" / "pytorch_model.bin")
    (tmp_path / "bin" / "model.safetensors").unlink()
    lm, started = start_causal_lm(ModelConfig(path=str(tmp_path / "bin")), torch.float32)
    assert started is None
    assert "every rank loads the whole model" in caplog.text
    assert "it has no safetensors files" in caplog.text
    assert lm.device.type == "cpu"


def test_a_reference_in_half_precision(models: Path, make_config: Any, make_actor: Any) -> None:
    config = make_config(models / "llama")
    config.actor_rollout_ref.ref.fsdp_config.model_dtype = "bfloat16"
    got = make_actor(config, "ref").model.full_weights()
    with started_whole():
        expected = make_actor(config, "ref").model.full_weights()
    assert {tensor.dtype for tensor in got.values()} == {torch.bfloat16}
    assert all(torch.equal(tensor, got[name]) for name, tensor in expected.items())


def test_nothing_is_read_before_the_model_is_sharded(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*args: Any) -> None:
        raise AssertionError("a weight was read")

    monkeypatch.setattr(TensorFiles, "read", read)
    lm, _ = start_causal_lm(ModelConfig(path=str(models / "qwen3_moe")), torch.float32)
    assert {parameter.device.type for parameter in lm.parameters()} == {"meta"}
    assert {buffer.device.type for buffer in lm.buffers()} == {"cpu"}
