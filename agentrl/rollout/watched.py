"""An interaction that tells the worker's `ServiceGate` how its service does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from agentrl.errors import InfrastructureError
from agentrl.interfaces import BaseInteraction
from agentrl.rollout.deadline import within
from agentrl.rollout.service_gate import ServiceGate, interaction_service
from agentrl.rollout.tools.toolset import valid_text
from agentrl.types import InteractionResponse, Message


class WatchedInteraction(BaseInteraction):
    """Passes everything on to the interaction of a trajectory, its own attributes included.

    Args:
        interaction: the trajectory's.
        name: its name in rows.
        gate: is told which answers came and which failed.
    """

    def __init__(self, interaction: BaseInteraction, name: str, gate: ServiceGate) -> None:
        super().__init__(interaction.config)
        self._interaction = interaction
        self._service = interaction_service(name)
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        """What the interaction has besides the contract."""
        return getattr(self._interaction, name)

    async def start_interaction(self, **interaction_kwargs: Any) -> None:
        """Start it."""
        with self._watch():
            await within(None, self._interaction.start_interaction(**interaction_kwargs))

    async def generate_response(self, messages: list[Message]) -> InteractionResponse:
        """Ask for its answer.

        Raises:
            TypeError: it is none.
        """
        with self._watch():
            response = await within(None, self._interaction.generate_response(messages))
        self._gate.succeeded(self._service)
        if not isinstance(response, InteractionResponse):
            raise TypeError(f"{self._service}: generate_response returned {response!r}, wanted an InteractionResponse")
        if not isinstance(response.content, str):
            if response.should_terminate and response.content is None:
                return replace(response, content="")
            raise TypeError(f"{self._service}: its content is {response.content!r}, wanted text")
        return replace(response, content=valid_text(response.content))

    async def calculate_score(self) -> float:
        """Ask for its score."""
        with self._watch():
            return await within(None, self._interaction.calculate_score())

    async def finalize_interaction(self) -> None:
        """End it; a failure here says nothing about later trajectories."""
        await within(None, self._interaction.finalize_interaction())

    @contextmanager
    def _watch(self) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        except (InfrastructureError, OSError) as error:
            self._gate.failed(self._service, started, f"{type(error).__name__}: {error}")
            raise
