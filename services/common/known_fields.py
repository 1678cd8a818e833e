"""The rule of both services for fields that a request should not have: 422, with the nearest name."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, model_validator

from agentrl.errors import suggest


class KnownFields(BaseModel):
    """A request, or a part of one, that may have no other fields: a mistyped name would otherwise do nothing."""

    @model_validator(mode="before")
    @classmethod
    def _name_unknown_fields(cls, given: Any) -> Any:
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for name in given if isinstance(given, dict) else ():
            if name not in known:
                raise ValueError(f"unknown field {str(name)[:60]!r}.{suggest(str(name), known)}")
        return given
