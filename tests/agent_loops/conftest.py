"""A renderer of one id per character, and a player of scripted conversations."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from agentrl.chat.renderer import ChatRenderer
from tests.agent_loops.player import Player


@pytest.fixture(scope="session")
def renderer(tokenizer: PreTrainedTokenizerFast) -> ChatRenderer:
    return ChatRenderer(tokenizer)


@pytest.fixture
def player(renderer: ChatRenderer) -> Player:
    return Player(renderer)
