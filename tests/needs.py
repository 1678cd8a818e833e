"""What tests need of the machine, and how to get it.

`make setup` runs this file, which installs the programs where it can; a test that lacks something skips and says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from ctypes.util import find_library
from functools import cache

import pytest

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOBODY = 65534
PACKAGES = {
    "bwrap": "bubblewrap",
    "unshare": "util-linux",
    "mount": "mount",
    "gcc": "gcc libc6-dev",
    "g++": "g++",
    "node": "nodejs",
    "chromium": "chromium",
    "perl": "perl",
    "curl": "curl",
    "libseccomp.so": "libseccomp2",
}
"""What `make setup` installs: packages of Debian, by the program or library that tests look for."""


def needs(*programs: str, path: str | None = None) -> None:
    """Skip the test unless the programs are on this path (the user's own, if none is given)."""
    if missing := _missing(programs, path):
        pytest.skip(f"{' and '.join(missing)} not found (Debian: {_command(missing)})")


def needs_namespaces() -> None:
    """Skip the test where this user may not make namespaces."""
    if trouble := trouble_with_namespaces():
        pytest.skip(f"no namespaces here, as in a container without privileges ({trouble})")


def needs_filter() -> None:
    """Skip the test where there is no filter of system calls: the sandbox service then does not start."""
    try:
        import pyseccomp  # noqa: F401
    except (ImportError, RuntimeError) as error:  # the latter: without the library
        pytest.skip(f"{error} (Debian: {_command(['libseccomp.so'])}; pip install pyseccomp)")


def python_with(engine: str) -> str | None:
    """The Python in which an engine runs; None: this one. Skips where the engine is not agentrl's and none is named."""
    if engine in ("embedded", "hf"):
        return None
    variable = f"AGENTRL_{engine.upper()}_PYTHON"
    if variable not in os.environ:
        pytest.skip(f"{variable} is not set: it names the Python of an environment that has {engine}")
    return os.environ[variable]


@cache
def trouble_with_namespaces() -> str:
    """Why this user may not make namespaces, found without the code under test; empty: they work."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    names = ["--mount", "--pid", "--net", "--ipc", "--uts", "--fork"]
    command = ["unshare", *user, *names, "mount", "-t", "proc", "proc", "/proc"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


@cache
def python_of_all_users() -> str:
    """An interpreter that other users can run too: as root, a sandbox without namespaces runs code as one of them."""
    for python in (sys.executable, "/usr/bin/python3"):
        with suppress(OSError):
            if os.geteuid() != 0 or subprocess.run([python, "-c", ""], user=NOBODY, check=False).returncode == 0:
                return python
    pytest.skip(f"other users can run neither {sys.executable} nor /usr/bin/python3 (Debian: apt-get install python3)")


def install_programs() -> None:
    """Install what is missing, as root or with a sudo that asks no password; else say what will be skipped."""
    missing = _missing(PACKAGES, SYSTEM_PATH)
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if missing and not _missing(["apt-get", *sudo[:1]], SYSTEM_PATH):
        apt = [*sudo, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", "--no-install-recommends"]
        for task in (["update"], _command(missing).split()[1:]):
            subprocess.run([*apt, *task], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        missing = _missing(PACKAGES, SYSTEM_PATH)
    if missing:
        sys.stdout.write(f"Tests that need {', '.join(missing)} will be skipped (Debian: {_command(missing)}).\n")


def _missing(programs: Iterable[str], path: str | None) -> list[str]:
    return [program for program in programs if not _is_there(program, path)]


def _is_there(program: str, path: str | None) -> bool:
    if program.endswith(".so"):
        return find_library(program.removeprefix("lib").removesuffix(".so")) is not None
    return shutil.which(program, path=path) is not None


def _command(programs: Iterable[str]) -> str:
    return f"apt-get install {' '.join(PACKAGES.get(program, program) for program in programs)}"


if __name__ == "__main__":
    install_programs()
