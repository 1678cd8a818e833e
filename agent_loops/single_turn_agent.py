"""One question, one answer."""

from __future__ import annotations

from typing import ClassVar

from agentrl.agent_loops.conversation import Conversation
from agentrl.interfaces import AgentLoopBase
from agentrl.types import AgentLoopOutput, JsonDict, Sample


class SingleTurnAgent(AgentLoopBase):
    """Samples one assistant turn; uses neither tools nor an interaction."""

    uses_tools: ClassVar[bool] = False
    uses_interaction: ClassVar[bool] = False
    ends_alone: ClassVar[bool] = True
    sees_pictures: ClassVar[bool] = True

    async def run(self, sampling_params: JsonDict, sample: Sample) -> AgentLoopOutput:
        """Render the prompt, sample, stop."""
        talk = Conversation(self.context, sample.prompt, sampling_params, index=sample.index)
        await talk.generate()
        return await talk.finish()
