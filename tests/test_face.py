"""`import agentrl`: it is quick, loads nothing, and every name leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import agentrl
from agentrl import errors, interfaces

ROOT = Path(__file__).resolve().parents[1]
MEASURE = """
import sys, time
before = time.process_time()
import agentrl
spent = time.process_time() - before
loaded = [name for name in ("torch", "transformers", "ray", "pydantic", "numpy") if name in sys.modules]
assert not loaded, loaded
print(spent)
"""


def test_an_import_is_quick_and_loads_nothing_else() -> None:
    def seconds() -> float:
        done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
        return float(done.stdout)

    assert min(seconds() for _ in range(3)) < 0.1


@pytest.mark.parametrize("name", agentrl.__all__)
def test_every_name_resolves(name: str) -> None:
    assert getattr(agentrl, name).__name__ == name
    assert name in dir(agentrl)


def test_the_face_has_every_error_and_every_base_class() -> None:
    named = {name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith(tails())}
    assert named <= set(agentrl.__all__)
    assert agentrl.BaseTool is interfaces.BaseTool
    assert agentrl.ConfigError is errors.ConfigError


def tails() -> tuple[str, ...]:
    return ("Error", "Unavailable", "Timeout")


def test_an_unknown_name_says_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"module 'agentrl' has no 'BaseTol'\. Did you mean 'BaseTool'"):
        _ = agentrl.BaseTol  # type: ignore[attr-defined]


def test_the_page_describes_every_name() -> None:
    page = (ROOT / "docs" / "python_api.md").read_text()
    named = set(re.findall(r"`agentrl\.(\w+)", page))
    assert set(agentrl.__all__) <= named, set(agentrl.__all__) - named
    assert named - {"__version__"} <= {*agentrl.__all__, "interfaces", "types", "testing", "plugins", "observability"}


def test_the_run_of_the_page_is_short() -> None:
    page = (ROOT / "docs" / "python_api.md").read_text()
    run = re.search(r"`my_run\.py`:\n+```python\n(.*?)```", page, re.DOTALL)
    assert run is not None
    assert run[1].count("\n") < 25
