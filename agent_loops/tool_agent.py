"""The agent that calls tools and talks to an interaction."""

from __future__ import annotations

from typing import ClassVar

from agentrl.agent_loops.conversation import Conversation
from agentrl.interfaces import AgentLoopBase
from agentrl.pictures import content_of
from agentrl.types import AgentLoopOutput, JsonDict, Sample, StopReason


class ToolAgent(AgentLoopBase):
    """Generate, run the calls, show the results, repeat; without calls the interaction answers, or it is over.

    ::

        generate ──cut, empty, aborted──────────────────────────────▶ end
           │  ├─calls──▶ call_tools ──no turn or call left──────────▶ end
           │  │             └─answers──▶ observe ──does not fit─────▶ end
           │  └─no call─▶ ask_interaction ──none, done, out of turns▶ end
           │                └─reply────▶ observe ──does not fit─────▶ end
           ▲                                │
           └────────────fits────────────────┘
    """

    ends_alone: ClassVar[bool] = True
    sees_pictures: ClassVar[bool] = True

    async def run(self, sampling_params: JsonDict, sample: Sample) -> AgentLoopOutput:
        """Play the conversation to its end."""
        tools = self.context.tools.schemas
        talk = Conversation(self.context, sample.prompt, sampling_params, tools, index=sample.index)
        while talk.stop_reason is None:
            text = await talk.generate()
            if talk.stop_reason is not None:
                break
            turn = self.context.tool_parser.parse(text, tools) if tools else None
            if turn is not None and turn.wants_tools:
                answers = await talk.call_tools(turn)
                if answers:
                    talk.observe(answers)
                continue
            reply = await talk.ask_interaction()
            if reply is None:
                talk.stop_reason = StopReason.COMPLETED
            elif reply.should_terminate:
                talk.stop_reason = StopReason.INTERACTION_DONE
            elif talk.out_of_turns:
                talk.stop_reason = StopReason.MAX_TURNS
            else:
                talk.observe([{"role": "user", "content": content_of(reply.content, reply.image)}])
        return await talk.finish()
