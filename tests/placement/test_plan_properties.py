"""What is true of every plan, whatever the run and the cluster."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import planned, run_of

from agentrl.placement import Cluster, RunPlacement, plan
from agentrl.placement.forecast import forecast

MODELS = ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-7B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-8B", "somebody/unknown")
PLANS = st.fixed_dictionaries(
    {
        "cluster": st.lists(
            st.tuples(st.integers(1, 3), st.integers(0, 8), st.sampled_from([24, 80, 141])), min_size=1, max_size=3
        ).map(lambda parts: ",".join(f"{n}x{gpus}x{gib}" if gpus else f"{n}x0" for n, gpus, gib in parts)),
        "model": st.sampled_from(MODELS),
        "trainer__nnodes": st.integers(1, 3),
        "trainer__n_gpus_per_node": st.integers(1, 8),
        "R__tensor_model_parallel_size": st.sampled_from([1, 2, 4, 8]),
    },
    optional={
        "R__placement": st.sampled_from(["auto", "colocated", "split"]),
        "R__n_gpus": st.integers(1, 16),
        "R__server__launch": st.integers(1, 8),
        "R__server__port": st.just(9000),
    },
)


@settings(max_examples=150)
@given(PLANS)
def test_every_plan(drawn: dict[str, object]) -> None:
    changes = dict(drawn)
    cluster, model = str(changes.pop("cluster")), str(changes.pop("model"))
    config = run_of(cluster, model, **changes)
    placement = plan(config, Cluster.parse(cluster))
    world = config.trainer.nnodes * config.trainer.n_gpus_per_node
    assert [rank.rank for rank in placement.ranks] == list(range(world))
    if placement.on_gpus:
        _check_gpus(placement, world, config.actor_rollout_ref.rollout.tensor_model_parallel_size)
    assert [engine.index for engine in placement.engines] == list(range(len(placement.engines)))
    if config.actor_rollout_ref.rollout.server.port is not None:
        assert [engine.port for engine in placement.engines] == [9000 + each.index for each in placement.engines]
    for gpu in forecast(config, placement):
        assert gpu.fits == (gpu.capacity is None or all(phase.bytes <= gpu.capacity for phase in gpu.phases))
        for phase in gpu.phases:
            assert all(size >= 0 for _, size in phase.parts)
            assert sum(size for _, size in phase.parts) == phase.bytes <= gpu.peak.bytes


def _check_gpus(placement: RunPlacement, world: int, tp: int) -> None:
    machines = placement.cluster.machines
    of_ranks = [(rank.machine, rank.gpu) for rank in placement.ranks]
    of_engines = [(engine.machine, gpu) for engine in placement.engines for gpu in engine.gpus]
    assert all(gpu is not None and gpu < machines[machine].gpus for machine, gpu in [*of_ranks, *of_engines])
    assert max(Counter(of_ranks).values()) == 1  # one pool: no GPU has two ranks
    assert not of_engines or max(Counter(of_engines).values()) == 1  # no two engines on a GPU
    assert all(len(engine.gpus) == engine.tp == tp for engine in placement.engines)
    if placement.mode == "split":
        assert not set(of_ranks) & set(of_engines)
    else:
        assert set(of_engines) <= set(of_ranks)
        assert len(placement.engines) * tp <= world
    assert placement.engines or placement.problems


def test_a_plan_depends_on_nothing_else() -> None:
    assert planned("2x8x80", trainer__n_gpus_per_node=8) == planned("2x8x80", trainer__n_gpus_per_node=8)
