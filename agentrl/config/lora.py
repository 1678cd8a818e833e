"""The keys of LoRA: small matrices beside frozen weights that learn in their place (Hu et al., arXiv:2106.09685)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from agentrl.config.base import InputPath, Section

_NAME = re.compile(r"\w+(\.\w+)*")
USUAL_RANK = 16
"""The rank where LoRA is switched on (`lora_enable`) and no rank is given."""


def _switch(value: Any) -> Any:
    """`lora: {}` asks for nothing."""
    return None if value == {} else value


def _is_all(name: Any) -> bool:
    return isinstance(name, str) and name.strip().lower().replace("_", "-") == "all-linear"


def _one_or_many(value: Any) -> Any:
    """Layers as a list of names, or a text that is a regular expression or all-linear.

    ::

        all_linear          -> all-linear
        q_proj              -> [q_proj]
        [q_proj, v_proj]    -> [q_proj, v_proj], also where it is a text; so is q_proj,v_proj
        []                  -> null
        [all-linear]        -> all-linear
    """
    if isinstance(value, list) and len(value) == 1 and _is_all(value[0]):
        return "all-linear"
    if not isinstance(value, str):
        return None if value == [] else value
    text = value.strip()
    names = [name.strip(" '\"") for name in text.removeprefix("[").removesuffix("]").split(",") if name.strip()]
    if len(names) == 1 and _is_all(names[0]):
        return "all-linear"
    return names or None if all(_NAME.fullmatch(name) for name in names) else text


class LoraKeys(Section):
    """LoRA of one model."""

    lora_rank: int = Field(default=0, ge=0)
    """Rank of the LoRA adapters, which learn in place of the weights; 0: all weights learn. Needs `agentrl[lora]`."""
    lora_alpha: float = Field(default=16.0, gt=0)
    """What an adapter adds is scaled by `lora_alpha / lora_rank`."""
    target_modules: Annotated[str | list[str], BeforeValidator(lambda v: _one_or_many(v) or "all-linear")] = (
        "all-linear"
    )
    """The layers that get adapters: all-linear (all but the output head), a list of their names (`[q_proj, v_proj]`),
    or a regular expression for their whole paths."""
    exclude_modules: Annotated[str | list[str] | None, BeforeValidator(_one_or_many)] = None
    """Layers that get none, in the same forms; null: no exception."""
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Only 0: with dropout, log-probs would not be those of the policy that sampled."""
    lora_adapter_path: InputPath | None = None
    """Folder of an adapter to start from, as peft writes it, or a checkpoint of a run with LoRA; rank, alpha and layers
    are then the adapter's own."""
    lora_enable: Annotated[bool | None, BeforeValidator(_switch)] = None
    """false: no LoRA, whatever the other keys say; true: LoRA, of rank 16 where `lora_rank` is not given; null: LoRA
    where a rank or an adapter is given."""

    @model_validator(mode="after")
    def _usual_rank(self) -> Self:
        if self.lora_enable and self.lora_adapter_path is None and "lora_rank" not in self.model_fields_set:
            self.__dict__["lora_rank"] = USUAL_RANK  # an assignment would count as given
        return self

    @property
    def adapts(self) -> bool:
        """Whether adapters learn, and the weights stay as they are."""
        return self.lora_enable is not False and (self.lora_rank > 0 or self.lora_adapter_path is not None)
