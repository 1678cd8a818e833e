"""The distribution `agentrl-services`: the services without torch, Ray and the trainer."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from needs import trouble_with_namespaces
from packaging.requirements import Requirement
from service_process import wait_for_url

from agentrl.services.sandbox.seccomp import INSTALL, libseccomp

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "ray", "transformers", "accelerate", "tensorboard", "wandb", "mlflow"}


@pytest.mark.parametrize("module", ["sandbox.cli", "sandbox.app", "sandbox.service", "retrieval.cli", "command_line"])
def test_services_import_nothing_of_the_trainer(module: str) -> None:
    code = f"import sys, agentrl.services.{module}; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = told.stdout.split()
    assert not HEAVY & set(loaded)
    own = {name for name in loaded if name.startswith("agentrl") and not name.startswith("agentrl.services")}
    assert own <= {"agentrl", "agentrl.errors", "agentrl.openmp", "agentrl.otel"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = shutil.copytree(ROOT / "distributions" / "services", folder / "source")  # a build leaves files behind
    options = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--no-index")
    command = [sys.executable, "-m", "pip", "wheel", "-q", *options, "-w", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def requirements(wheel: Path, extra: str) -> set[str]:
    """Names of all distributions that an install takes, with those that they need; as installed here."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        lines = archive.read(name).decode().splitlines()
    todo = [Requirement(line.partition(": ")[2]) for line in lines if line.startswith("Requires-Dist")]
    todo = [each for each in todo if each.marker is None or each.marker.evaluate({"extra": extra})]
    found: set[str] = set()
    while todo:
        name = todo.pop().name.lower().replace("_", "-")
        if name not in found:
            found.add(name)
            needed = map(Requirement, importlib.metadata.requires(name) or [])
            todo += [each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def install(wheel: Path, folder: Path, extra: str) -> Path:
    """A fresh environment with the wheel and what it asks for, which is linked; the path of its Python."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    for name in requirements(wheel, extra):
        for file in importlib.metadata.files(name) or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (packages / top).exists():
                (packages / top).symlink_to(str(file.locate()).removesuffix(str(file)) + top)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return folder / "bin" / "python"


def ask(url: str, body: dict[str, Any]) -> Any:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.parametrize(
    ("service", "path", "body", "words"),
    [
        ("sandbox", "/run_code", {"code": "print(6 * 7)", "language": "python"}, "42"),
        ("retrieval", "/retrieve", {"query": "Why is the sky blue?", "topk": 1}, "Colour of the sky"),
    ],
)
def test_the_wheel_serves_with_what_it_asks_for(
    wheel: Path, tmp_path: Path, service: str, path: str, body: dict[str, Any], words: str
) -> None:
    if service == "sandbox" and libseccomp() is None:
        pytest.skip(INSTALL)
    needed = requirements(wheel, service)
    assert not HEAVY & needed
    assert len(needed) < 40
    python = install(wheel, tmp_path / "environment", service)
    options = ["--python", "/usr/bin/python3"] if service == "sandbox" and trouble_with_namespaces() else []
    code = "import sys; from agentrl.services.command_line import main; sys.argv[0] = 'agentrl-serve'; main()"
    command = [str(python), "-I", "-c", code, service, "--port", "0", *options]
    environment = {**os.environ, "PYTHONPATH": ""}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stderr=log, cwd=tmp_path, env=environment)
        try:
            assert words in json.dumps(ask(wait_for_url(process, log) + path, body))
        finally:
            process.terminate()
            assert process.wait(20) == 0
