"""Plans over made-up clusters: who is where, and what cannot work, with its sum."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from made_up import AR, SEVEN, planned, run_of

from agentrl.config import machine
from agentrl.placement import Cluster, plan
from agentrl.placement.lengths import Lengths
from agentrl.placement.of_run import place
from agentrl.placement.verdict import memory_problems

HALF = "Qwen/Qwen2.5-0.5B"
EIGHT = {"trainer__n_gpus_per_node": 8}
SPLIT = {"R__placement": "split"}
POOLS = {
    "algorithm__adv_estimator": "gae",
    "trainer__resource_pools": {"values": {"n_gpus": 2}},
    "trainer__role_pools__critic": "values",
}


def engines(cluster: str, model: str = HALF, **changes: Any) -> list[tuple[int, tuple[int, ...]]]:
    """(machine, GPUs) of each engine of a plan that works."""
    placement = planned(cluster, model, **changes)
    assert not placement.problems
    return [(engine.machine, engine.gpus) for engine in placement.engines]


def ranks(cluster: str, model: str = HALF, **changes: Any) -> list[tuple[str, int, int | None]]:
    """(pool, machine, GPU) of each rank."""
    return [(rank.pool, rank.machine, rank.gpu) for rank in planned(cluster, model, **changes).ranks]


WORKS: list[tuple[str, str, dict[str, Any], str, list[tuple[int, tuple[int, ...]]]]] = [
    ("one card", "1x1x24", {}, "colocated", [(0, (0,))]),
    ("two cards, an engine on each", "1x2x80", {"trainer__n_gpus_per_node": 2}, "colocated", [(0, (0,)), (0, (1,))]),
    (
        "eight cards in pairs",
        "1x8x80",
        {**EIGHT, "R__tensor_model_parallel_size": 2},
        "colocated",
        [(0, (0, 1)), (0, (2, 3)), (0, (4, 5)), (0, (6, 7))],
    ),
    (
        "fewer engines than there is room for",
        "1x8x80",
        {**EIGHT, "R__server__launch": 2},
        "colocated",
        [(0, (0,)), (0, (1,))],
    ),
    (
        "two machines share",
        "2x2x80",
        {"trainer__nnodes": 2, "trainer__n_gpus_per_node": 2, "R__tensor_model_parallel_size": 2},
        "colocated",
        [(0, (0, 1)), (1, (0, 1))],
    ),
    ("engines have what ranks leave", "1x4x80", SPLIT, "split", [(0, (1,)), (0, (2,)), (0, (3,))]),
    ("n_gpus alone means split", "1x4x80", {"R__n_gpus": 2}, "split", [(0, (1,)), (0, (2,))]),
    (
        "a machine of their own",
        "2x8x80",
        {**EIGHT, **SPLIT, "R__tensor_model_parallel_size": 2, "R__n_gpus": 4},
        "split",
        [(1, (0, 1)), (1, (2, 3))],
    ),
    (
        "machines of other sizes",
        "1x4x80,1x2x24",
        SPLIT,
        "split",
        [(0, (0,)), (0, (1,)), (0, (2,)), (0, (3,)), (1, (1,))],
    ),
    ("no GPU at all", "1x0", {}, "cpu", [(0, ())]),
    ("several servers on a CPU", "1x0", {"R__server__launch": 3}, "cpu", [(0, ()), (0, ()), (0, ())]),
    ("running servers", "1x1x24", {"R__server__addresses": ["http://a:1"]}, "given", []),
    (
        "the critic in a pool of its own has no engine",
        "1x4x80",
        {**POOLS, "trainer__n_gpus_per_node": 2},
        "colocated",
        [(0, (0,)), (0, (1,))],
    ),
]


@pytest.mark.parametrize(("cluster", "changes", "mode", "wanted"), [w[1:] for w in WORKS], ids=[w[0] for w in WORKS])
def test_a_plan(cluster: str, changes: dict[str, Any], mode: str, wanted: list[tuple[int, tuple[int, ...]]]) -> None:
    assert engines(cluster, **changes) == wanted
    assert planned(cluster, HALF, **changes).mode == mode


FOURTEEN = {**EIGHT, "R__tensor_model_parallel_size": 8}
CANNOT: list[tuple[str, str, str, dict[str, Any], str]] = [
    (
        "fewer GPUs than ranks",
        "1x4x80",
        HALF,
        EIGHT,
        r"trainer.n_gpus_per_node: 8 ranks need 8 GPUs, but --cluster 1x4x80 has 4: .*; the largest that fits is "
        "trainer.nnodes=1 trainer.n_gpus_per_node=4",
    ),
    (
        "nnodes that the cluster lacks",
        "2x8x80",
        HALF,
        {**EIGHT, "trainer__nnodes": 4},
        r"32 ranks need 32 GPUs, but --cluster 2x8x80 has 16 \(2 machines with 8 GPUs of 80 GiB\).*nnodes=2",
    ),
    (
        "a machine as large as none",
        "4x4x80",
        HALF,
        EIGHT,
        "global_pool needs a machine with 8 GPUs, but the largest of --cluster 4x4x80 has 4.*nnodes=4 .*per_node=4",
    ),
    (
        "pools that do not fit beside each other",
        "2x3x80",
        HALF,
        {**POOLS, "trainer__n_gpus_per_node": 2, "trainer__nnodes": 2},
        r"6 GPUs|no machine of --cluster 2x3x80 \(2 machines with 3 GPUs of 80 GiB\) has 2 free GPUs for the ranks of "
        r"values beside the others \(global_pool 4 \+ values 2\)",
    ),
    ("GPUs where there are none", "2x0", HALF, {"trainer__device": "cuda"}, "got cuda, and 1 rank needs 1 GPU, but"),
    (
        "tensor parallelism that does not divide the ranks",
        "1x8x80",
        HALF,
        {**EIGHT, "R__tensor_model_parallel_size": 3},
        r"got 3, but it does not divide the 8 ranks of a machine \(8 / 3 = 2.67\), and the model has 14 attention "
        r"heads \(14 / 3 = 4.67\).*: wanted 1 or 2",
    ),
    (
        "heads of keys and values",
        "1x8x80",
        "Qwen/Qwen3-30B-A3B",
        {**SPLIT, "R__tensor_model_parallel_size": 6},
        "32 attention heads.*4 heads of keys and values, which neither are a multiple of 6 nor divide it: wanted 1, 2",
    ),
    (
        "an engine larger than a machine",
        "2x4x80",
        "Qwen/Qwen3-8B",
        {"trainer__n_gpus_per_node": 4, "trainer__nnodes": 2, "R__tensor_model_parallel_size": 8},
        "got 8, but an engine is on one machine, and the largest of --cluster 2x4x80 has 4 GPUs: wanted 1, 2 or 4",
    ),
    (
        "split leaves none",
        "1x8x80",
        HALF,
        {**EIGHT, **SPLIT},
        r"got split, but 8 ranks take all 8 GPUs of --cluster 1x8x80 and leave none for engines.*per_node=7 leaves 1.*"
        "placement=colocated",
    ),
    (
        "ports beyond the last one",
        "1x8x80",
        HALF,
        {**EIGHT, "R__server__port": 65530},
        "8 engines from port 65530 on need ports up to 65537, but the last one is 65535: wanted at most 65528",
    ),
    (
        "ranks that do not divide the heads of a published model",
        "1x8x80",
        "Qwen/Qwen2.5-7B-Instruct",
        {**EIGHT, f"{AR}__actor__fsdp_config__tensor_parallel_size": 8},
        r"actor.fsdp_config.tensor_parallel_size: got 8, but the model has 28 attention heads and 4 heads of keys and "
        r"values \(28 / 8 = 3.50\): wanted 1, 2 or 4",
    ),
    (
        "ranks that share rows of a published model",
        "1x8x80",
        "Qwen/Qwen2.5-7B-Instruct",
        {**EIGHT, f"{AR}__actor__fsdp_config__ulysses_sequence_parallel_size": 8},
        r"ulysses_sequence_parallel_size: got 8, but the model has 28 attention heads",
    ),
    (
        "GPUs for half an engine",
        "1x4x80",
        HALF,
        {"R__n_gpus": 3, "R__tensor_model_parallel_size": 2},
        r"n_gpus: got 3, but an engine takes 2 GPUs \(.*tensor_model_parallel_size\): wanted a multiple of 2",
    ),
    (
        "split on one GPU",
        "1x1x80",
        HALF,
        SPLIT,
        r"got split, but 1 rank takes all 1 GPU of --cluster 1x1x80 and leaves none for engines: set "
        r"actor_rollout_ref.rollout.placement=colocated$",
    ),
    (
        "pools and engines together are too many",
        "1x8x80",
        HALF,
        {**POOLS, "trainer__n_gpus_per_node": 4, "R__n_gpus": 4},
        r"n_gpus: 6 GPUs of ranks \+ 4 of engines = 10, but --cluster 1x8x80 has 8: wanted at most 2",
    ),
    (
        "more servers than room",
        "1x4x80",
        HALF,
        {"trainer__n_gpus_per_node": 4, "R__tensor_model_parallel_size": 2, "R__server__launch": 3},
        "server.launch: 3 engines of 2 GPUs need 6, but global_pool, whose GPUs they share, has 4: wanted at most 2",
    ),
    (
        "servers and n_gpus that contradict",
        "1x8x80",
        HALF,
        {"R__n_gpus": 4, "R__server__launch": 2},
        "server.launch: 2 x 1 = 2 GPUs, but actor_rollout_ref.rollout.n_gpus is 4: give one of them",
    ),
    (
        "GPUs that are left on several machines",
        "2x4x80",
        "Qwen/Qwen3-8B",
        {"trainer__nnodes": 2, "trainer__n_gpus_per_node": 2, **SPLIT, "R__tensor_model_parallel_size": 4},
        r"an engine of 4 GPUs is on one machine, but ranks leave 2 \+ 2 .*: wanted 1 or 2",
    ),
    (
        "machines for ranks on CPUs",
        "1x0",
        HALF,
        {"trainer__nnodes": 3},
        "global_pool needs 3 machines, but --cluster 1x0 has 1: lower it to 1, or start Ray on 2 more",
    ),
]


@pytest.mark.parametrize(
    ("cluster", "model", "changes", "wanted"), [case[1:] for case in CANNOT], ids=[case[0] for case in CANNOT]
)
def test_what_cannot_work_is_said_with_its_sum(cluster: str, model: str, changes: dict[str, Any], wanted: str) -> None:
    placement = planned(cluster, model, **changes)
    assert not placement.works
    assert any(re.search(wanted, problem) for problem in placement.problems), placement.problems


def test_all_problems_are_said_at_once() -> None:
    placement = planned("1x2x80", HALF, **EIGHT, R__tensor_model_parallel_size=3)
    assert len(placement.problems) == 2
    assert len(placement.ranks) == 8  # on the machines that it asks for


def problems_of(cluster: str, model: str, **changes: Any) -> list[str]:
    config = run_of(cluster, model, **changes)
    return memory_problems(config, plan(config, Cluster.parse(cluster)), Lengths.most(config))


def test_seven_billion_weights_do_not_fit_on_one_small_card() -> None:
    problem, *_, last = problems_of("1x1x24", "Qwen/Qwen2.5-7B-Instruct")
    assert "on each GPU of global_pool, which has 24: " in problem
    assert "16 bytes a weight (4 weight + 4 gradient + 8 Adam): 7.62 billion x 16 = 113.5 GiB" in problem
    assert re.search(
        r"It fits on 2 machines of 8 GPUs like these with trainer\.nnodes=2 trainer\.n_gpus_per_node=8 ", last
    )


CHECKPOINTING = f"{AR}.model.enable_gradient_checkpointing"
ADVISED: list[tuple[str, str, dict[str, Any], str]] = [
    ("1x1x24", SEVEN, {}, "on 2 machines of 8 GPUs like these with trainer.nnodes=2"),
    ("1x1x24", SEVEN, {"ray_init.address": None}, "with ray_init.address=auto trainer.nnodes=2"),
    (
        "1x1x24",
        SEVEN,
        {"trainer.backend": "local", "ray_init.address": None},
        "with ray_init.address=auto trainer.back",
    ),
    (
        "1x1x24",
        "Qwen/Qwen2.5-1.5B-Instruct",
        {"R__gpu_memory_utilization": 0.35},
        "offload_policy=true (23 GiB of main",
    ),
    ("1x8x80", "Qwen/Qwen2.5-7B-Instruct", {**EIGHT, CHECKPOINTING: False}, "gradient_checkpointing=true"),
    (
        "1x1x48",
        "Qwen/Qwen2.5-7B-Instruct",
        {f"{AR}.model.lora_rank": 16, "R__gpu_memory_utilization": 0.45},
        "bfloat16",
    ),
]


@pytest.mark.parametrize(("cluster", "model", "changes", "said"), ADVISED)
def test_what_a_plan_advises_works(cluster: str, model: str, changes: dict[str, Any], said: str) -> None:
    """The settings in the message, put into the same run, are all that it needs."""
    advice = problems_of(cluster, model, **changes)[-1].rpartition("It fits ")[2]
    assert said in advice
    settings = {key: yaml.safe_load(value) for key, value in re.findall(r"([\w.]+)=(\S+)", advice)}
    if more := re.match(r"on (?:(\d+) machines of )?(\d+) GPUs like these", advice):
        cluster = f"{more[1] or 1}x{more[2]}x{cluster.rpartition('x')[2]}"
    assert problems_of(cluster, model, **{**changes, **settings}) == []


def test_what_it_fits_with_is_true() -> None:
    changes = {
        **EIGHT,
        "R__tensor_model_parallel_size": 2,
        "actor_rollout_ref__model__enable_gradient_checkpointing": False,
    }
    (problem,) = problems_of("1x8x80", "Qwen/Qwen2.5-7B-Instruct", **changes)
    assert problem.endswith("It fits with actor_rollout_ref.model.enable_gradient_checkpointing=true")
    changes["actor_rollout_ref__model__enable_gradient_checkpointing"] = True
    assert problems_of("1x8x80", "Qwen/Qwen2.5-7B-Instruct", **changes) == []


def test_what_lora_fits_with() -> None:
    lora = {"actor_rollout_ref__model__lora_rank": 16, "R__gpu_memory_utilization": 0.45}
    problem = problems_of("1x1x48", "Qwen/Qwen2.5-7B-Instruct", **lora)[-1]
    assert problem.endswith("It fits with actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16")


def test_an_engine_without_room_for_a_trajectory() -> None:
    problems = problems_of("1x8x24", "Qwen/Qwen2.5-7B-Instruct", **EIGHT, R__gpu_memory_utilization=0.5)
    assert any("0.5 x 24 = 12.0 GiB of a GPU" in problem and "its weights take 14.2" in problem for problem in problems)


def test_ranks_of_large_parts_are_placed_first() -> None:
    found = ranks("1x4x80,1x2x80", **POOLS, trainer__n_gpus_per_node=4)
    assert found[:4] == [("global_pool", 0, gpu) for gpu in range(4)]
    assert found[4:] == [("values", 1, 0), ("values", 1, 1)]


def test_engines_know_the_ranks_whose_gpus_they_share() -> None:
    changes = {"trainer__nnodes": 2, "trainer__n_gpus_per_node": 4, "R__tensor_model_parallel_size": 2}
    placement = planned("2x4x80", HALF, **changes, R__server__port=9000)
    assert [engine.ranks for engine in placement.engines] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [engine.port for engine in placement.engines] == [9000, 9001, 9002, 9003]
    for engine in placement.engines:
        own = [rank for rank in placement.ranks_of("global_pool") if rank.rank in engine.ranks]
        assert [(rank.machine, rank.gpu) for rank in own] == [(engine.machine, gpu) for gpu in engine.gpus]


def test_gpus_that_nothing_uses_are_noted() -> None:
    assert planned("1x8x80", HALF, trainer__n_gpus_per_node=4).notes == (
        "4 of 8 GPUs are not used: actor_rollout_ref.rollout.placement=split would give them to engines",
    )


def test_auto_on_a_driver_without_a_gpu_is_said() -> None:
    config = run_of("1x0", HALF)
    assert (config.trainer.device, place(config, Cluster.parse("1x0")).problems) == ("auto", ())
    cluster = Cluster.of_ray([{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": True, "Resources": {"GPU": 8.0}}])
    (problem,) = place(config, cluster).problems
    assert "got auto, which asks this machine, and it has no GPU" in problem
    assert (
        "the Ray cluster has 8 GPUs (1 machine without GPUs and 1 machine with 8 GPUs): set trainer.device=cuda"
        in problem
    )
    config.trainer.device = "cuda"
    assert place(config, cluster).works


def test_auto_without_sglang_is_planned_as_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    config = run_of("1x4x80", HALF, trainer__n_gpus_per_node=4, trainer__device="cuda", R__name="auto")
    config.actor_rollout_ref.rollout.tensor_model_parallel_size = 2
    for installed, engine, sizes in ((True, "sglang", [2, 2]), (False, "embedded", [1] * 4)):
        monkeypatch.setattr(machine, "sglang_installed", lambda installed=installed: installed)
        placement = place(config, Cluster.parse("1x4x80"))
        assert (placement.engine, [each.tp for each in placement.engines]) == (engine, sizes)
        assert not placement.problems
