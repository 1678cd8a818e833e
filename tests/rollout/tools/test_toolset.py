"""The tool boundary: whose fault it is, how long it may take, how long the answer may be."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from cpu_time import takes_less
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from agentrl.chat.renderer import ChatRenderer
from agentrl.errors import PluginError, ToolServiceError
from agentrl.interfaces import BaseTool
from agentrl.plugins import ToolSpec
from agentrl.plugins.adapt import schema_of
from agentrl.rollout.tools.responses import truncate
from agentrl.rollout.tools.toolset import RowTools, ToolSet
from agentrl.testing.models import byte_tokenizer
from agentrl.types import JsonDict, LoopLimits, ToolCall, ToolResponse


def spec(tool: Any, timeout_s: float | None = None) -> ToolSpec:
    schema = schema_of(tool, {})
    return ToolSpec(schema["function"]["name"], tool, {}, schema, timeout_s)


class Notebook(BaseTool):
    """Keeps what it is told; one page per trajectory."""

    released: list[list[str]] = []  # noqa: RUF012 - what release saw

    @classmethod
    def default_schema(cls) -> JsonDict:
        parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        return {"type": "function", "function": {"name": "note", "description": "", "parameters": parameters}}

    async def create(self, **create_kwargs: Any) -> None:
        self.page = [create_kwargs.get("first", "")]

    async def execute(self, arguments: JsonDict, **execute_kwargs: Any) -> ToolResponse:
        self.page.append(arguments["text"] + execute_kwargs.get("suffix", ""))
        return ToolResponse(text=" ".join(self.page), reward=0.5)

    async def calc_reward(self, **kwargs: Any) -> float:
        return len(self.page) * kwargs.get("each", 1.0)

    async def release(self, **kwargs: Any) -> None:
        Notebook.released.append([*self.page, kwargs.get("why", "")])


@pytest.fixture(scope="module")
def renderer(tokenizer: PreTrainedTokenizerFast) -> ChatRenderer:
    return ChatRenderer(tokenizer)


def toolset(renderer: ChatRenderer, *tools: Any, **options: Any) -> ToolSet:
    limits = LoopLimits(prompt_length=100, response_length=100, **options.pop("limits", {}))
    specs = [tool if isinstance(tool, ToolSpec) else spec(tool) for tool in tools]
    return ToolSet(specs, limits=limits, renderer=renderer, row=RowTools(**options))


def note(text: str) -> ToolCall:
    return ToolCall("note", {"text": text})


async def test_all_four_kinds_of_row_kwargs_are_honoured(renderer: ChatRenderer) -> None:
    kwargs = {
        "create_kwargs": {"first": "1"},
        "execute_kwargs": {"suffix": "!"},
        "calc_reward_kwargs": {"each": 2.0},
        "release_kwargs": {"why": "end"},
    }
    tools = toolset(renderer, Notebook, kwargs={"note": kwargs})
    await tools.start()
    (response,) = await tools.execute([note("a")])
    assert (response.text, response.reward) == ("1 a!", 0.5)
    assert await tools.calc_rewards() == {"note": 4.0}
    Notebook.released.clear()
    await tools.release()
    await tools.release()
    assert Notebook.released == [["1", "a!", "end"]]


async def test_state_lives_in_one_trajectory(renderer: ChatRenderer) -> None:
    first, second = toolset(renderer, Notebook), toolset(renderer, Notebook, kwargs={"note": None})
    for tools in (first, second):
        await tools.start()
    await first.execute([note("a")])
    assert (await second.execute([note("b")]))[0].text == " b"


async def test_only_tools_that_were_called_are_asked_for_a_reward(renderer: ChatRenderer) -> None:
    tools = toolset(renderer, Notebook)
    await tools.start()
    await tools.execute([ToolCall("note", {})])
    assert await tools.calc_rewards() == {}


async def test_a_row_may_offer_fewer_tools(renderer: ChatRenderer) -> None:
    async def other() -> str:
        """Other."""
        return ""

    tools = toolset(renderer, Notebook, other, available=["other"])
    await tools.start()
    assert [schema["function"]["name"] for schema in tools.schemas] == ["other"]
    (response,) = await tools.execute([note("a")])
    assert response.is_error
    assert response.text.startswith("There is no tool named 'note'.")
    with pytest.raises(PluginError, match="no tool is named 'nte'"):
        toolset(renderer, Notebook, available=["nte"])


async def test_a_blocking_function_neither_blocks_nor_outlives_its_deadline(renderer: ChatRenderer) -> None:
    wake = threading.Event()

    def sleepy() -> str:
        """Block."""
        wake.wait(10)
        return "slept"

    async def quick() -> str:
        """Be quick."""
        return "quick"

    tools = toolset(renderer, spec(sleepy, timeout_s=0.05), quick)
    await tools.start()
    started = time.monotonic()
    blocked = asyncio.create_task(tools.execute([ToolCall("sleepy", {})]))
    await asyncio.sleep(0)
    assert (await tools.execute([ToolCall("quick", {})]))[0].text == "quick"
    assert time.monotonic() - started < 5
    with pytest.raises(ToolServiceError, match=r"tool 'sleepy': execute took longer than 0\.05 s"):
        await blocked
    wake.set()


@pytest.mark.parametrize(
    ("error", "message"),
    [(ToolServiceError("503"), "503"), (KeyError("x"), "tool 'broken': execute raised KeyError: 'x'")],
)
async def test_failures_of_a_tool_are_not_answers(renderer: ChatRenderer, error: Exception, message: str) -> None:
    async def broken() -> str:
        """Fail."""
        raise error

    tools = toolset(renderer, broken, Notebook)
    await tools.start()
    with pytest.raises(ToolServiceError) as caught:
        await tools.execute([note("a"), ToolCall("broken", {})])
    assert str(caught.value) == message


async def test_a_tool_that_cannot_be_created_or_released(renderer: ChatRenderer) -> None:
    class Fragile(Notebook):
        async def create(self, **create_kwargs: Any) -> None:
            raise OSError("no disk")

        async def release(self, **kwargs: Any) -> None:
            raise OSError("no disk")

    tools = toolset(renderer, Fragile)
    with pytest.raises(ToolServiceError, match="tool 'note': create raised OSError: no disk"):
        await tools.start()
    await tools.release()


async def test_a_tool_that_returns_something_else(renderer: ChatRenderer) -> None:
    class Wrong(Notebook):
        async def execute(self, arguments: JsonDict, **execute_kwargs: Any) -> Any:
            return None if arguments["text"] == "none" else {"line": arguments["text"]}

    tools = toolset(renderer, Wrong)
    await tools.start()
    with pytest.raises(ToolServiceError, match=r"tool 'note': execute returned None, wanted text, .*lack a `return`"):
        await tools.execute([note("none")])
    assert [response.text for response in await tools.execute([note("a")])] == ['{"line": "a"}']


@pytest.mark.parametrize(
    ("side", "limit", "wanted"),
    [
        ("left", 4, "0123...(truncated)"),
        ("right", 4, "(truncated)...6789"),
        ("middle", 4, "01...(truncated)...89"),
        ("left", 1, "0...(truncated)"),
        ("right", 1, "(truncated)...9"),
        ("middle", 1, "0...(truncated)..."),
        ("left", 0, "...(truncated)"),
        ("right", 0, "(truncated)..."),
        ("middle", 0, "...(truncated)..."),
        ("middle", 10, "0123456789"),
    ],
)
async def test_truncation(renderer: ChatRenderer, side: str, limit: int, wanted: str) -> None:
    async def digits() -> str:
        """Digits."""
        return "0123456789"

    limits = {"max_tool_response_length": limit, "tool_response_truncate_side": side}
    tools = toolset(renderer, digits, limits=limits)
    await tools.start()
    assert (await tools.execute([ToolCall("digits", {})]))[0].text == wanted


def test_a_cut_inside_a_character_leaves_no_rubbish(renderer: ChatRenderer) -> None:
    assert truncate("ééé", 3, "left", renderer) == "é...(truncated)"
    assert truncate("ééé", 3, "right", renderer) == "(truncated)...é"


def test_megabytes_are_cut_quickly(renderer: ChatRenderer) -> None:
    long = "ab " * 3_000_000
    assert takes_less(lambda: truncate(long, 100, "middle", renderer), 0.5)
    text = truncate(long, 100, "middle", renderer)
    assert len(text) == 100 + len("...(truncated)...")


_RENDERER = ChatRenderer(byte_tokenizer())


@given(st.text(max_size=60), st.integers(0, 70), st.sampled_from(["left", "right", "middle"]))
@settings(deadline=None)
def test_what_is_kept_is_never_longer_than_the_limit(text: str, limit: int, side: str) -> None:
    mark = {"left": "...(truncated)", "right": "(truncated)...", "middle": "...(truncated)..."}[side]
    kept = truncate(text, limit, side, _RENDERER)
    if len(text.encode()) <= limit:
        assert kept == text
    else:
        head, found, tail = kept.partition(mark)
        assert found
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len((head + tail).encode()) <= limit
