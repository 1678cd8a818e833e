"""The base of every configuration model: unknown keys are errors; docstrings under fields make the reference page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator


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


class RowsDecide(Section):
    """A section in which micro-batches are cut by rows where their number is given, and by tokens elsewhere.

    As in verl, whose users write the number of rows when memory runs out. What is said about tokens counts more::

        {rows: 4}                  -> dynamic false
        {rows: 4, dynamic: true}   -> dynamic true; the number of rows has no effect
    """

    rows_key: ClassVar[str]
    """Field with the rows of a micro-batch."""
    dynamic_key: ClassVar[str]
    """Field that says whether tokens are counted instead."""

    @model_validator(mode="after")
    def _rows_decide(self) -> Self:
        if getattr(self, self.rows_key) is not None and self.dynamic_key not in self.model_fields_set:
            self.__dict__[self.dynamic_key] = False  # an assignment would validate again, without end
        return self


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

_DTYPES = {
    **dict.fromkeys(("fp32", "f32", "float"), "float32"),
    **dict.fromkeys(("bf16", "bfloat"), "bfloat16"),
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
}


def _full_name(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    name = value.lower().removeprefix("torch.")
    return _DTYPES.get(name, name)


DtypeSpelling = BeforeValidator(_full_name)
"""A data type under the other names that the field uses: `fp32`, `bf16`, `torch.bfloat16`, `half`."""
