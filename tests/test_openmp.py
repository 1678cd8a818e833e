"""Threads wait asleep: in the process that imports agentrl, and in those that it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from agentrl.openmp import OWN_WISHES, SPIN_COUNT, SPINS

SHOW = f"import json, os, sys; json.dump({{name: os.environ.get(name) for name in {OWN_WISHES!r}}}, sys.stdout)"


@pytest.mark.parametrize(
    ("own", "then"),
    [
        ({}, {SPINS: SPIN_COUNT}),
        ({SPINS: "7"}, {SPINS: "7"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
    ],
    ids=["by default", "a count of the user's own", "a policy of the user's own"],
)
def test_what_a_process_and_its_children_have(own: dict[str, str], then: dict[str, str]) -> None:
    code = f"import subprocess, sys, agentrl; subprocess.run([sys.executable, '-c', {SHOW!r}], check=True)"
    clean = {name: value for name, value in os.environ.items() if name not in OWN_WISHES}
    shown = subprocess.run([sys.executable, "-c", code], env=clean | own, capture_output=True, text=True, check=True)
    assert {name: value for name, value in json.loads(shown.stdout).items() if value} == then


def test_agentrl_itself_does_not_import_torch_first() -> None:
    code = "import sys, agentrl; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
