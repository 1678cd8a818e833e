"""`agentrl plan`, and `agentrl train --dry-run` of recipes for GPUs on a machine without any."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.placement.model_shape import PUBLISHED
from agentrl.testing.models import byte_tokenizer

ROOT = Path(__file__).resolve().parents[2]
GPU_RECIPES = {
    path.stem: found[1]
    for path in sorted((ROOT / "configs" / "gpu").glob("*.yaml"))
    if (found := re.search(r"^# cluster: (\S+)$", path.read_text(), re.MULTILINE))
}
"""Those of one model each, with the machines that they are for."""
runner = CliRunner()
RUN = ["algorithm.adv_estimator=grpo", "data.train_files=rows.parquet", "actor_rollout_ref.rollout.n=8"]
SEVEN = [
    *RUN,
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B",
    "actor_rollout_ref.model.enable_gradient_checkpointing=true",
]


def plan(*arguments: str, code: int = 0) -> str:
    result = runner.invoke(app, ["plan", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout


def test_there_are_recipes_for_every_model_task_and_size() -> None:
    assert len(GPU_RECIPES) >= 12
    for task in ("gsm8k_tool", "search"):
        for model in ("qwen2.5_0.5b", "qwen2.5_1.5b", "qwen2.5_3b", "qwen2.5_7b", "qwen3_8b", "qwen3_30b_a3b"):
            assert any(name.startswith(f"{task}_{model}_") for name in GPU_RECIPES), f"{task} {model}"
    assert {"1x1x24", "1x8x80", "2x8x80", "4x8x80"} <= set(GPU_RECIPES.values())


@pytest.mark.parametrize("recipe", GPU_RECIPES)
def test_a_gpu_recipe_can_work_where_it_is_for(recipe: str) -> None:
    said = plan(f"gpu/{recipe}", "--cluster", GPU_RECIPES[recipe])
    for topic in ("model:", "training:", "engines:", "cluster:", "machine", "memory:", "KV cache:", "time:", "tokens:"):
        assert f"\n{topic}" in f"\n{said}", topic
    assert "tight" not in said
    assert "published sizes of qwen" in said


def test_what_cannot_work_is_exit_code_1() -> None:
    said = plan(*SEVEN, "--cluster", "1x1x24", code=1)
    assert "cannot work:   memory: update needs" in said
    assert "7.62 billion x 16 = 113.5 GiB" in said
    said = plan(*SEVEN, "trainer.n_gpus_per_node=8", "--cluster", "1x4x80", code=1)
    assert "cannot work:   trainer.n_gpus_per_node: 8 ranks need 8 GPUs, but --cluster 1x4x80 has 4" in said


def test_a_plan_without_a_place_for_engines_counts_none() -> None:
    said = plan(*SEVEN, "actor_rollout_ref.rollout.tensor_model_parallel_size=2", "--cluster", "1x1x24", code=1)
    assert "engines:       no sglang server has a place: see below\n" in said
    assert "machine 0:     rank of global_pool on GPU 0\n" in said
    assert "but an engine is on one machine, and the largest of --cluster 1x1x24 has 1 GPU: wanted 1\n" in said


def test_the_manager_prime_is_named_where_it_has_processes(tmp_path: Path) -> None:
    prime = [*SEVEN, "trainer.n_gpus_per_node=8", "--cluster", "1x8x80", "reward_model.reward_manager=prime"]
    built_in = "naive manager (prime has processes for a custom_reward_function alone), score function by data_source"
    assert f"reward:        {built_in}\n" in plan(*prime)
    own = tmp_path / "own.py"
    own.write_text("def compute_score(*arguments):\n    return 0.0\n")
    said = plan(*prime, f"custom_reward_function.path={own}")
    assert f"reward:        prime manager, score function compute_score in {own}\n" in said


def test_a_gpu_whose_speed_nobody_knows_is_named() -> None:
    said = plan(*SEVEN, "trainer.n_gpus_per_node=8", "--cluster", "1x8x80@H300")
    assert "time:          not known: agentrl knows no peak of H300, but those of GB200, GH200, B200, H20, " in said


def test_wrong_configurations_and_clusters_are_exit_code_2() -> None:
    assert runner.invoke(app, ["plan", *SEVEN, "--cluster", "4x8"]).exit_code == 2
    result = runner.invoke(app, ["plan", *SEVEN, "trainer.seeed=1", "--cluster", "1x8x80"])
    assert (result.exit_code, "Did you mean 'trainer.seed'?" in result.stderr) == (2, True)
    result = runner.invoke(app, ["train", *SEVEN, "--cluster", "1x8x80"])
    assert (result.exit_code, "--cluster: is only for --dry-run" in result.stderr) == (2, True)


def test_a_cluster_without_gpus_is_planned_as_today(tiny_model_dir: Path) -> None:
    said = plan(*RUN, f"actor_rollout_ref.model.path={tiny_model_dir}", "--cluster", "1x0")
    assert "training:      1 rank in Ray actors on 1 machine, cpu, FSDP2, float32; actor" in said
    assert "engines:       1 embedded server started on 127.0.0.1, free ports" in said
    assert re.search(r"memory: +about 0\.\d GiB in the rank \(update\), beside Python and torch", said)


def test_auto_means_what_the_planned_machines_have() -> None:
    said = plan(
        *SEVEN,
        "trainer.n_gpus_per_node=8",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
        "--cluster",
        "1x8x80",
    )
    assert "cuda, FSDP2, bfloat16" in said
    assert "4 sglang servers of 2 GPUs on the GPUs of global_pool, in turns" in said
    vllm = ["trainer.n_gpus_per_node=8", "actor_rollout_ref.rollout.name=vllm"]
    assert "8 vllm servers" in plan(*SEVEN, *vllm, "--cluster", "1x8x80")


def test_a_gpu_that_is_named_is_the_one_of_the_forecast() -> None:
    own = [*SEVEN, "trainer.n_gpus_per_node=8"]
    assert "s on A100 (an update" in plan(*own, "--cluster", "1x8x80@A100")
    assert "s on H100 (an update" in plan(*own, "--cluster", "1x8x80")
    assert "time:          not known" in plan(*own, "--cluster", "1x8x64")


def test_a_model_that_nobody_knows_is_placed_without_its_memory() -> None:
    said = plan(*RUN, "actor_rollout_ref.model.path=somebody/unheard-of", "--cluster", "1x1x80")
    assert "memory:        not known: 'somebody/unheard-of' is no folder" in said


def test_a_forecast_names_the_models_that_it_lacks() -> None:
    own = [*SEVEN, "trainer.n_gpus_per_node=8", "--cluster", "1x8x80"]
    scored = ["reward_model.enable=true", "reward_model.model.path=somebody/judge"]
    assert "memory:        without the reward model: the sizes of 'somebody/judge' are not known" in plan(*scored, *own)
    assert "without the" not in plan(*own)


@pytest.fixture
def gpu_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the rows that the recipes name, and a hub's cache with their models, without weights."""
    cache = tmp_path / "hub"
    for name in (
        "Qwen2.5-0.5B-Instruct",
        "Qwen2.5-1.5B-Instruct",
        "Qwen2.5-3B-Instruct",
        "Qwen2.5-7B-Instruct",
        "Qwen3-8B",
        "Qwen3-30B-A3B",
    ):
        folder = cache / f"models--Qwen--{name}" / "snapshots" / "1"
        folder.mkdir(parents=True)
        (folder.parents[1] / "refs").mkdir()
        (folder.parents[1] / "refs" / "main").write_text("1")
        byte_tokenizer().save_pretrained(folder)
        sizes = {**PUBLISHED[name.lower().removesuffix("-instruct")], "max_position_embeddings": 32768}
        (folder / "config.json").write_text(
            json.dumps({key: value for key, value in sizes.items() if value is not None})
        )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    row = {
        "prompt": [{"role": "user", "content": "40 + 2"}],
        "data_source": "openai/gsm8k",
        "agent_name": "tool_agent",
        "reward_model": {"style": "rule", "ground_truth": "42"},
    }
    for task, source in (("gsm8k", "openai/gsm8k"), ("search", "searchR1_nq")):
        (tmp_path / "data" / task).mkdir(parents=True)
        truth = {"target": ["42"]} if task == "search" else "42"
        own = {**row, "data_source": source, "reward_model": {"style": "rule", "ground_truth": truth}}
        for split in ("train", "test"):
            pq.write_table(pa.Table.from_pylist([own] * 128), tmp_path / "data" / task / f"{split}.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_dry_run_of_every_gpu_recipe_prints_the_plan(gpu_files: Path) -> None:
    for recipe, cluster in GPU_RECIPES.items():
        result = runner.invoke(app, ["train", f"gpu/{recipe}", "--dry-run", "--cluster", cluster])
        assert result.exit_code == 0, f"{recipe}: {result.stderr}"
        assert "# train rows:    128, 1 step per epoch" in result.stdout
        assert re.search(r"# memory: +update, ", result.stdout)
        assert re.search(r"# engines: +\d sglang server", result.stdout)


def test_without_its_machines_a_recipe_is_planned_too_and_refused_with_the_reason(gpu_files: Path) -> None:
    result = runner.invoke(app, ["train", "gpu/gsm8k_tool_qwen2.5_7b_8gpu", "--dry-run"])
    assert result.exit_code == 2
    assert "# machine 0:     ranks of global_pool on GPUs 0-7; engines on 0-1, 2-3, 4-5, 6-7" in result.stdout
    assert "trainer.device: got cuda, and 8 ranks need 8 GPUs, but this machine has none" in result.stderr
    assert "cannot work:   trainer.device: got cuda" in plan("gpu/gsm8k_tool_qwen2.5_7b_8gpu", code=1)


@pytest.mark.timeout(60)  # Ray itself tries `ray://` for longer
@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_is_named_and_not_there(address: str) -> None:
    result = runner.invoke(app, ["plan", *SEVEN, f"ray_init.address={address}"])
    assert result.exit_code == 2
    assert "no Ray cluster can be reached there" in result.stderr
