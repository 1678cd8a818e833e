"""The token rules as one check on a played conversation."""

from __future__ import annotations

from agentrl.testing.contracts import check_output
from agentrl.testing.loops import ScriptedReplies
from agentrl.types import AgentLoopOutput


def check_exact(engine: ScriptedReplies, output: AgentLoopOutput) -> None:
    """Every request is a prefix of the stream (R3), and the mask marks the sampled ids and nothing else (R1, R5)."""
    check_output(output)
    assert len(engine.requests) == len(engine.replies), "the loop asked for fewer generations than the script has"
    stream = output.prompt_ids + output.response_ids
    mask = [0] * len(stream)
    for (ids, _), reply in zip(engine.requests, engine.replies, strict=True):
        if not reply.token_ids:
            continue
        end = len(ids) + len(reply.token_ids)
        assert stream[:end] == ids + reply.token_ids
        mask[len(ids) : end] = [1] * len(reply.token_ids)
    assert output.response_mask == mask[len(output.prompt_ids) :]
