"""One question, one answer."""

from __future__ import annotations

from typing import Any, ClassVar

from agentrl.agent_loops.conversation import Conversation
from agentrl.interfaces import AgentLoopBase
from agentrl.types import AgentLoopOutput, JsonDict


class SingleTurnAgent(AgentLoopBase):
    """Samples one assistant turn; uses neither tools nor an interaction."""

    uses_tools: ClassVar[bool] = False
    uses_interaction: ClassVar[bool] = False

    async def run(self, sampling_params: JsonDict, **row_fields: Any) -> AgentLoopOutput:
        """Render the prompt, sample, stop."""
        talk = Conversation(self.context, row_fields["messages"], sampling_params, index=row_fields.get("index"))
        await talk.generate()
        return await talk.finish()
