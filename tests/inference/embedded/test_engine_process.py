"""How a server's process starts and ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_process import command, wait_healthy
from engine_servers import free_port
from starlette.testclient import TestClient

from agentrl.inference.embedded.decoder import Decoder
from agentrl.inference.embedded.frontend import Frontend
from agentrl.inference.embedded.options import EngineOptions
from agentrl.inference.embedded.server import create_app


def test_a_taken_port_and_a_bad_folder_end_with_one_line(tiny_model_dir: Path, tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = subprocess.run(
            command(tiny_model_dir, holder.getsockname()[1]), capture_output=True, text=True, timeout=60
        )
    assert taken.returncode == 3
    assert taken.stderr.count("\n") == 1
    assert "cannot listen" in taken.stderr
    missing = subprocess.run(command(tmp_path, free_port()), capture_output=True, text=True, timeout=60)
    assert missing.returncode == 2
    assert missing.stderr.count("\n") == 1


def test_it_dies_with_its_parent(tiny_model_dir: Path) -> None:
    port = free_port()
    parent = textwrap.dedent(
        f"""
        import subprocess, threading, time

        def start():
            child = subprocess.Popen({command(tiny_model_dir, port, "--die-with-parent")!r})
            print(child.pid, flush=True)

        threading.Thread(target=start).start()  # the end of a thread is not the end of the parent
        time.sleep(120)
        """
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        wait_healthy(f"http://127.0.0.1:{port}", process)
        time.sleep(1.5)
        assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
        process.kill()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("the server outlives its parent")


def test_the_server_starts_without_heavy_imports(tiny_model_dir: Path) -> None:
    """transformers, ray and the training stack cost seconds that a started server would wait for."""
    code = textwrap.dedent(
        f"""
        import sys
        from agentrl.inference.embedded.frontend import Frontend
        from agentrl.inference.embedded.options import EngineOptions
        from agentrl.inference.embedded.server import create_app
        create_app(Frontend(EngineOptions(model={str(tiny_model_dir)!r}, device="cpu")))
        heavy = {{"ray", "transformers", "pyarrow", "matplotlib", "aiohttp", "prometheus_client"}}
        print(sorted(heavy & set(sys.modules)))
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_a_broken_engine_answers_503_and_ends_the_process(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Decoder, *_: Any) -> None:
        raise RuntimeError("out of memory, say")

    told: list[bool] = []
    frontend = Frontend(EngineOptions(model=str(tiny_model_dir), device="cpu"))
    frontend.engine.on_failure = lambda: told.append(True)
    with TestClient(create_app(frontend)) as client:
        assert client.get("/health").status_code == 200
        monkeypatch.setattr(Decoder, "forward", broken)
        for _ in range(2):
            response = client.post("/generate", json={"input_ids": [1]})
            assert response.status_code == 503
            assert "out of memory, say" in response.json()["error"]["message"]
        assert client.get("/health").status_code == 503
    assert told == [True]


def test_the_process_ends_when_the_engine_fails(tiny_model_dir: Path, tmp_path: Path) -> None:
    port, broken = free_port(), tmp_path / "broken"
    code = textwrap.dedent(
        f"""
        import os, sys
        from agentrl.inference.embedded.decoder import Decoder
        from agentrl.inference.embedded.__main__ import main

        well = Decoder.forward
        Decoder.forward = lambda *given: 1 / 0 if os.path.exists({str(broken)!r}) else well(*given)
        sys.exit(main(["--model", {str(tiny_model_dir)!r}, "--port", "{port}", "--device", "cpu"]))
        """
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as process:
        wait_healthy(f"http://127.0.0.1:{port}", process)
        broken.touch()
        httpx.post(f"http://127.0.0.1:{port}/generate", json={"input_ids": [1]}, timeout=30)
        assert process.wait(20) == 1
        assert process.stderr is not None
        assert "ZeroDivisionError" in process.stderr.read()
