"""The sandbox's tests once more, on a machine without bubblewrap: they pass or skip, and no test fails for the lack."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from needs import needs, needs_namespaces

SANDBOX_TESTS = Path(__file__).parent / "sandbox"
HIDE = """
for program in $(type -ap bwrap); do mount --bind "$0" "$(readlink -f "$program")"; done
exec "$@"
"""


QUICK = ("test_isolation_levels.py", "test_filesystem_layout.py", "test_run_code.py")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("files", [QUICK, pytest.param(("",), marks=pytest.mark.slow)], ids=["some", "all"])
def test_the_sandbox_tests_pass_or_skip(files: tuple[str, ...], tmp_path: Path) -> None:
    needs("bwrap", "bash")  # else the suite itself runs without it
    needs_namespaces()
    not_executable = tmp_path / "bwrap"
    not_executable.touch(mode=0o000)
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    hidden = ["unshare", *user, "--mount", "--propagation", "private", "bash", "-c", HIDE, str(not_executable)]
    # What names its level runs the same with bubblewrap installed; what asks for bubblewrap must skip.
    options = ["-p", "no:xdist", "-p", "no:cacheprovider", "-rs", "-k", "not namespaces"]
    pytest_run = [sys.executable, "-m", "pytest", *options, *(str(SANDBOX_TESTS / file) for file in files)]
    done = subprocess.run([*hidden, *pytest_run], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed, \d+ skipped", done.stdout), done.stdout[-1000:]
    skips = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert any("bwrap not found (Debian: apt-get install bubblewrap)" in line for line in skips), skips
    assert shutil.which("bwrap") is not None  # it was hidden for those tests only
