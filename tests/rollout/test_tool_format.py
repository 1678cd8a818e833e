"""The run's and a row's tool parser."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from agentrl.chat.tool_parsers.auto import AutoToolParser
from agentrl.chat.tool_parsers.react import ReactToolParser
from agentrl.config.root import RunConfig
from agentrl.errors import PluginError
from agentrl.rollout.setup import RolloutSetup, _parser
from agentrl.types import Sample


@pytest.fixture
def config(tiny_model_dir: Path) -> RunConfig:
    config = RunConfig()
    config.actor_rollout_ref.model.path = str(tiny_model_dir)
    config.actor_rollout_ref.rollout.multi_turn.format = "auto"
    return config


def test_auto_reads_the_template_of_the_model_and_says_so_once(
    config: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    _parser.cache_clear()
    caplog.set_level(logging.INFO, "agentrl")
    first, second = RolloutSetup.load(config), RolloutSetup.load(config)
    assert isinstance(first.parser, AutoToolParser)
    assert first.parser.format.name == "hermes"
    assert first.parser is second.parser
    assert len([line for line in caplog.messages if line.startswith("tool calls: format 'hermes', because")]) == 1


def test_auto_with_a_template_that_says_nothing(config: RunConfig) -> None:
    config.actor_rollout_ref.model.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    with pytest.raises(PluginError, match=r"shows no tool-call format that agentrl knows.*hermes"):
        RolloutSetup.load(config)


def test_a_row_names_its_own_format(config: RunConfig) -> None:
    setup = RolloutSetup.load(config)
    row = Sample(0, [{"role": "user", "content": "?"}], "openai/gsm8k", tool_config={"tool_format": "react"})
    assert isinstance(setup.parser_of(row), ReactToolParser)
