"""The interaction `units_coach`: a user who insists on the unit of an answer."""

from __future__ import annotations

from typing import Any

from agentrl.interfaces import BaseInteraction
from agentrl.types import InteractionResponse, Message


class UnitsCoach(BaseInteraction):
    """Continues until the answer names the row's unit (`interaction_kwargs.unit`)."""

    async def start_interaction(self, unit: str = "m", **interaction_kwargs: Any) -> None:
        """Remember the unit."""
        self.unit = unit

    async def generate_response(self, messages: list[Message]) -> InteractionResponse:
        """Look for the unit among the words of the last turn."""
        named = self.unit in messages[-1]["content"].split()
        return InteractionResponse(named, "" if named else f"In {self.unit}, please.", float(named))
