"""Clusters, as users write them and as Ray names them."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.placement import Cluster, Machine
from agentrl.placement.gpus import GPUS, gpu_kind


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1x8@h100", "1 machine with 8 h100 GPUs of 80 GiB"),
        ("4x8x80", "4 machines with 8 GPUs of 80 GiB"),
        ("1x1x24", "1 machine with 1 GPU of 24 GiB"),
        ("2x0", "2 machines without GPUs"),
        ("1x8@A100-SXM4-40GB", "1 machine with 8 A100-SXM4-40GB GPUs of 40 GiB"),
        ("1x8@A100-40G", "1 machine with 8 A100-40G GPUs of 40 GiB"),
        ("1x8x40@A100-80G", "1 machine with 8 A100-80G GPUs of 40 GiB"),
        ("1x1@GH200-480GB", "1 machine with 1 GH200-480GB GPU of 96 GiB"),
        ("1x4@V100-SXM2-32GB", "1 machine with 4 V100-SXM2-32GB GPUs of 32 GiB"),
        ("1x1@RTX-4090", "1 machine with 1 RTX-4090 GPU of 24 GiB"),
        ("2x8x141@H200, 1x0", "2 machines with 8 H200 GPUs of 141 GiB and 1 machine without GPUs"),
    ],
)
def test_clusters_as_they_are_written(text: str, said: str) -> None:
    assert str(Cluster.parse(text)) == said


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8",
        "4x8",
        "4x8@nobody",
        "x8x80",
        "0x8x80",
        "4x8x80x2",
        "a x b",
        "4x8x80,",
        "99999x1x1",
        "1x1x0",
        "1x99999999x80",
    ],
)
def test_clusters_that_are_written_otherwise(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--cluster: got '{text}'"):
        Cluster.parse(text)


def gpus_of(kind: str) -> dict[str, Any]:
    return {"Alive": True, "Resources": {"GPU": 8.0, f"accelerator_type:{kind}": 1.0}}


@pytest.mark.parametrize(("kind", "gib"), [("V100", 16.0), ("T4", 16.0), ("A10G", 24.0), ("GeForce-RTX-4090", 24.0)])
def test_a_driver_says_nothing_about_gpus_of_another_kind(kind: str, gib: float) -> None:
    driver = Machine(8, 79.2, "NVIDIA H100 80GB HBM3")
    assert Cluster.of_ray([gpus_of(kind), gpus_of("Unheard-of")], driver).machines == (
        Machine(8, gib, kind),
        Machine(8, None, "Unheard-of"),
    )
    assert Cluster.of_ray([gpus_of("H100")], driver).machines == (Machine(8, 79.2, "H100"),)


def test_a_cluster_from_what_ray_says() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 4.0, "accelerator_type:A100": 1.0, "memory": 64.0 * 2**30}},
        {"Alive": False, "Resources": {"GPU": 8.0}},
        {"Alive": True, "Resources": {"CPU": 2.0}},
    ]
    assert Cluster.of_ray(nodes).machines == (Machine(4, 80.0, "A100", 64.0), Machine(0))
    twins = [{"Alive": True, "Resources": {"GPU": 8.0, "memory": gib * 2**30}} for gib in (251.1, 251.3)]
    assert str(Cluster.of_ray(twins)) == "2 machines with 8 GPUs"
    # Ray calls both sizes of an A100 so; the driver's own was measured.
    own = Machine(8, 39.4, "NVIDIA A100-SXM4-40GB")
    assert Cluster.of_ray(nodes, own).machines == (Machine(4, 39.4, "A100", 64.0), Machine(0))
    own_size = Machine(8, 79.2, "NVIDIA A100-SXM4-80GB")
    assert Cluster.of_ray([gpus_of("A100-40G")], own_size).machines == (Machine(8, 40.0, "A100-40G"),)
    assert Cluster.of_ray([gpus_of("A100-40G")], own).machines == (Machine(8, 39.4, "A100-40G"),)
    other = Machine(8, 22.1, "NVIDIA L4")
    assert Cluster.of_ray(nodes, other).machines == (Machine(4, 80.0, "A100", 64.0), Machine(0))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A40", "A40 "),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA RTX A4000", None),
        ("NVIDIA A10", "A10 "),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A10G", "A10G"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla T4", "T4 "),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
    ],
)
def test_kinds_of_gpus_by_the_name_that_torch_gives_them(name: str, kind: str | None) -> None:
    assert gpu_kind(name) == (None if kind is None else GPUS[kind])
