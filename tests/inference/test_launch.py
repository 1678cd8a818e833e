"""Servers as child processes: the real embedded engine, started, watched, restarted, and gone when the run is."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from engine_servers import free_port, until
from fake_sglang import make_python, starts_of

from agentrl.config.root import RunConfig
from agentrl.errors import EngineTimeout, EngineUnavailable
from agentrl.inference import engine_host, fleet
from agentrl.inference.engine_host import MOST_FAILED_STARTS, EngineHost
from agentrl.inference.exits import how_it_ended
from agentrl.inference.fleet import EngineFleet


def hosts(servers: EngineFleet) -> list[EngineHost]:
    return [place._host for place in servers._places.values()]  # type: ignore[attr-defined]


def has_ended(host: EngineHost) -> bool:
    return host._process is not None and host._process.poll() is not None


def family() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def generate(address: str) -> dict[str, object]:
    payload = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4}, "return_logprob": True}
    answer = httpx.post(f"{address}/generate", json=payload, timeout=30, trust_env=False)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_two_servers_start_serve_restart_and_leave_nothing(
    config: RunConfig, start: Callable[[RunConfig], EngineFleet]
) -> None:
    config.actor_rollout_ref.rollout.server.launch = 2
    before = family()
    servers = start(config)
    assert len(set(servers.addresses)) == 2
    for address in servers.addresses:
        assert len(generate(address)["output_ids"]) <= 4  # type: ignore[arg-type]
    servers.check()
    assert servers.tend() == servers.addresses
    assert servers.restarts == 0
    victim = next(c for c in psutil.Process().children(recursive=True) if "agentrl.inference.embedded" in c.cmdline())
    port = victim.cmdline()[victim.cmdline().index("--port") + 1]
    victim.kill()
    until(lambda: any(has_ended(host) for host in hosts(servers)))
    with pytest.raises(EngineUnavailable, match=rf":{port} was killed by SIGKILL \(9\), out of memory\?"):
        servers.check()
    (other,) = set(servers.addresses) - {f"http://127.0.0.1:{port}"}
    assert servers.tend() == [other], "a restarted server is not waited for while another is well"
    servers.check()
    assert servers.restarts == 1
    until(lambda: servers.tend() == servers.addresses)
    assert servers.restarts == 1
    generate(f"http://127.0.0.1:{port}")
    servers.stop()
    servers.stop()
    assert family() == before


def engine_processes() -> list[psutil.Process]:
    """The servers, without their guards."""
    children = psutil.Process().children(recursive=True)
    return [c for c in children if c.cmdline()[1:3] == ["-m", "agentrl.inference.embedded"]]


@pytest.mark.parametrize("guard_too", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_servers_that_are_stopped_are_killed_and_started_again(
    config: RunConfig, start: Callable[[RunConfig], EngineFleet], guard_too: bool
) -> None:
    """SIGTERM does nothing to a stopped process, and its port still takes connections."""
    config.actor_rollout_ref.rollout.server.request_timeout_s = 2.0
    before = family()
    servers = start(config)
    stopped = engine_processes()
    for process in [*stopped, *(p.parent() for p in stopped if guard_too)]:
        process.suspend()  # type: ignore[union-attr]
    assert servers.tend() == servers.addresses
    assert servers.restarts == 1
    assert not any(process.is_running() for process in stopped)
    generate(servers.addresses[0])
    engine_processes()[0].suspend()
    servers.stop()
    assert family() == before


@pytest.mark.slow
def test_a_server_that_never_starts_again_is_given_up(
    config: RunConfig, start: Callable[[RunConfig], EngineFleet], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    config.actor_rollout_ref.rollout.server.launch = 2
    monkeypatch.setattr(engine_host, "BACKOFF_S", 0.1)
    servers = start(config)
    good = servers.addresses[0]
    command = [sys.executable, "-c", "print('cannot start'); raise SystemExit(3)"]
    monkeypatch.setattr(engine_host, "launch_command", lambda *_: command)
    for process in engine_processes():
        if str(hosts(servers)[1]._port) in process.cmdline():
            process.kill()

    def given_up() -> bool:
        assert servers.tend() == [good]
        return "cannot start\nIt does not start: the run goes on without it" in caplog.text

    until(given_up)
    assert servers.restarts == MOST_FAILED_STARTS + 1
    engine_processes()[0].kill()
    until(lambda: has_ended(hosts(servers)[0]))
    with pytest.raises(EngineUnavailable, match="exit code 3"):
        servers.tend()


def test_an_engine_that_ends_early_is_told_with_its_log(config: RunConfig, tmp_path: Path) -> None:
    config.actor_rollout_ref.model.path = str(tmp_path / "no_model")
    before = family()
    with pytest.raises(EngineUnavailable, match=r"ended with exit code [1-9].*(?s:.*)no_model"):
        EngineFleet.start(config, tmp_path)
    assert family() == before


def test_a_taken_port_is_told_before_anything_starts(config: RunConfig, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config.actor_rollout_ref.rollout.server.port = taken.getsockname()[1]
        with pytest.raises(EngineUnavailable, match=r"port \d+ on 127\.0\.0\.1 cannot be used.*server\.port") as caught:
            EngineFleet.start(config, tmp_path)
    assert caught.value.exit_code == 3


@pytest.mark.slow
def test_another_server_on_the_same_port_is_not_taken_for_ours(
    config: RunConfig, start: Callable[[RunConfig], EngineFleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = start(config)
    lost = int(stranger.addresses[0].rsplit(":", 1)[1])
    real, offers = EngineHost._take_port, iter([lost])

    def take_port(host: EngineHost) -> None:
        real(host)
        host._port = next(offers, host._port)

    monkeypatch.setattr(EngineHost, "_take_port", take_port)
    servers = start(config)
    assert servers.addresses != stranger.addresses
    generate(servers.addresses[0])
    monkeypatch.setattr(EngineHost, "_take_port", lambda host: setattr(host, "_port", lost))
    config.actor_rollout_ref.rollout.server.port = lost
    with pytest.raises(EngineUnavailable, match=rf"{lost}"):
        start(config)


def test_a_server_that_is_never_healthy(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "import time; print('warming up', flush=True); time.sleep(60)"]
    monkeypatch.setattr(engine_host, "launch_command", lambda *_: command)
    config.actor_rollout_ref.rollout.server.start_timeout_s = 2.0
    before = family()
    with pytest.raises(EngineTimeout, match=r"within 2 s(?s:.*)warming up"):
        EngineFleet.start(config, tmp_path)
    assert family() == before


def test_servers_given_by_address(
    config: RunConfig, start: Callable[[RunConfig], EngineFleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(config)
    other = config.model_copy(deep=True)
    other.actor_rollout_ref.rollout.server.addresses = [running.addresses[0] + "/"]
    servers = start(other)
    assert servers.addresses == running.addresses
    servers.check()
    servers.stop()
    generate(running.addresses[0])
    monkeypatch.setattr(fleet, "_FOREIGN_TIMEOUT_S", 0.3)
    other.actor_rollout_ref.rollout.server.addresses = [f"http://127.0.0.1:{free_port()}"]
    with pytest.raises(EngineTimeout, match="is it running"):
        EngineFleet.start(other)


PARENT = """
import sys, time
from pathlib import Path
from agentrl.config.root import RunConfig
from agentrl.inference.fleet import EngineFleet
servers = EngineFleet.start(RunConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
print(servers.addresses[0], flush=True)
time.sleep(60)
"""


def test_servers_die_with_a_killed_parent(config: RunConfig, tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), config.model_dump_json(), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    address = parent.stdout.readline().strip()
    generate(address)
    offspring = psutil.Process(parent.pid).children(recursive=True)
    assert len(offspring) >= 2
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in offspring))


def test_a_stubborn_command_and_its_children_are_killed(tmp_path: Path) -> None:
    child = "import os, time; os.setsid(); time.sleep(60)"
    stubborn = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    guard = subprocess.Popen(
        [sys.executable, "-m", "agentrl.inference.guard", sys.executable, "-c", stubborn],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert guard.stdin is not None
    assert guard.stdout is not None
    escaped = psutil.Process(int(guard.stdout.readline()))
    guard.stdin.close()
    guard.wait(20)
    guard.stdout.close()
    until(lambda: not escaped.is_running() or escaped.status() == psutil.STATUS_ZOMBIE)


def test_the_guard_passes_on_the_exit_code() -> None:
    command = [sys.executable, "-m", "agentrl.inference.guard", sys.executable, "-c", "raise SystemExit(7)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as guard:
        assert guard.wait(20) == 7


@pytest.mark.parametrize(
    ("visible", "seen"), [("4,5,6,7", ["4,5", "6,7"]), (None, ["0,1", "2,3"]), ("GPU-a,GPU-b,GPU-c", None)]
)
def test_each_server_has_gpus_of_its_own(
    config: RunConfig,
    start: Callable[[RunConfig], EngineFleet],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    seen: list[str] | None,
) -> None:
    """Two servers with two GPUs each, as `CUDA_VISIBLE_DEVICES` of this process names them."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    rollout = config.actor_rollout_ref.rollout
    rollout.name, rollout.server.launch, rollout.tensor_model_parallel_size = "sglang", 2, 2
    rollout.server.python, config.trainer.device = str(make_python(tmp_path / "sglang")), "cuda"
    rollout.engine_kwargs.sglang = {"attention_backend": "fa3", "disable_overlap_schedule": True}
    if seen is None:
        with pytest.raises(EngineUnavailable, match=r"needs 2 GPUs from number 2 on, but .*=GPU-a,GPU-b,GPU-c has 3"):
            start(config)
        return
    servers = start(config)
    started = starts_of(tmp_path / "sglang")
    assert [each["env"]["CUDA_VISIBLE_DEVICES"] for each in started] == seen
    assert [f"http://127.0.0.1:{each['flags']['--port']}" for each in started] == servers.addresses
    for each in started:
        assert each["flags"]["--tp-size"] == "2"
        assert "--base-gpu-id" not in each["argv"]
        assert each["argv"][-3:] == ["--attention-backend", "fa3", "--disable-overlap-schedule"]


def test_a_server_that_fails_to_start_is_started_after_longer_and_longer_pauses(
    config: RunConfig, start: Callable[[RunConfig], EngineFleet], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(engine_host, "BACKOFF_S", 0.25)
    servers = start(config)
    monkeypatch.setattr(engine_host, "launch_command", lambda *_: [sys.executable, "-c", "raise SystemExit(3)"])
    (engine,) = engine_processes()
    engine.kill()
    until(lambda: has_ended(hosts(servers)[0]))
    with pytest.raises(EngineUnavailable, match="exit code 3"):
        servers.tend()
    told = [line for line in caplog.text.splitlines() if line.startswith(("Restarting it", "It does not start"))]
    assert told == [
        "Restarting it.",
        *(f"Restarting it in {pause} s." for pause in (0.25, 0.5, 1)),
        "It does not start: the run goes on without it.",
    ]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_the_guard_ends_by_the_signal_that_killed_the_command(number: signal.Signals) -> None:
    code = f"import os; os.kill(os.getpid(), {number.value})"
    command = [sys.executable, "-m", "agentrl.inference.guard", sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as guard:
        assert guard.wait(20) == -number


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (-9, "was killed by SIGKILL (9), out of memory?"),
        (137, "was killed by SIGKILL (9) (exit code 137), out of memory?"),
        (-11, "was killed by SIGSEGV (11)"),
        (-15, "was killed by SIGTERM (15)"),
        (1, "ended with exit code 1"),
        (0, "ended with exit code 0"),
        (255, "ended with exit code 255"),
        (None, "has not ended"),
    ],
)
def test_an_end_is_told_in_words(code: int | None, says: str) -> None:
    assert how_it_ended(code) == says
