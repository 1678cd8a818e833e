"""`agentrl doctor`: what it says of the installation and the machine."""

from __future__ import annotations

import resource
import socket
import sys
from collections import namedtuple
from typing import Any

import pytest
from test_doctor import bad

from agentrl.cli.doctor import installation, machine
from agentrl.cli.doctor.findings import Severity

Usage = namedtuple("Usage", "total used free")

# --- installation -------------------------------------------------------------------------------------------------


def test_packages_that_are_missing_or_out_of_range(monkeypatch):
    needed = [
        "torch>=2.11",
        "rich>=13.7",
        "gone>=1.0",
        'colorama>=1; sys_platform == "win32"',
        'whole>=1.0; extra == "good"',
        'whole>=3.0; extra == "old"',
        'gone>=1.0; extra == "absent"',
        'gone>=1.0; extra == "dev"',
    ]
    versions = {"torch": "2.10.0", "rich": "14.0", "whole": "2.0"}
    monkeypatch.setattr(installation.metadata, "requires", lambda name: needed)
    monkeypatch.setattr(installation, "_version", versions.get)
    found = list(installation.check_installation())
    assert [item.text for item in bad(found)] == [
        "torch is 2.10.0, wanted torch>=2.11",
        "gone is missing, wanted gone>=1.0",
        "extra old: whole is 2.0, wanted whole>=3.0",
    ]
    assert all(item.todo.startswith("pip install") for item in bad(found))
    assert found[-1].text == "extras: good; not installed: absent (pip install 'agentrl[NAME]' where you need one)"


def test_this_installation_is_whole():
    found = list(installation.check_installation())
    assert bad(found) == []
    assert "packages in range" in found[0].text


def test_agentrl_that_is_not_installed():
    (found,) = installation.check_installation("agentrl-of-nobody")
    assert (found.verdict, found.todo) == (Severity.NOTE, "install it: pip install -e . in its folder")


def test_a_torch_that_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    found = [item for item in installation.check_installation() if item.verdict is Severity.WRONG]
    assert "torch cannot be imported" in found[-1].text


@pytest.mark.parametrize(
    ("gpus", "sglang", "verdict", "engine"),
    [
        (False, True, Severity.OK, "embedded"),
        (True, True, Severity.OK, "sglang"),
        (True, False, Severity.NOTE, "embedded"),
    ],
)
def test_what_auto_means_here(monkeypatch, gpus, sglang, verdict, engine):
    monkeypatch.setattr("agentrl.config.machine.cuda_available", lambda: gpus)
    monkeypatch.setattr("agentrl.config.machine.sglang_installed", lambda: sglang)
    (found,) = installation.check_engine_packages()
    assert found.verdict is verdict
    assert f"rollout.name=auto means {engine} here" in found.text


# --- machine ------------------------------------------------------------------------------------------------------


def test_a_driver_without_a_torch_that_uses_it(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(machine.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    (found,) = machine.check_accelerator()
    assert found.verdict is Severity.WRONG
    assert "built for CUDA" in found.todo
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    (found,) = machine.check_accelerator()
    assert found.verdict is Severity.OK


def test_a_gpu_with_other_tenants(monkeypatch):
    import torch

    free = {0: 70 * machine.GIB, 1: 10 * machine.GIB}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (free[index], 80 * machine.GIB))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "H100")
    first, second = machine.check_accelerator()
    assert (first.verdict, first.text) == (Severity.OK, "GPU 0: H100, 70 of 80 GiB free")
    assert (second.verdict, second.text) == (Severity.NOTE, "GPU 1: H100, 10 of 80 GiB free")


@pytest.mark.parametrize(("free", "verdict"), [(0.1, Severity.WRONG), (5.0, Severity.NOTE), (50.0, Severity.OK)])
def test_room_on_disks(monkeypatch, tmp_path, free, verdict):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda place: Usage(1, 0, int(free * machine.GIB)))
    (found,) = machine.check_disks({"working folder": tmp_path / "not" / "yet"})
    assert found.verdict is verdict
    assert f"{free:.1f} GiB free in the working folder" in found.text


@pytest.mark.parametrize(
    ("free", "verdict"), [(0.02, Severity.WRONG), (0.06, Severity.NOTE), (1.0, Severity.NOTE), (16.0, Severity.OK)]
)
def test_shared_memory(monkeypatch, tmp_path, free, verdict):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda place: Usage(64 * machine.GIB, 0, int(free * machine.GIB)))
    found = machine.check_shared_memory(tmp_path)
    assert found.verdict is verdict
    assert ("--shm-size" in found.todo) == (verdict is not Severity.OK)
    assert machine.check_shared_memory(tmp_path / "none").verdict is Severity.NOTE


@pytest.mark.parametrize(
    ("limits", "in_flight", "verdict", "todo"),
    [
        ((65536, 65536), None, Severity.OK, ""),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 10_000, Severity.OK, ""),
        ((1024, 65536), None, Severity.NOTE, "ulimit -n 4096"),
        ((1000, 65536), None, Severity.WRONG, "ulimit -n 4096"),
        ((4096, 4096), 10_000, Severity.WRONG, "ulimit -n 40000 (as root: the hard limit is lower)"),
    ],
)
def test_open_files(monkeypatch, limits, in_flight, verdict, todo):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    found = machine.check_open_files(in_flight)
    assert (found.verdict, found.todo) == (verdict, todo)


def test_a_machine_whose_name_leads_nowhere(monkeypatch):
    assert [found.verdict for found in machine.check_network()] != [Severity.WRONG]

    known = socket.getaddrinfo

    def unknown(host: str, *rest: Any) -> Any:
        if host == socket.gethostname():
            raise socket.gaierror("unknown")
        return known(host, *rest)

    monkeypatch.setattr(machine.socket, "getaddrinfo", unknown)
    (found,) = machine.check_network()
    assert (found.verdict, "/etc/hosts" in found.todo) == (Severity.NOTE, True)
