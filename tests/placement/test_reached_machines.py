"""Machines that a run reaches: `local` has one, and Ray without an address too."""

from __future__ import annotations

import pytest
import ray
from made_up import planned, run_of

from agentrl.placement import Cluster, Machine, of_run, plan

HALF = "Qwen/Qwen2.5-0.5B"
SPLIT = {"R__placement": "split"}
LOCAL = {"trainer__backend": "local", "ray_init__address": None}
PRIVATE = {"ray_init__address": None}
FOURS = {"trainer__n_gpus_per_node": 4, "trainer__role_pools__ref": "v", "trainer__resource_pools": {"v": [4]}}


@pytest.mark.parametrize("cluster", ["2x1x24", "1x0,1x1x24"])
def test_a_local_run_has_one_machine(cluster: str) -> None:
    (split,) = planned(cluster, HALF, **LOCAL, **SPLIT).problems
    assert "got split, but 1 rank takes all 1 GPU of the one machine of trainer.backend=local" in split
    shared = planned(cluster, HALF, **LOCAL)
    assert (len(shared.cluster.machines), [engine.machine for engine in shared.engines]) == (1, [0])
    (note,) = shared.notes
    assert f"only one of the 2 of --cluster {cluster} is used; trainer.backend=ray with ray_init.address=auto" in note


def test_a_local_run_takes_the_machine_with_most_gpus() -> None:
    placement = planned("1x1x80,1x3x24", HALF, **LOCAL, **SPLIT)
    assert placement.works
    assert [engine.gpus for engine in placement.engines] == [(1,), (2,)]
    assert len(planned("3x0", HALF, **LOCAL, R__server__launch=2).cluster.machines) == 1


def test_several_machines_without_an_address_are_noted() -> None:
    for cluster, changes in (("2x1x80", SPLIT), ("2x4x80", FOURS), ("2x0", {"R__server__launch": 2})):
        notes = planned(cluster, HALF, **PRIVATE, **changes).notes
        assert f"2 machines of --cluster {cluster} are used, but without ray_init.address the run starts" in notes[-1]
        assert "set ray_init.address=auto" in notes[-1]
        assert planned(cluster, HALF, **changes).notes == notes[:-1]
    assert planned("2x4x80", HALF, **PRIVATE, trainer__n_gpus_per_node=4).notes[0].startswith("4 of 8 GPUs")


def test_machines_of_a_ray_that_this_process_is_connected_to_are_reached() -> None:
    config = run_of("2x1x80", HALF, **PRIVATE, **SPLIT)
    nodes = [{"Alive": True, "Resources": {"GPU": 1.0, "accelerator_type:H100": 1.0}}] * 2
    assert plan(config, Cluster.of_ray(nodes)).notes == ()


def test_what_one_machine_lacks_another_may_have() -> None:
    """A run without an address has this machine alone."""
    (problem,) = plan(run_of("2x4x80", HALF, **PRIVATE, **FOURS), Cluster.parse("1x4x80")).problems
    assert "--cluster 1x4x80 has 4" in problem
    assert "or use a larger cluster (ray_init.address=auto for more than one machine)" in problem


def test_gpus_of_unknown_memory_are_said() -> None:
    config = run_of("1x1x80", HALF)
    for resources, name in (({}, "the GPU"), ({"accelerator_type:Unheard-of": 1.0}, "Unheard-of")):
        cluster = Cluster.of_ray([{"Alive": True, "Resources": {"GPU": 1.0, **resources}}])
        (note,) = plan(config, cluster).notes
        assert note.startswith(f"memory of {name} not known: not compared")


def test_a_cluster_of_ray_has_the_gpus_that_are_measured_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a plan of a cluster and for the run on it."""
    node = {"Alive": True, "Resources": {"GPU": 8.0, "accelerator_type:A100": 1.0}}
    here = Cluster((Machine(8, 39.4, "NVIDIA A100-SXM4-40GB", 64.0),))
    monkeypatch.setattr(of_run, "this_machine", lambda: here)
    monkeypatch.setattr(of_run, "require_listener", lambda address: None)
    monkeypatch.setattr(of_run, "ray_is_connected", lambda: True)
    for name, made in (("nodes", [node]), ("is_initialized", True), ("init", None)):
        monkeypatch.setattr(ray, name, lambda made=made, **_: made)
    found = (Machine(8, 39.4, "A100"),)
    assert of_run.ray_cluster("auto").machines == of_run.cluster_of(run_of("1x8x80", HALF)).machines == found
