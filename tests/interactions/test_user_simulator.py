"""The simulated user, against a real endpoint and by script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from agentrl.errors import ToolServiceError
from agentrl.interactions.user_simulator import UserSimulatorInteraction
from agentrl.plugins import load_interactions

TALK = [
    {"role": "system", "content": "You sell flights."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "<think>hm</think>\nHi! Where to?"},
]


class Endpoint:
    """An OpenAI-compatible server that says what it is told."""

    def __init__(self) -> None:
        self.url = ""
        self.replies: list[Any] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    async def handle(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("authorization"))
        self.bodies.append(await request.json())
        reply = self.replies.pop(0)
        if isinstance(reply, float):
            await asyncio.sleep(reply)
        if isinstance(reply, web.Response):
            return reply
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": reply}}]})


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", endpoint.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    endpoint.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"  # type: ignore[union-attr]
    yield endpoint
    await runner.cleanup()


def make(endpoint: Endpoint, **config: Any) -> UserSimulatorInteraction:
    return UserSimulatorInteraction({"base_url": endpoint.url, "model": "m", "backoff_s": 0.001, **config})


async def test_a_conversation(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIM_KEY", "secret")
    user = make(endpoint, api_key_env="SIM_KEY", temperature=0.5, max_tokens=9, extra={"seed": 1})
    await user.start_interaction(query="a flight to Oslo")
    endpoint.replies += ["<think>what now</think>To Oslo.", "Thanks! [END]"]
    first = await user.generate_response(TALK)
    assert (first.should_terminate, first.content, first.score) == (False, "To Oslo.", None)
    body = endpoint.bodies[0]
    assert {"model": "m", "temperature": 0.5, "max_tokens": 9, "seed": 1}.items() <= body.items()
    assert endpoint.keys == ["Bearer secret"]
    system, *talk = body["messages"]
    assert system["role"] == "system"
    assert "a flight to Oslo" in system["content"]
    assert "[END]" in system["content"]
    assert talk == [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Hi! Where to?"}]
    last = await user.generate_response(TALK)
    assert (last.should_terminate, last.content, last.score) == (True, "Thanks!", None)
    assert await user.calculate_score() == 0.0
    await user.finalize_interaction()


async def test_tool_rounds_are_not_for_the_users_eyes(endpoint: Endpoint) -> None:
    user = make(endpoint)
    await user.start_interaction(query="q")
    endpoint.replies += ["ok"]
    call = {"role": "assistant", "content": "<tool_call>{}</tool_call>"}
    result = {"role": "tool", "content": "7"}
    await user.generate_response([*TALK, call, result, result, {"role": "assistant", "content": "It is 7."}])
    assert endpoint.bodies[0]["messages"][1:] == [
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Hi! Where to?\n\nIt is 7."},
    ]
    await user.finalize_interaction()


@pytest.mark.parametrize(
    ("reply", "over", "score"), [("good [OK]", True, 1.0), ("bad [END]", True, 0.0), ("more", False, None)]
)
async def test_a_user_who_says_whether_it_is_content(
    endpoint: Endpoint, reply: str, over: bool, score: float | None
) -> None:
    user = make(endpoint, success_marker="[OK]", system_prompt="{persona}: {success_marker} or {stop_marker}")
    await user.start_interaction(persona="A grumpy {man}")
    endpoint.replies += [reply]
    response = await user.generate_response(TALK)
    assert (response.should_terminate, response.score) == (over, score)
    assert response.content == reply.split()[0]
    assert endpoint.bodies[0]["messages"][0]["content"] == "A grumpy {man}: [OK] or [END]"
    assert await user.calculate_score() == (score or 0.0)
    await user.finalize_interaction()


async def test_an_endpoint_that_fails_is_no_reply(endpoint: Endpoint) -> None:
    user = make(endpoint, retries=1, timeout_s=1)
    await user.start_interaction(query="q")
    endpoint.replies += [web.Response(status=500), "fine"]
    assert (await user.generate_response(TALK)).content == "fine"
    for replies, says in (
        ([web.Response(status=503, text="full") for _ in range(2)], "failed after 2 attempts: HTTP 503: full"),
        ([web.Response(status=401, text="who?")], "failed after 1 attempt: HTTP 401"),
        ([web.json_response({}), ""], "the answer holds no text"),
        ([1.5, 1.5], "no answer within 1 s"),
    ):
        endpoint.replies = list(replies)
        with pytest.raises(ToolServiceError) as caught:
            await user.generate_response(TALK)
        assert says in str(caught.value)
    await user.finalize_interaction()


@pytest.mark.parametrize("where", ["config", "row"])
async def test_a_script(where: str) -> None:
    script = {"script": ["To Oslo.", "Thanks [END]"]}
    user = UserSimulatorInteraction(script if where == "config" else {"base_url": "http://127.0.0.1:9"})
    await user.start_interaction(**({} if where == "config" else script))
    replies = [await user.generate_response(TALK) for _ in range(3)]
    assert [(r.should_terminate, r.content) for r in replies] == [(False, "To Oslo."), (True, "Thanks"), (True, "")]
    await user.finalize_interaction()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, r"`config\.base_url`"),
        ({"base_url": "localhost"}, r"`config\.base_url`"),
        ({"base_url": "http://x", "stop": "x"}, r"unknown key 'config\.stop'"),
        ({"base_url": "http://x", "api_key_env": "NO_SUCH_KEY_1"}, "environment variable 'NO_SUCH_KEY_1' is not set"),
        ({"base_url": "http://x", "system_prompt": "{"}, r"config\.system_prompt"),
        ({"script": "hello"}, "wanted a list of texts"),
    ],
)
def test_a_configuration_that_cannot_work(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        UserSimulatorInteraction(config)


async def test_a_row_that_lacks_a_field() -> None:
    user = UserSimulatorInteraction({"base_url": "http://x", "system_prompt": "{persona}"})
    with pytest.raises(ValueError, match=r"has no 'persona'.*Did you mean 'person'"):
        await user.start_interaction(person="x")


@pytest.mark.parametrize("name", ["user_simulator", "code_feedback", "gsm8k"])
def test_the_examples_load(name: str) -> None:
    assert list(load_interactions(f"interactions/{name}.yaml")) == [name]


def test_names_follow_from_classes(tmp_path: Any) -> None:
    (tmp_path / "i.yaml").write_text(
        "interaction: [{class_name: gsm8k}, {class_name: user_simulator, config: {script: []}}]"
    )
    assert list(load_interactions(tmp_path / "i.yaml")) == ["gsm8k", "usersimulator"]
