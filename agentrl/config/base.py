"""The base of every configuration model: unknown keys are errors; docstrings under fields make the reference page."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, model_validator

from agentrl.hub import holds_adapter, model_of_checkpoint
from agentrl.observability.said_once import say_once

logger = logging.getLogger(__name__)


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
    foreign_keys: ClassVar[Mapping[str, Any]] = {}
    """Of the root of a recipe: other names of its keys, and keys that it lacks; see `verl_keys`."""

    training_sections: ClassVar[dict[str, str]] = {}
    """Sections of a job and what they are called in a training's recipe: `rollout` is `actor_rollout_ref.rollout`."""

    @classmethod
    def in_training(cls, key: str) -> str:
        """`rollout.top_k` -> `actor_rollout_ref.rollout.top_k`."""
        return _moved(key, cls.training_sections)

    @classmethod
    def from_training(cls, key: str) -> str:
        """The other way round."""
        return _moved(key, {theirs: own for own, theirs in cls.training_sections.items()})


def _moved(key: str, sections: dict[str, str]) -> str:
    old = next((section for section in sections if key.startswith(f"{section}.")), None)
    return key if old is None else sections[old] + key.removeprefix(old)


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

    `input` paths are looked for as given, then beside the YAML that names them, then in agentrl's `configs/`; so are
    those that are `used` in some runs only, where a check refuses a file that does not exist, and `plugin` names that
    are written `file.py:name`.
    """

    kind: Literal["input", "output", "used", "plugin"]


InputPath = Annotated[str, PathKind("input")]
ModelPath = Annotated[InputPath, AfterValidator(lambda path: _model_of(path))]
"""A model folder or a name of the hub; of a checkpoint of a run, the model that is in it."""
TokenizerPath = Annotated[InputPath, AfterValidator(lambda path: _model_of(path, whole=False))]
"""The same for a tokenizer, which the folder of a LoRA adapter has too."""
OutputPath = Annotated[str, PathKind("output")]
UsedPath = Annotated[str, PathKind("used")]
PluginName = Annotated[str, PathKind("plugin")]
"""A name, a dotted path or `file.py:name`."""


def _model_of(path: str, *, whole: bool = True) -> str:
    found = model_of_checkpoint(path)
    if whole and found == path and holds_adapter(path):
        raise ValueError(
            f"that holds a LoRA adapter and no model: `agentrl export {path} OUT` merges it into its model"
        )
    if found != path:
        say_once(logger, logging.INFO, f"'{path}' is a checkpoint: its model is {found}")
    return found


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
