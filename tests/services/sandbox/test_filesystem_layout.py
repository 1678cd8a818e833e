"""What the code sees, wherever the interpreter and the programs of the sandbox are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from prometheus_client import CollectorRegistry
from sandbox_service import APART, needs_level

from agentrl.errors import UserInputError
from agentrl.services.sandbox.filesystem_layout import GUEST, make_layout
from agentrl.services.sandbox.isolation_choice import choose_isolation
from agentrl.services.sandbox.languages import installed_languages
from agentrl.services.sandbox.metrics import SandboxMetrics
from agentrl.services.sandbox.options import SandboxOptions
from agentrl.services.sandbox.protocol import RunCode
from agentrl.services.sandbox.service import open_service

UIDS = range(1_900_000, 1_900_010)
ROOT = os.geteuid() == 0


def install(folder: Path) -> Path:
    """An interpreter below the folder, and one link further a virtual environment; returns the latter's program."""
    base = folder / "versions" / "3.x"
    (base / "bin").mkdir(parents=True)
    shutil.copy(os.path.realpath(sys.executable), base / "bin" / "python3")
    for part in ("lib", "include"):
        (base / part).symlink_to(Path(sys.base_prefix, part))
    (folder / "current").symlink_to("versions/3.x")
    make = [
        str(folder / "current" / "bin" / "python3"),
        "-m",
        "venv",
        "--without-pip",
        str(folder / "project" / "venv"),
    ]
    subprocess.run(make, check=True, env={"PATH": os.environ["PATH"]})
    return folder / "project" / "venv" / "bin" / "python"


@pytest.fixture(scope="module", params=["/tmp", "/dev/shm", "/root"])
def python(request: pytest.FixtureRequest) -> Iterator[Path]:
    if not os.access(request.param, os.W_OK):
        pytest.skip(f"{request.param} is not this user's to write")
    folder = Path(request.param, f"agentrl-installed-{os.getpid()}")
    folder.mkdir(mode=0o700)
    try:
        yield install(folder)
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("level", APART)
def test_an_installation_anywhere(python: Path, level: str, tmp_path: Path) -> None:
    needs_level(level)
    guest = python.parents[2] / "guest"
    shutil.copytree(GUEST, guest, dirs_exist_ok=True)
    layout = make_layout(tmp_path, str(python), UIDS, 16, guest)
    assert choose_isolation(tmp_path, layout, level, None).level == level


@pytest.mark.skipif(not ROOT, reason="only the server of root gives every run a user of its own")
def test_an_interpreter_that_runs_may_not_read(python: Path, tmp_path: Path) -> None:
    layout = make_layout(tmp_path, str(python), UIDS, 16)
    with pytest.raises(UserInputError, match="is closed to other users: open it, or give"):
        choose_isolation(tmp_path, layout, "rlimits", None)


@pytest.mark.parametrize("level", APART)
async def test_what_lies_beside_an_installation_is_not_shown(tmp_path: Path, level: str) -> None:
    needs_level(level)
    python = install(tmp_path)
    (tmp_path / "diary").write_text("sesame")
    (tmp_path / "project" / "venv" / "diary").write_text("sesame")
    packages = Path(numpy.__file__).parents[1]
    (tmp_path / "project" / "source").mkdir()
    lib = next((tmp_path / "project" / "venv" / "lib").glob("python3*"))
    (lib / "site-packages" / "more.pth").write_text(f"{packages}\n{tmp_path}/project/source\n")
    walk = "import os, numpy\nfor path, below, files in os.walk(ROOT): print(path, sorted(below + files))\n"
    code = f"ROOT = {str(tmp_path)!r}\n{walk}open('/tmp/x', 'w').close()\nopen(ROOT + '/x', 'w')"
    options = SandboxOptions(isolation=level, python=str(python), parallel=1)
    async with open_service(options, SandboxMetrics(CollectorRegistry())) as service:
        answer = await service.run_code(RunCode.model_validate({"code": code, "language": "python"}), "a client")
    assert answer.run_result is not None
    told = answer.run_result.model_dump()
    lines = told["stdout"].splitlines()
    assert lines[0] == f"{tmp_path} ['current', 'project', 'versions']"
    assert "diary" not in told["stdout"]
    assert f"{tmp_path}/project ['venv']" in lines
    assert f"{tmp_path}/project/venv ['bin', 'include', 'lib', 'lib64', 'pyvenv.cfg']" in lines
    assert not (tmp_path / "x").exists()
    if ROOT:  # else the code's user is the one who made the way there, in its own /tmp
        assert told["stderr"].splitlines()[-1].startswith("PermissionError")


def test_a_program_that_the_code_cannot_see_is_no_language(tmp_path: Path) -> None:
    """A link to it may lie in a folder that is shown; then the next one on the path counts."""
    python, hidden = install(tmp_path / "python"), tmp_path / "opt"
    hidden.mkdir()
    shutil.copy("/usr/bin/env", hidden / "lua")
    (hidden / "php").symlink_to("/usr/bin/env")
    for name, target in (("lua", hidden / "lua"), ("bash", hidden / "lua"), ("php", hidden / "php")):
        (python.parent / name).symlink_to(target)
    (python.parent / "ruby").symlink_to("/bin/env")
    found = installed_languages(make_layout(tmp_path, str(python), UIDS, 16))
    assert found["ruby"].run == (str(python.parent / "ruby"), "main.rb")
    assert found["bash"].run == (shutil.which("bash", path="/usr/local/bin:/usr/bin:/bin"), "main.sh")
    assert not {"lua", "php"} & {*found}
