"""Parquet files made of rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.data.preprocess.writing import write_parquet


@pytest.fixture
def parquet(tmp_path: Path) -> Callable[..., str]:
    def write(*rows: dict[str, Any], name: str = "rows.parquet") -> str:
        return str(write_parquet(rows, tmp_path / name))

    return write
