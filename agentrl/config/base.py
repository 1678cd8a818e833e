"""The base of every configuration model: unknown keys are errors; docstrings under fields make the reference page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Section(BaseModel):
    """One section of the run YAML."""

    model_config = ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        validate_assignment=True,
        validate_default=True,
        frozen=False,
        allow_inf_nan=False,
    )


@dataclass(frozen=True, slots=True)
class PathKind:
    """Marks a field as a path: `~` and environment variables in it are expanded.

    `input` paths are looked for as given, then beside the YAML that names them, then in agentrl's `configs/`.
    """

    kind: Literal["input", "output"]


InputPath = Annotated[str, PathKind("input")]
OutputPath = Annotated[str, PathKind("output")]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_listed)]
"""A list of names; a single name counts as a list of one."""
