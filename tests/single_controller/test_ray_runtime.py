"""A private Ray cluster from start to end, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from agentrl.leftovers import owned_prefix

WAIT = (
    "import sys, time\n"
    "from agentrl.single_controller.ray_runtime import init_ray\n"
    "from agentrl.single_controller import ResourcePool, create_worker_group\n"
    "from echo_worker import EchoWorker\n"
    "with init_ray(num_cpus=1) as session:\n"
    "    group = create_worker_group('ray', ResourcePool(), EchoWorker)\n"
    "    print(session.folder, group.where()[0]['pid'], flush=True)\n"
    "    {then}\n"
)


BUSY = """
import time, types
from ray._private import node, services

failed = []
find = services.get_node

def find_late(*args):
    if len(failed) < {times}:
        failed.append(args)
        raise RuntimeError("it has not reported yet")
    return find(*args)

services.get_node = find_late
node.time = types.SimpleNamespace(**vars(time))
node.time.monotonic = lambda: time.monotonic() + 100 * len(failed)
"""
"""On a machine so busy that Ray's own limit for its start passes, the first times."""


def start(then: str, before: str = "", **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", before + WAIT.format(then=then)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
        env=os.environ | environment,
        start_new_session=True,
    )


def ray_processes(parent: int) -> list[psutil.Process]:
    return psutil.Process(parent).children(recursive=True)


def assert_all_gone(processes: list[psutil.Process], within_s: float = 20.0) -> None:
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def read_line(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    line = process.stdout.readline().split()
    assert line, process.communicate(timeout=60)[1]
    return line


def test_it_is_quiet_and_leaves_neither_process_nor_folder() -> None:
    # Too long for the path of a socket, though not long: as temporary folders of batch systems are.
    deep = Path(tempfile.mkdtemp(prefix="scratch-4711", dir="/tmp"))
    abandoned = Path("/tmp") / f"{owned_prefix('agentrl-ray').replace(str(os.getpid()), '999999999', 1)}killed"
    abandoned.mkdir(exist_ok=True)
    process = start("pass", TMPDIR=str(deep))
    folder, pid = read_line(process)
    output, errors = process.communicate(timeout=120)
    deep.rmdir()
    assert process.returncode == 0
    # On a machine without any network Ray itself warns that it looks its address up by the host's name.
    allowed = ("Failed to determine local IP", "; it is tried once more")
    assert [line for line in errors.splitlines() if not any(each in line for each in allowed)] == []
    assert output == ""
    assert not Path(folder).exists()
    assert not psutil.pid_exists(int(pid))
    assert not abandoned.exists(), "the folder of a killed run goes at the next start"


@pytest.mark.slow
def test_a_busy_machine_is_given_a_second_try() -> None:
    process = start("sys.stdin.readline()", BUSY.format(times=1))
    folder, _ = read_line(process)
    clusters = [child for child in ray_processes(process.pid) if "gcs_server" in child.name()]
    _, errors = process.communicate("\n", timeout=120)
    assert process.returncode == 0
    assert "Ray did not start (local): The current node timed out during startup." in errors
    assert "; it is tried once more" in errors
    assert len(clusters) == 1
    assert [Path(folder), *Path(folder).parent.glob(f"agentrl-ray-{process.pid}-*")] == [Path(folder)]
    assert not Path(folder).exists()


@pytest.mark.slow
def test_a_cluster_that_never_starts_is_one_error() -> None:
    process = start("pass", BUSY.format(times=9))
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output) == (1, "")
    last = errors.splitlines()[-1]
    assert last.startswith("agentrl.errors.InfrastructureError: Ray did not start (local): The current node timed out")
    folder = f"agentrl-ray-{process.pid}-"
    assert_all_gone([each for each in psutil.process_iter(["cmdline"]) if folder in str(each.info["cmdline"])])
    assert not [*Path(tempfile.gettempdir()).glob(f"{folder}*")]


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_ends_the_cluster() -> None:
    process = start("group.slow(100).get()")
    folder, _ = read_line(process)
    processes = ray_processes(process.pid)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert_all_gone(processes)
    assert not Path(folder).exists()


def test_a_killed_controller_takes_its_cluster_with_it() -> None:
    process = start("time.sleep(100)")
    read_line(process)
    # Ray's two agents hold nothing and end a minute later.
    processes = [child for child in ray_processes(process.pid) if not child.name().endswith("Agent")]
    assert any("RankHost" in child.name() for child in processes)
    process.kill()
    process.communicate(timeout=60)
    assert_all_gone(processes)


def test_no_cluster_at_the_address_is_one_readable_error() -> None:
    code = (
        "from agentrl.errors import InfrastructureError, ConfigError\n"
        "from agentrl.single_controller.ray_runtime import init_ray\n"
        "try: init_ray(2, '127.0.0.1:1')\n"
        "except ConfigError as error: assert 'num_cpus' in str(error)\n"
        "try: init_ray(address='127.0.0.1:1')\n"
        "except InfrastructureError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "127.0.0.1:1" in done.stdout
