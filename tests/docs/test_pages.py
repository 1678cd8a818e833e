"""What the pages' commands may end with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pages import run_page


def said(folder: Path, command: str) -> list[str]:
    page = folder / "page.md"
    page.write_text(f"```bash\n{command}\necho on\n```\n")
    return run_page(page, folder, dict(os.environ), "", {})


@pytest.mark.parametrize("command", ["true", "true || true", "false || true", "(exit 1) || true"])
def test_a_command_that_may_say_no(tmp_path: Path, command: str) -> None:
    assert said(tmp_path, command) == ["on\n"]


@pytest.mark.parametrize(
    "command",
    [
        "false",
        "(exit 2) || true",
        "no-such-command || true",
        "(echo 'Traceback (most recent call last):'; exit 1) || true",
    ],
)
def test_a_command_that_fails(tmp_path: Path, command: str) -> None:
    with pytest.raises(AssertionError, match=r"page\.md, line 1"):
        said(tmp_path, command)
