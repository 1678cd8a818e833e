"""Reward managers written for verl: padded batches in, rewards on their tokens out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.chat.renderer import ChatRenderer
from agentrl.config.reward_model import CombineConfig
from agentrl.config.root import RunConfig
from agentrl.errors import PluginError, RewardError
from agentrl.interfaces import RewardInput, RewardManager, RewardResult
from agentrl.plugins import registry
from agentrl.rewards.combine import combine
from agentrl.rewards.loading import load_reward_manager
from agentrl.testing.models import byte_tokenizer
from agentrl.types import AgentLoopOutput, Sample, TrajectoryFacts

NAIVE = """
from collections import defaultdict

import torch

from verl import DataProto
from verl.utils.reward_score import default_compute_score
from verl.workers.reward_manager import register
from verl.workers.reward_manager.abstract import AbstractRewardManager


@register("naive_of_mine")
class Mine(AbstractRewardManager):
    def __init__(self, tokenizer, num_examine, compute_score=None, reward_fn_key="data_source", scale=1.0):
        self.tokenizer = tokenizer
        self.num_examine = num_examine
        self.compute_score = compute_score or default_compute_score
        self.reward_fn_key = reward_fn_key
        self.scale = scale

    def __call__(self, data: DataProto, return_dict=False):
        if "rm_scores" in data.batch.keys():
            return data.batch["rm_scores"]
        reward_tensor = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        reward_extra_info = defaultdict(list)
        for i in range(len(data)):
            data_item = data[i]
            prompt_ids = data_item.batch["prompts"]
            prompt_length = prompt_ids.shape[-1]
            valid_prompt_length = data_item.batch["attention_mask"][:prompt_length].sum()
            valid_prompt_ids = prompt_ids[-valid_prompt_length:]
            response_ids = data_item.batch["responses"]
            valid_response_length = data_item.batch["attention_mask"][prompt_length:].sum()
            valid_response_ids = response_ids[:valid_response_length]
            prompt_str = self.tokenizer.decode(valid_prompt_ids, skip_special_tokens=True)
            response_str = self.tokenizer.decode(valid_response_ids, skip_special_tokens=True)
            extra_info = data_item.non_tensor_batch.get("extra_info", {})
            extra_info["num_turns"] = data_item.non_tensor_batch.get("__num_turns__", None)
            score = self.compute_score(
                data_source=data_item.non_tensor_batch[self.reward_fn_key],
                solution_str=response_str,
                ground_truth=data_item.non_tensor_batch["reward_model"]["ground_truth"],
                extra_info=extra_info,
            )
            reward_tensor[i, valid_response_length - 1] = score * self.scale
            reward_extra_info["acc"].append(score)
            reward_extra_info["prompt"].append(prompt_str)
        if return_dict:
            return {"reward_tensor": reward_tensor, "reward_extra_info": reward_extra_info}
        return reward_tensor
"""


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "verl"]:
        del sys.modules[name]
    registry._registry["rewards"].pop("naive_of_mine", None)


RENDERER = ChatRenderer(byte_tokenizer())


def load(folder: Path, source: str, **reward_kwargs: Any) -> RewardManager:
    file = folder / f"mine{len(list(folder.iterdir()))}.py"  # a file is imported once per process
    file.write_text(source)
    section = {"reward_manager": f"{file}:Mine", "reward_kwargs": reward_kwargs}
    return load_reward_manager(RunConfig.model_validate({"reward_model": section}), renderer=RENDERER)


def item(text: str, truth: str = "72", mask: list[int] | None = None) -> RewardInput:
    ids = RENDERER.encode_text(text)
    mask = mask or [1] * len(ids)
    sample = Sample(7, [{"role": "user", "content": "?"}], "openai/gsm8k", reward_model={"ground_truth": truth})
    output = AgentLoopOutput(RENDERER.encode_text("ask"), ids, mask, [-0.5] * len(ids))
    return RewardInput("openai/gsm8k", text, truth, {"num_turns": 2}, sample, output)


async def test_a_copy_of_verls_naive_manager_scores(tmp_path: Path) -> None:
    manager = load(tmp_path, NAIVE, scale=0.5)
    results = await asyncio.gather(*(manager.score(item(text)) for text in ("It is #### 72", "#### 7")))
    assert results == [
        RewardResult(0.5, {"acc": 1.0, "prompt": "ask"}),
        RewardResult(0.0, {"acc": 0.0, "prompt": "ask"}),
    ]
    by_name = RunConfig.model_validate({"reward_model": {"reward_manager": "naive_of_mine"}})
    assert await load_reward_manager(by_name, renderer=RENDERER).score(item("#### 72")) == RewardResult(
        1.0, {"acc": 1.0, "prompt": "ask"}
    )


async def test_an_answer_that_no_model_gave_is_scored(tmp_path: Path) -> None:
    manager = load(tmp_path, NAIVE)
    asked = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "#### 72"}]
    assert (await manager.score(RewardInput("openai/gsm8k", "#### 72", "72", {"messages": asked}))).score == 1.0


TOKENS = """
import torch

class Mine:
    def __init__(self, tokenizer, num_examine, **reward_kwargs):
        self.kwargs = reward_kwargs

    def __call__(self, data, return_dict=False):
        rewards = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        for row in range(len(data)):
            for place, value in self.kwargs["rewards"]:
                rewards[row, place] += value
        return rewards
"""


@pytest.mark.parametrize(
    ("rewards", "score", "placed"),
    [
        ([(0, 0.25), (5, 1.0)], 1.25, {0: 0.25}),
        ([(1, 0.25), (1, 0.5)], 0.75, {1: 0.75}),
        ([(3, 0.5)], 0.5, {1: 0.5}),  # on what a tool wrote: it goes to the sampled token before
        ([(4, -1.0)], -1.0, {4: -1.0}),
    ],
)
async def test_rewards_stay_on_their_tokens(
    tmp_path: Path, rewards: list[tuple[int, float]], score: float, placed: dict[int, float]
) -> None:
    manager = load(tmp_path, TOKENS, rewards=rewards)
    mask = [1, 1, 0, 0, 1, 1]
    result = await manager.score(item("abcdef", mask=mask))
    assert (result.score, dict(result.placed)) == (score, placed)
    whole = combine(result, TrajectoryFacts(), mask, CombineConfig())
    assert (whole.score, dict(whole.placed)) == (score, placed)
    half = combine(result, TrajectoryFacts(), mask, CombineConfig(outcome=0.5))
    assert (half.score, dict(half.placed)) == (score / 2, {place: value / 2 for place, value in placed.items()})


async def test_one_bad_trajectory_fails_alone(tmp_path: Path) -> None:
    source = NAIVE.replace("score * self.scale", "float('nan') if 'bad' in response_str else score * self.scale")
    manager = load(tmp_path, source)
    good, bad = await asyncio.gather(manager.score(item("#### 72")), manager.score(item("bad")), return_exceptions=True)
    assert isinstance(good, RewardResult)
    assert isinstance(bad, RewardError)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return torch.zeros(len(data))", r"Mine returned a tensor of shape \(1,\), wanted a tensor of shape \(1, 7\)"),
        ("return None", r"Mine returned None, wanted a tensor of shape \(1, 7\)"),
        ("return {'reward': 1}", r"wanted a tensor of shape \(1, 7\)"),
        ("return {'reward_tensor': ones, 'reward_extra_info': {'a': [1, 2]}}", r"reward_extra_info\['a'\] \[1, 2\]"),
        (
            "return {'reward_tensor': ones, 'reward_extra_info': {'a': {'x': 1}}}",
            r"_info\['a'\] \{'x': 1\}, wanted one",
        ),
        ("return {'reward_tensor': ones, 'reward_extra_info': [{'a': 1}]}", r"_info \[.*, wanted a mapping"),
        ("return ones / missing", r"reward manager Mine raised NameError.*mine0\.py"),
    ],
)
async def test_what_it_returns_is_checked(tmp_path: Path, body: str, words: str) -> None:
    lines = [
        "import torch",
        "class Mine:",
        "    def __init__(self, tokenizer, num_examine):",
        "        pass",
        "    def __call__(self, data, return_dict=False):",
        "        ones = torch.ones_like(data.batch['responses'])",
        f"        {body}",
    ]
    with pytest.raises(RewardError, match=words):
        await asyncio.wait_for(load(tmp_path, "\n".join(lines)).score(item("#### 72")), 20)


SINGLE = """
class Mine:
    def __init__(self, config, tokenizer, compute_score=None, reward_router_address=None):
        self.config, self.tokenizer, self.compute_score = config, tokenizer, compute_score

    async def run_single(self, data):
        (data_item,) = list(data)
        length = data_item.batch["responses"].shape[-1]
        valid = data_item.batch["attention_mask"][-length:].sum()
        text = self.tokenizer.decode(data_item.batch["responses"][:valid])
        return {"reward_score": len(text), "reward_extra_info": {"batch": self.config.data.train_batch_size}}
"""


async def test_a_manager_of_single_rows_scores(tmp_path: Path) -> None:
    assert await load(tmp_path, SINGLE).score(item("abc")) == RewardResult(3.0, {"batch": 256})


async def test_sections_of_its_options_read_as_attributes(tmp_path: Path) -> None:
    """As those of OmegaConf, which verl gives: its manager `dapo` has `overlong_buffer_cfg.enable`."""
    source = NAIVE.replace("scale=1.0)", "over=None, scale=1.0)").replace(
        "self.scale = scale", "self.scale = over.factor if over is not None and over.enable and over['len'] > 1 else 0"
    )
    manager = load(tmp_path, source, over={"enable": True, "len": 2, "factor": 0.5})
    assert (await manager.score(item("#### 72"))).score == 0.5


def test_what_its_constructor_needs_is_told(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"reward_kwargs: Mine takes no 'scael'.*'scale'"):
        load(tmp_path, NAIVE, scael=1)
    with pytest.raises(PluginError, match=r"Mine needs rounds: give reward_model.reward_kwargs"):
        load(tmp_path, TOKENS.replace("num_examine,", "num_examine, rounds,"))
    with pytest.raises(PluginError, match=r"cannot be built.*Derive it from agentrl.interfaces.RewardManager"):
        load(tmp_path, "class Mine:\n    def __init__(self, score_fn):\n        pass\n")
    with pytest.raises(PluginError, match="the reward manager 'naive' takes no options"):
        load_reward_manager(RunConfig.model_validate({"reward_model": {"reward_kwargs": {"a": 1}}}))


async def test_it_waits_for_an_async_score_function(tmp_path: Path) -> None:
    (tmp_path / "score.py").write_text(
        "async def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 0.125\n"
    )
    (tmp_path / "mine.py").write_text(NAIVE)
    config = RunConfig.model_validate(
        {
            "reward_model": {"reward_manager": f"{tmp_path / 'mine.py'}:Mine"},
            "custom_reward_function": {"path": str(tmp_path / "score.py")},
        }
    )
    assert (await load_reward_manager(config, renderer=RENDERER).score(item("x"))).score == 0.125


def test_a_function_in_the_place_of_a_manager_is_refused(tmp_path: Path) -> None:
    (tmp_path / "function.py").write_text("def rewards(data, return_dict=False):\n    return None\n")
    config = RunConfig()
    config.reward_model.reward_manager = f"{tmp_path / 'function.py'}:rewards"
    with pytest.raises(
        PluginError, match=r"built None, which has no `score`. Derive it from agentrl.interfaces.Reward"
    ):
        load_reward_manager(config)
