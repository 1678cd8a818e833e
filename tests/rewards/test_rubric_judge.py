"""The judge: what it is asked, how its reply is read, and that its failures are never scores."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from judge_endpoint import JudgeEndpoint, judging

from agentrl.config import load_config
from agentrl.config.judge import JudgeConfig
from agentrl.config.reward_model import CombineConfig
from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError, RewardError, ToolServiceError
from agentrl.interfaces import RewardInput, RewardResult
from agentrl.rewards.combine import combine
from agentrl.rewards.judge import RubricJudge, load_judge
from agentrl.rewards.judge_text import read_score, request_text
from agentrl.rewards.judged_answers import load_answer_scores
from agentrl.types import TrajectoryFacts

TALK = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "What is"}, {"type": "image"}, {"type": "text", "text": "it?"}],
    },
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {"at": "x"}}}],
    },
    {"role": "tool", "content": "a cat"},
    {"role": "assistant", "content": "A cat"},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes"},
]


def item(answer: str = "A cat\nYes", truth: Any = "cat", talk: Any = TALK) -> RewardInput:
    return RewardInput("own", answer, truth, {"messages": talk} if talk else {})


@pytest.fixture
def endpoint() -> Iterator[JudgeEndpoint]:
    with judging(lambda endpoint, text: '{"score": 0.5}') as found:
        yield found


@asynccontextmanager
async def judge_of(endpoint: JudgeEndpoint, **config: Any) -> AsyncIterator[RubricJudge]:
    given = {"base_url": endpoint.url, "rubric": "Is it right?", "backoff_s": 0.001, "retries": 1, **config}
    judge = RubricJudge(JudgeConfig.model_validate(given))
    yield judge
    await judge.aclose()


def test_the_text_of_a_request() -> None:
    template = "{question}|{answer}|{ground_truth}|{rubric}|{lowest}..{highest}|" + '{"score": 1}|{}'
    assert request_text(item(), "R", (0.0, 2.5), template) == (
        'What is\n[image]\nit?|A cat\nYes|cat|R|0..2.5|{"score": 1}|{}'
    )
    assert request_text(item(), "R", (0, 1), "{conversation}") == (
        "[system]\nBe brief.\n\n[user]\nWhat is\n[image]\nit?\n\n"
        '[assistant]\ncalls {"name": "look", "arguments": {"at": "x"}}\n\n[tool]\na cat\n\n[assistant]\nA cat\n\n'
        "[user]\nSure?\n\n[assistant]\nYes"
    )


def test_fields_in_an_answer_are_text() -> None:
    assert request_text(item("{ground_truth} {rubric}"), "R", (0, 1), "<{answer}>") == "<{ground_truth} {rubric}>"


def test_the_usual_template() -> None:
    text = request_text(item(truth={"target": ["cat"]}), "Is it right?", (1, 10), None)
    assert "Rubric:\nIs it right?\n" in text
    assert 'The right answer, for comparison:\n{"target": ["cat"]}\n' in text
    assert text.endswith('{"score": NUMBER}, with a NUMBER from 1 to 10.')
    for truth in (None, ""):
        assert "The right answer" not in request_text(item(truth=truth), "R", (0, 1), None)


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ('{"score": 4}', 4.0),
        ('Good.\n```json\n{"why": {"score": 9}, "score": "3.5"}\n```', 3.5),
        ('{"score": 1} no, {"score": 2}', 2.0),
        ("The {braces} are wrong. Score: 4", 4.0),
        ("**Score**: 4/5", 4.0),
        ("I first thought score: 1. Final score is 2.5.", 2.5),
        ("3", 3.0),
        (" **4** ", 4.0),
        ("5/5", 5.0),
        ("score: 1e0", 1.0),
        ("Score: 4 out of 5", 4.0),
        ("Score: 4, because 3 parts are right", 4.0),
        ("Score: 4 - good", 4.0),
    ],
)
def test_a_reply_with_a_score(reply: str, score: float) -> None:
    assert read_score(reply, (0.0, 5.0), None) == score


@pytest.mark.parametrize(
    "reply",
    [
        *("Very good", "4/10", "Score: 8/10", '{"score": null}', '{"score": true}', '{"score": "high"}', "4 of 5", ""),
        *("Score: 4-5", "score: 12 \N{EN DASH} 15", "Score is 3 to 4", "score: 3 or 4.", "Score: 4,5"),
        "Score: 4 out of 10",
    ],
)
def test_a_reply_without_a_score(reply: str) -> None:
    assert 'the reply holds no score, wanted {"score": NUMBER}' in str(read_score(reply, (0.0, 5.0), None))


@pytest.mark.parametrize(
    ("reply", "score"),
    [("-1", -1.0), (" **-1**", -1.0), ("-0.5.", -0.5), (".5", 0.5), ("-1/1", -1.0), ("+1", 1.0), ("(1)", 1.0)],
)
def test_a_lone_number_keeps_its_sign_and_point(reply: str, score: float) -> None:
    assert read_score(reply, (-1.0, 1.0), None) == score


@pytest.mark.parametrize("reply", ["\N{MINUS SIGN}1", "\N{EN DASH}1", "- 1"])
def test_a_lone_number_of_unclear_sign_is_no_score(reply: str) -> None:
    assert "the reply holds no score" in str(read_score(reply, (-1.0, 1.0), None))


def test_a_score_out_of_range() -> None:
    assert read_score("6", (0.0, 5.0), None) == (
        "the judge gave the score 6, wanted 0 to 5 (reward_model.judge.score_range)"
    )


def test_a_pattern() -> None:
    assert read_score("[[1]] or [[3]]: 5", (0, 5), r"\[\[(\d+)\]\]") == 3.0
    assert read_score("2 or 4", (0, 5), r"\d") == 4.0
    assert "wanted what matches" in str(read_score("[3]", (0, 5), r"\[\[(\d+)\]\]"))


async def test_a_request(endpoint: JudgeEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    async with judge_of(
        endpoint, model="m", api_key_env="JUDGE_KEY", temperature=0.5, max_tokens=9, extra={"seed": 1}
    ) as judge:
        verdict = await judge.score(item())
    assert (verdict.score, verdict.cached) == (0.5, False)
    assert verdict.extra == {"judge_score": 0.5, "judge_reply": '{"score": 0.5}'}
    assert verdict.metrics == {"judge_score": 0.5, "judge_cached": 0.0}
    [body] = endpoint.bodies
    assert {"model": "m", "temperature": 0.5, "max_tokens": 9, "seed": 1}.items() <= body.items()
    assert endpoint.keys == ["Bearer secret"]


@pytest.mark.parametrize("end", ["", "/", "/chat/completions"])
async def test_ways_to_write_the_address(endpoint: JudgeEndpoint, end: str) -> None:
    async with judge_of(endpoint, base_url=endpoint.url + end) as judge:
        assert (await judge.score(item())).score == 0.5


async def test_half_of_a_surrogate_pair_in_an_answer_or_a_reply(endpoint: JudgeEndpoint, tmp_path: Path) -> None:
    """JSON may hold `\\ud83d` alone, which no file and no request can."""
    endpoint.reply = lambda _, text: 'odd \ud83d {"score": 0.5}'
    for cached in (False, True):
        async with judge_of(endpoint, cache_dir=str(tmp_path)) as judge:
            verdict = await judge.score(item("half \ud83d"))
        assert (verdict.score, verdict.reply, verdict.cached) == (
            0.5,
            'odd \N{REPLACEMENT CHARACTER} {"score": 0.5}',
            cached,
        )


async def test_equal_requests_are_sent_once(endpoint: JudgeEndpoint) -> None:
    endpoint.reply = lambda _, text: f"<think>score: 0</think> score: {len(text) % 2}"
    async with judge_of(endpoint) as judge:
        verdicts = await asyncio.gather(*(judge.score(item(answer)) for answer in ["a", "a", "b", "a"]))
        assert sorted(verdict.cached for verdict in verdicts) == [False, False, True, True]
        assert (await judge.score(item("b"))).cached
    assert len(endpoint.bodies) == 2
    async with judge_of(endpoint, cache=False) as judge:
        assert not (await asyncio.gather(judge.score(item("a")), judge.score(item("a"))))[1].cached
    assert len(endpoint.bodies) == 4


async def test_a_caller_that_gives_up_does_not_take_the_reply_from_others(endpoint: JudgeEndpoint) -> None:
    asked, go = threading.Event(), threading.Event()

    def reply(_: JudgeEndpoint, text: str) -> str:
        asked.set()
        assert go.wait(30)
        return "1"

    endpoint.reply = reply
    async with judge_of(endpoint) as judge:
        first, second = (asyncio.create_task(judge.score(item())) for _ in range(2))
        assert await asyncio.to_thread(asked.wait, 30)
        first.cancel()
        go.set()
        assert (await second).score == 1.0
    assert len(endpoint.bodies) == 1


async def test_replies_are_kept_in_a_folder(endpoint: JudgeEndpoint, tmp_path: Path) -> None:
    endpoint.reply = lambda _, text: "0.25, better: [1]"
    folder = str(tmp_path / "cache")
    async with judge_of(endpoint, cache_dir=folder, pattern=r"^[\d.]+") as judge:
        assert (await judge.score(item())).score == 0.25
    async with judge_of(endpoint, cache_dir=folder, pattern=r"^[\d.]+") as judge:
        assert (await judge.score(item())).cached
    async with judge_of(endpoint, cache_dir=folder, pattern=r"\[(\d)\]") as judge:
        assert (await judge.score(item())).score == 1.0
    assert len(endpoint.bodies) == 1
    endpoint.reply = lambda _, text: "score: 0"
    async with judge_of(endpoint, cache_dir=folder, pattern=r"score: (\d)") as judge:
        verdict = await judge.score(item())
    assert (verdict.score, verdict.cached, len(endpoint.bodies)) == (0.0, False, 2), "the kept reply has no such score"


async def test_a_reply_that_cannot_be_kept_counts_all_the_same(
    endpoint: JudgeEndpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache"
    async with judge_of(endpoint, cache_dir=str(folder)) as judge:
        folder.rmdir()
        assert (await judge.score(item())).score == 0.5
    assert "reward_model.judge.cache_dir: a reply cannot be kept" in caplog.text


async def test_few_requests_at_the_same_time(endpoint: JudgeEndpoint) -> None:
    gate = threading.Barrier(2)

    def reply(_: JudgeEndpoint, text: str) -> str:
        gate.wait(30)
        return "1"

    endpoint.reply = reply
    async with judge_of(endpoint, max_concurrent=2) as judge:
        await asyncio.gather(*(judge.score(item(str(number))) for number in range(6)))
    assert endpoint.most_at_once == 2


async def test_an_endpoint_that_recovers(endpoint: JudgeEndpoint) -> None:
    statuses = [429, 500, 503]
    endpoint.reply = lambda *_: statuses.pop(0) if statuses else "1"
    async with judge_of(endpoint, retries=2) as judge:
        assert (await judge.score(item())).score == 1.0
    assert len(endpoint.bodies) == 4


async def test_one_that_does_not_is_a_failure_and_never_tells_the_key(
    endpoint: JudgeEndpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    caplog.set_level(logging.DEBUG)
    for status, asked in ((500, 2), (401, 1)):
        endpoint.reply = lambda *_, status=status: status  # type: ignore[misc]
        endpoint.bodies.clear()
        async with judge_of(endpoint, api_key_env="JUDGE_KEY") as judge:
            with pytest.raises(ToolServiceError, match=f"the judge: .*HTTP {status}") as caught:
                await judge.score(item())
            assert "sk-secret" not in f"{caught.value!r}{caught.value.__cause__!r}{caplog.text}"
            assert len(endpoint.bodies) == asked
            endpoint.reply = lambda *_: "1"
            assert (await judge.score(item())).score == 1.0, "a failure is not remembered"


async def test_one_that_hangs(endpoint: JudgeEndpoint) -> None:
    go = threading.Event()
    endpoint.reply = lambda *_: "1" if go.wait(60) else "0"
    async with judge_of(endpoint, timeout_s=0.2, retries=0) as judge:
        with pytest.raises(ToolServiceError, match=r"no answer within 0\.2 s"):
            await judge.score(item())
    go.set()


async def test_replies_without_a_score_leave_the_trajectory_out(endpoint: JudgeEndpoint) -> None:
    replies = ["hm", "1", "hm", "7"]
    endpoint.reply = lambda *_: replies.pop(0)
    async with judge_of(endpoint) as judge:
        assert (await judge.score(item("a"))).score == 1.0, "it is asked a second time"
        with pytest.raises(RewardError, match="the judge: the judge gave the score 7, wanted 0 to 1"):
            await judge.score(item("b"))


def test_the_judges_part_of_a_reward() -> None:
    facts = TrajectoryFacts(turn_scores=[1.0], turn_score_turns=[0])
    whole = combine(RewardResult(0.5, {"a": 1}), facts, [1], CombineConfig(judge=0.1), 8.0)
    parts = {"outcome_score": 0.5, "turn_score": 1.0, "tool_reward": 0, "judge_score": 8.0}
    assert (whole.score, whole.extra) == (pytest.approx(1.3), {"a": 1, **parts})
    assert combine(RewardResult(0.0), facts, [1], CombineConfig(outcome=0.0, turn=1.0, judge=0.1), 8.0).score == 1.8
    assert combine(RewardResult(0.5), facts, [1], CombineConfig()).score == 0.5


async def test_answers_outside_a_rollout(endpoint: JudgeEndpoint) -> None:
    run = {"judge": {"base_url": endpoint.url, "rubric": "r"}, "combine": {"judge": 2.0, "outcome": 3.0}}
    async with aclosing(load_answer_scores(RunConfig.model_validate({"reward_model": run}))) as scores:
        result = await scores.score(RewardInput("openai/gsm8k", "#### 72", "72"))
    assert result.score == 4.0
    run["combine"] = {"outcome": 0.0}
    async with aclosing(load_answer_scores(RunConfig.model_validate({"reward_model": run}))) as scores:
        result = await scores.score(item())
    assert (result.score, result.extra["judge_score"]) == (0.5, 0.5)


NEEDED = {"actor_rollout_ref.model.path": "m", "data.train_files": "x.parquet"}


@pytest.mark.parametrize(
    ("judge", "problem"),
    [
        ({"base_url": "localhost:8000"}, "base_url: got 'localhost:8000', wanted an http"),
        ({"rubric": None}, "rubric: not given, wanted what the judge looks for"),
        ({"rubric_path": "x.txt"}, "rubric: given, and rubric_path too"),
        ({"rubric": None, "rubric_path": "nowhere.txt"}, "rubric_path: nowhere.txt does not exist"),
        ({"api_key_env": "NO_SUCH_KEY"}, "api_key_env: the environment variable 'NO_SUCH_KEY' is not set"),
        ({"score_range": [1.0, 1.0]}, "score_range: got [1.0, 1.0], wanted the lowest score, then a higher one"),
        ({"pattern": "(x"}, "pattern: got '(x', which is no regular expression"),
        ({"template": "{awnser}"}, "template: no field is named 'awnser'. Did you mean 'answer'?"),
        ({"template": "{question}"}, "template: names neither {answer} nor {conversation}"),
    ],
)
def test_what_cannot_work_is_told_before_anything_loads(judge: dict[str, Any], problem: str) -> None:
    section = {"base_url": "http://127.0.0.1:9/v1", "rubric": "r", **judge}
    with pytest.raises(ConfigError) as caught:
        load_config({**NEEDED, "reward_model.judge": section})
    assert problem in str(caught.value)


def test_a_rubric_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "rubric.md").write_text("Is it a cat?\n")
    judge = {"base_url": "http://127.0.0.1:9/v1", "rubric_path": str(tmp_path / "rubric.md")}
    config = load_config({**NEEDED, "reward_model.judge": judge})
    assert config.reward_model.judge.rubric_text() == "Is it a cat?"
    assert load_judge(config) is not None
    config.reward_model.combine.judge = 0.0
    assert load_judge(config) is None
