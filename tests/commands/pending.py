"""What of the field's commands does not work yet. An entry goes when its test passes."""

from __future__ import annotations

from typing import Any

import pytest

PENDING: dict[str, str] = {
    "stage2": "model.path that is a checkpoint",
    "tools_plain.yaml": "tools as name, description, parameters",
    "fsdp_sft_trainer": "agentrl.trainer.fsdp_sft_trainer",
}


def named(name: str, *values: Any) -> Any:
    """A case of a test; one that does not work yet may fail."""
    marks = [pytest.mark.xfail(reason=PENDING[name], strict=False)] if name in PENDING else []
    return pytest.param(*(values or (name,)), id=name, marks=marks)
