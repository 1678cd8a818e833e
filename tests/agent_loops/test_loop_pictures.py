"""Pictures in conversations: of tools (agentrl's and verl's), of interactions, sampled placeholders, and limits."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from agentrl.chat.loading import load_renderer
from agentrl.chat.renderer import ChatRenderer
from agentrl.chat.tool_parsers.hermes import HermesToolParser
from agentrl.errors import TokenStreamError, ToolServiceError
from agentrl.interfaces import BaseInteraction, BaseTool
from agentrl.pictures import Picture, pictures_in, read_picture
from agentrl.plugins import resolve
from agentrl.rollout.tools.recording import ToolCache
from agentrl.rollout.tools.toolset import RowTools, ToolSet
from agentrl.testing.loops import WIDE, ScriptedReplies, make_context, sampled
from agentrl.testing.vision_models import build_tiny_vision_model
from agentrl.trajectory import Trajectory
from agentrl.types import AgentLoopOutput, InteractionResponse, JsonDict, LoopLimits, StopReason, ToolResponse
from tests.agent_loops.player import tool_spec

CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
PIXELS = np.full((16, 24, 3), 7, np.uint8)
SHOWN = read_picture(PIXELS)
SCHEMA = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}


class Look(BaseTool):
    """Shows a picture."""

    images: Sequence[Any] = (PIXELS,)

    @classmethod
    def default_schema(cls) -> JsonDict:
        return SCHEMA

    async def execute(self, arguments: JsonDict, **kwargs: Any) -> ToolResponse:
        return ToolResponse("here", image=list(self.images))


class Asks(BaseInteraction):
    async def generate_response(self, messages: list[JsonDict]) -> InteractionResponse:
        return InteractionResponse(len(messages) > 3, "And this?", image=[SHOWN])


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> ChatRenderer:
    return load_renderer(str(build_tiny_vision_model(tmp_path_factory.mktemp("seeing"))))


async def play(
    renderer: ChatRenderer,
    replies: Sequence[Any],
    *,
    tool: Any = Look,
    interaction: BaseInteraction | None = None,
    limits: LoopLimits = WIDE,
    row: RowTools | None = None,
    sees: bool = True,
) -> tuple[AgentLoopOutput, Trajectory]:
    ends = renderer.turn_end_ids
    turns = [[*renderer.encode_text(each), *ends] if isinstance(each, str) else each for each in replies]
    tools = ToolSet([tool_spec(tool)], limits=limits, renderer=renderer, row=row, sees_pictures=sees)
    await tools.start()
    made: list[Trajectory] = []
    assert renderer.vision is not None
    placeholders = renderer.vision.tokens.placeholders

    def new_trajectory(ids: list[int]) -> Trajectory:
        made.append(Trajectory(ids, 1000, max_pictures=limits.max_images, placeholders=placeholders))
        return made[-1]

    engine = ScriptedReplies([sampled(ids) for ids in turns])
    context = make_context(
        renderer, engine, tool_parser=HermesToolParser(), tools=tools, interaction=interaction, limits=limits
    )
    object.__setattr__(context, "new_trajectory", new_trajectory)
    output = await resolve("agent_loops", "tool_agent")(context).run({}, messages=[{"role": "user", "content": "go"}])
    await tools.release()
    return output, made[-1]


def proves(renderer: ChatRenderer, output: AgentLoopOutput, stream: Trajectory, shown: list[Picture]) -> None:
    """The stream is the canonical rendering of its messages, and the mask is 0 over all placeholders."""
    assert renderer.vision is not None
    messages = output.extra_fields["messages"]
    ids = [*output.prompt_ids, *output.response_ids]
    canonical = renderer.render(messages, [SCHEMA])
    assert canonical[: len(ids)] == ids
    assert stream.pictures == shown == pictures_in(messages)
    renderer.vision.check(ids, stream.pictures)
    marks = zip(output.response_ids, output.response_mask, strict=True)
    assert [mark for token, mark in marks if token == renderer.vision.tokens.image and mark] == []


@pytest.mark.parametrize(
    "value", [PIXELS, Image.fromarray(PIXELS), SHOWN.data, {"bytes": SHOWN.data}, SHOWN.data_uri()]
)
async def test_pictures_of_a_tool(seeing: ChatRenderer, value: Any) -> None:
    class Shows(Look):
        images = (value,)

    output, stream = await play(seeing, [CALL, "I see."], tool=Shows)
    proves(seeing, output, stream, [SHOWN])
    assert output.extra_fields["messages"][2]["content"] == [
        {"type": "image", "image": SHOWN},
        {"type": "text", "text": "here"},
    ]


async def test_pictures_of_a_tool_written_for_verl(seeing: ChatRenderer) -> None:
    class VerlLook:
        def __init__(self, config: Any, tool_schema: Any) -> None:
            self.tool_schema = tool_schema

        def get_openai_tool_schema(self) -> Any:
            return SCHEMA

        async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, Any]:
            return "a", None

        async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> tuple[Any, float, dict]:
            from agentrl.plugins.verl.base_classes import ToolResponse as VerlResponse

            return VerlResponse(text="here", image=[Image.fromarray(PIXELS)]), 0.5, {}

        async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
            return 0.0

        async def release(self, instance_id: str, **kwargs: Any) -> None:
            pass

    output, stream = await play(seeing, [CALL, "I see."], tool=VerlLook)
    proves(seeing, output, stream, [SHOWN])
    assert output.extra_fields["tool_rewards"] == [0.5]


async def test_pictures_of_an_interaction(seeing: ChatRenderer) -> None:
    output, stream = await play(seeing, ["one", "two"], interaction=Asks({}))
    proves(seeing, output, stream, [SHOWN])


async def test_a_picture_that_no_turn_answers_is_not_kept(seeing: ChatRenderer) -> None:
    output, stream = await play(seeing, [CALL, []])
    assert output.stop_reason is StopReason.EMPTY
    assert (stream.pictures, stream.context_pictures) == ([], [SHOWN])


async def test_more_pictures_than_may_be_shown_end_the_conversation(seeing: ChatRenderer) -> None:
    output, stream = await play(seeing, [CALL, CALL, "no"], limits=LoopLimits(1000, 1000, max_images=1))
    assert output.stop_reason is StopReason.LENGTH
    assert stream.pictures == [SHOWN]


async def test_a_sampled_placeholder_ends_the_conversation(seeing: ChatRenderer) -> None:
    assert seeing.vision is not None
    image = seeing.vision.tokens.image
    output, stream = await play(seeing, [[*seeing.encode_text(CALL), image], "no"])
    assert output.stop_reason is StopReason.COMPLETED
    assert (output.response_ids[-1], output.response_mask[-1]) == (image, 1)
    with pytest.raises(TokenStreamError, match="ends in a placeholder"):
        stream.append_observation([1])
    with pytest.raises(TokenStreamError, match="ends in a placeholder"):
        stream.append_completion(sampled([1]))


@pytest.mark.parametrize(
    ("images", "sees", "what"),
    [
        ([b"no picture"], True, "execute returned an image that cannot be shown: cannot read a picture from 10 bytes"),
        (["/etc/hostname"], True, "an image that cannot be shown: got text, wanted a data URI or base64"),
        ([PIXELS], False, "returned images or videos, wanted text"),
    ],
)
async def test_pictures_that_cannot_be_shown_fail_the_call(
    seeing: ChatRenderer, images: list[Any], sees: bool, what: str
) -> None:
    class Shows(Look):
        pass

    Shows.images = images
    with pytest.raises(ToolServiceError, match=what):
        await play(seeing, [CALL, "I see."], tool=Shows, sees=sees)


async def test_a_replay_shows_the_recorded_pictures(seeing: ChatRenderer, tmp_path: Path) -> None:
    cache = ToolCache("record", tmp_path)
    recorded, first = await play(seeing, [CALL, "I see."], row=RowTools(records=cache.trajectory("t")))
    cache.close()

    class Gone(Look):
        async def execute(self, arguments: JsonDict, **kwargs: Any) -> ToolResponse:
            raise AssertionError("a replay calls no tool")

    replay = ToolCache("replay", tmp_path)
    again, second = await play(seeing, [CALL, "I see."], tool=Gone, row=RowTools(records=replay.trajectory("t")))
    assert (again.response_ids, second.pictures) == (recorded.response_ids, first.pictures)
    assert io.BytesIO(second.pictures[0].data).read(4) == b"\x89PNG"
