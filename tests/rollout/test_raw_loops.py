"""Loops that build their output by hand: the run's budget holds for them too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rollout_helpers import MakeEngine, batch_of, sample, use_plugins
from transformers import PreTrainedTokenizerFast

from agentrl.config.root import RunConfig
from agentrl.errors import FailureBudgetError
from agentrl.rollout.manager import AgentLoopManager

PLUGINS = """
from agentrl.interfaces import AgentLoopBase
from agentrl.interactions.gsm8k import Gsm8kInteraction as Other
from agentrl.tools.calculator import Calculator as Tool
from agentrl.types import AgentLoopOutput


class Loop(AgentLoopBase):
    async def run(self, sampling_params, messages, extra_info, **row):
        prompt = self.context.renderer.render_prompt(messages)
        ids, mask, log_probs = [], [], []
        for _ in range(2):
            out = await self.context.generate(prompt + ids, {**sampling_params, **extra_info.get("asks", {})})
            ids, mask, log_probs = ids + out.token_ids, mask + [1] * len(out.token_ids), log_probs + out.log_probs
            read = [] if len(mask) > len(out.token_ids) else [5] * 10
            ids, mask, log_probs = ids + read, mask + [0] * len(read), log_probs + [0.0] * len(read)
        times = extra_info.get("times", 1)
        return AgentLoopOutput(
            prompt_ids=prompt, response_ids=ids * times, response_mask=mask * times,
            response_logprobs=log_probs * times, num_turns=4, stop_reason="completed",
        )


def score(**kwargs):
    return 1.0
"""


@pytest.mark.parametrize(
    ("per_turn", "asks", "wanted"),
    [
        (None, {}, (512, 488)),
        (500, {}, (500, 488)),
        (500, {"max_new_tokens": 490}, (490, 488)),
        (None, {"max_new_tokens": 9999}, (512, 488)),
    ],
)
def test_a_turn_without_a_limit_gets_what_is_left_of_the_response(
    per_turn: int | None,
    asks: dict[str, int],
    wanted: tuple[int, int],
    config: RunConfig,
    tmp_path: Path,
    make_engine: MakeEngine,
    make_manager: Callable[..., AgentLoopManager],
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    use_plugins(config, tmp_path, PLUGINS)
    config.actor_rollout_ref.rollout.multi_turn.max_tokens_per_turn = per_turn
    engine = make_engine(lambda payload: ([7] * 14, "stop"))
    manager = make_manager(engine.address)
    out = manager.generate_sequences(batch_of([sample(0, extra_info={"asks": asks})]))
    assert out.batch["response_mask"].tolist() == [[1] * 14 + [0] * 10 + [1] * 14]
    limits = [request["sampling_params"]["max_new_tokens"] for request in engine.requests]
    assert tuple(limits) == wanted
    assert all(tokenizer.eos_token_id in r["sampling_params"]["stop_token_ids"] for r in engine.requests)
    with pytest.raises(
        FailureBudgetError, match=r"agent loop 'mine': its response has 532 tokens, but data.max_response_length is 512"
    ):
        manager.generate_sequences(batch_of([sample(0, extra_info={"times": 14})]))
