"""`*.checkpoint`: what a checkpoint holds."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from agentrl.config.base import Section

Part = Literal["model", "optimizer", "extra", "hf_model"]
STATE: tuple[Part, ...] = ("model", "optimizer", "extra")
"""What a run resumes from."""


class CheckpointConfig(Section):
    """What a checkpoint holds, as in verl."""

    save_contents: list[Part] = Field(default_factory=lambda: [*STATE, "hf_model"], min_length=1)
    """`model`: the shards of the weights (with LoRA also the adapter as peft reads it); `optimizer`: the shards of its
    state; `extra`: random states; `hf_model`: the policy as a Hugging Face folder in the model's data type (not with
    LoRA, whose adapter `agentrl export` merges). A run resumes with `model` alone, or with more."""
    load_contents: list[Part] | None = Field(default=None, min_length=1)
    """What a run that resumes takes of its checkpoint; null: what `save_contents` names. `model` must be in it; the
    Hugging Face folder is never read."""

    @field_validator("save_contents", mode="before")
    @classmethod
    def _all_if_null(cls, value: Any) -> Any:
        return [*STATE, "hf_model"] if value is None else value

    @property
    def loaded(self) -> set[Part]:
        """What is read on resume."""
        return set(self.save_contents if self.load_contents is None else self.load_contents) & set(STATE)
