"""The interaction of a trajectory as its loop sees it: guarded, and reporting to the worker's `ServiceGate`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agentrl.errors import ToolServiceError, repr_of
from agentrl.interfaces import BaseInteraction
from agentrl.reported import valid_text
from agentrl.rollout.guarded_call import anything, guarded_call, guarded_release, number
from agentrl.rollout.service_gate import ServiceGate, interaction_service
from agentrl.rollout.tools.responses import pictures_of
from agentrl.timeline import Timeline
from agentrl.types import InteractionResponse, Message


class GuardedInteraction(BaseInteraction):
    """Forwards everything to the user's interaction, including its own attributes.

    Args:
        interaction: the trajectory's.
        name: its name in rows.
        timeout_s: deadline of each call; nobody else sets one.
        gate: is told about answers and failures.
        timeline: the trajectory's, for which it is a wait.
    """

    def __init__(
        self, interaction: BaseInteraction, name: str, timeout_s: float, gate: ServiceGate, timeline: Timeline
    ) -> None:
        super().__init__(interaction.config)
        self._interaction = interaction
        self._who = interaction_service(name)
        self._timeout_s = timeout_s
        self._gate = gate
        self._timeline = timeline

    def __getattr__(self, name: str) -> Any:
        """Attributes of the interaction besides the contract."""
        return getattr(self._interaction, name)

    async def start_interaction(self, **interaction_kwargs: Any) -> None:
        """Start it."""
        start = self._interaction.start_interaction
        with self._timeline.span("wait", f"{self._who}: start"):
            await guarded_call(
                self._who, start, (), interaction_kwargs, timeout_s=self._timeout_s, expect=anything, gate=self._gate
            )

    async def generate_response(self, messages: list[Message]) -> InteractionResponse:
        """Ask for its answer.

        Raises:
            ToolServiceError: it gives no answer in time, or not an `InteractionResponse`.
        """
        with self._timeline.span("wait", self._who):
            return await guarded_call(
                self._who,
                self._interaction.generate_response,
                (messages,),
                timeout_s=self._timeout_s,
                expect=interaction_response,
                gate=self._gate,
                answers=True,
            )

    async def calculate_score(self) -> float:
        """Ask for its score."""
        score = self._interaction.calculate_score
        with self._timeline.span("score", self._who):
            return await guarded_call(self._who, score, timeout_s=self._timeout_s, expect=number, gate=self._gate)

    async def finalize_interaction(self) -> None:
        """End it."""
        with self._timeline.span("wait", f"{self._who}: end"):
            await guarded_release(self._who, self._interaction.finalize_interaction)


def interaction_response(what: str, result: Any) -> InteractionResponse:
    """The `expect` of `generate_response`: text that a tokenizer accepts. The last reply may have none.

    Raises:
        ToolServiceError: the result is something else.
    """
    if not isinstance(result, InteractionResponse):
        raise ToolServiceError(f"{what} {repr_of(result)}, wanted an InteractionResponse")
    if result.should_terminate not in (True, False):
        raise ToolServiceError(f"{what} should_terminate {repr_of(result.should_terminate)}, wanted true or false")
    if result.content is None and result.should_terminate:
        return replace(result, content="")
    if not isinstance(result.content, str):
        raise ToolServiceError(f"{what} content {repr_of(result.content)}, wanted text")
    score = None if result.score is None else number(f"{what} score", result.score)
    return replace(
        result, content=valid_text(result.content), score=score, image=pictures_of(what, getattr(result, "image", None))
    )
