"""The base of every configuration model: unknown keys are errors, docstrings under fields become the reference page."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """One section of the run YAML."""

    model_config = ConfigDict(
        extra="forbid", use_attribute_docstrings=True, validate_assignment=True, validate_default=True, frozen=False
    )
