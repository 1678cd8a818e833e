"""The machine: accelerators, memory, disks, shared memory, open files, ports and proxies."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import psutil

from agentrl.cli.doctor.findings import Finding, Findings, note, ok, wrong

GIB = 2**30
LEAST_DISK, FEW_DISK = 1 * GIB, 10 * GIB
LEAST_SHARED, FEW_SHARED = 32 * 2**20, 2 * GIB
LEAST_MEMORY = 2 * GIB
OPEN_FILES = 4096
"""Each trajectory in flight has a connection or two, and so has each call of a tool."""
SHARED_MEMORY = Path("/dev/shm")
BUSY = 0.5
"""A GPU of which more than this is taken has other tenants."""


def check_machine(in_flight: int | None = None) -> Findings:
    """Everything that is no matter of a run's configuration.

    Args:
        in_flight: trajectories that a run has at a time; None: of no run.
    """
    yield from check_accelerator()
    yield check_memory()
    yield from check_disks({"working folder": Path.cwd(), "temporary folder": Path(tempfile.gettempdir())})
    yield check_shared_memory()
    yield check_open_files(in_flight)
    yield from check_network()


def check_accelerator() -> Findings:
    """What torch computes on; a driver without a torch that uses it is the usual mistake."""
    try:
        import torch
    except (ImportError, OSError):  # the installation has told
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        from agentrl.single_controller.resource_pool import cores

        if shutil.which("nvidia-smi") is not None:
            what = f"torch {torch.__version__} sees no GPU"
            todo = "install a torch that is built for CUDA, or look at what `nvidia-smi` and CUDA_VISIBLE_DEVICES say"
            yield wrong("accelerator", f"this machine has NVIDIA's driver, but {what}", todo)
        else:
            yield ok("accelerator", f"none: models run on {cores()} CPU cores")
        return
    for index in range(count):
        free, total = torch.cuda.mem_get_info(index)
        name = f"GPU {index}: {torch.cuda.get_device_name(index)}, {free / GIB:.0f} of {total / GIB:.0f} GiB free"
        if free < (1 - BUSY) * total:
            yield note("accelerator", name, "end what holds its memory: `nvidia-smi` lists the processes")
        else:
            yield ok("accelerator", name)


def check_memory() -> Finding:
    """Main memory that is free."""
    memory = psutil.virtual_memory()
    text = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB of memory are free"
    return ok("memory", text) if memory.available >= LEAST_MEMORY else note("memory", text, "end what takes it")


def check_disks(folders: dict[str, Path]) -> Findings:
    """Room on the disks, and whether a folder can be written to."""
    for name, folder in folders.items():
        there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
        free = shutil.disk_usage(there).free
        text = f"{free / GIB:.1f} GiB free in the {name} {folder}"
        if not os.access(there, os.W_OK):
            yield wrong("disk", f"the {name} {folder} cannot be written to", "give another one, or its rights")
        elif free < LEAST_DISK:
            yield wrong("disk", text, "make room: checkpoints and dumps would fail")
        elif free < FEW_DISK:
            yield note("disk", text, "enough for tiny models; a checkpoint takes about 12 bytes a weight")
        else:
            yield ok("disk", text)


def check_shared_memory(place: Path = SHARED_MEMORY) -> Finding:
    """Ray's objects and weights for engines on this machine pass through it; containers have 64 MiB unless asked."""
    if not place.is_dir():
        return note("shared memory", f"there is no {place}", "nothing: the temporary folder is used, which is slower")
    usage = shutil.disk_usage(place)
    text = f"{usage.free / GIB:.2f} of {usage.total / GIB:.2f} GiB are free in {place}"
    todo = "start the container with more (docker run --shm-size=16g), or remove what is left in it"
    if usage.free < LEAST_SHARED:
        return wrong("shared memory", text, todo)
    return note("shared memory", text, todo) if usage.free < FEW_SHARED else ok("shared memory", text)


def check_open_files(in_flight: int | None) -> Finding:
    """The soft limit of open files."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if in_flight is None else max(OPEN_FILES, 4 * in_flight)
    many = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    text = f"open files: {many}, wanted {wanted:,}" + (
        f" for {in_flight:,} trajectories at a time" if in_flight else ""
    )
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return ok("limits", text)
    allowed = hard == resource.RLIM_INFINITY or hard >= wanted
    todo = f"ulimit -n {wanted}" + ("" if allowed else " (as root: the hard limit is lower)")
    return wrong("limits", text, todo) if soft < wanted // 4 else note("limits", text, todo)


def check_network() -> Findings:
    """A port of this machine can be opened, its name is known, and no proxy is asked for its own addresses."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        yield wrong("ports", f"no port of 127.0.0.1 can be opened: {error}", "allow it: engines and services need it")
        return
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        yield note("ports", f"the name of this machine ({name}) leads nowhere", "add it to /etc/hosts: Ray looks it up")
    else:
        yield ok("ports", "ports of 127.0.0.1 can be opened")


def caught_by_proxy(hosts: Iterable[str]) -> list[str]:
    """The hosts for which the environment names a proxy, though they are this machine."""
    if not any(kind in urllib.request.getproxies() for kind in ("http", "all")):
        return []
    return [host for host in hosts if not urllib.request.proxy_bypass(host)]


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return True
    except OSError:
        return False
