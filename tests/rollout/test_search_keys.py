"""The keys of search runs: the service, the number of searches, and the markers around documents, in masks too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rollout_helpers import MakeEngine, batch_of, sample

from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError
from agentrl.rollout.manager import AgentLoopManager
from agentrl.rollout.setup import RolloutSetup
from agentrl.tools.search import Search
from agentrl.types import JsonDict

URL = "http://127.0.0.1:8000/retrieve"
QUESTION = "<search>capital of France</search>"
ANSWER = "<answer>Paris</answer>"


@pytest.fixture
def searching(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Rows without a loop of their own search, in a service that finds one document."""
    rollout = config.actor_rollout_ref.rollout
    rollout.multi_turn.tool_config_path = rollout.multi_turn.max_assistant_turns = None
    asked = []

    async def post(self: Any, path: str, body: JsonDict) -> JsonDict:
        asked.append((self.url + path, body["topk"]))
        return {"result": [[{"document": {"contents": '"Paris"\nIn France.'}, "score": 1.0}]]}

    monkeypatch.setattr("agentrl.interfaces.ServiceClient.post", post)
    given: Any = config.model_dump()
    del given["actor_rollout_ref"]["rollout"]["agent"]["default_agent_loop"]
    config = RunConfig.model_validate({**given, "do_search": True, "retriever": {"url": URL, "topk": 2}})
    object.__setattr__(config, "_asked", asked)
    return config


def roll_out(config: RunConfig, make_engine: MakeEngine, texts: list[str]) -> Any:
    setup = RolloutSetup.load(config)

    def respond(payload: JsonDict) -> tuple[list[int], str]:
        turn = int(payload["rid"].rpartition("-")[2])
        return setup.renderer.encode_text(texts[min(turn, len(texts) - 1)]), "stop"

    manager = AgentLoopManager(config, [make_engine(respond).address])
    try:
        return manager.generate_sequences(batch_of([sample(0, agent_name=None)])), setup.renderer
    finally:
        manager.shutdown()


def text_where(out: Any, renderer: Any, mask: str, bit: int) -> str:
    length = int(out.batch["attention_mask"][0, out.batch["prompts"].shape[1] :].sum())
    ids, bits = out.batch["responses"][0, :length], out.batch[mask][0, :length]
    return str(renderer.encoder.decode(ids[bits == bit].tolist()))


def test_a_search_run(searching: RunConfig, make_engine: MakeEngine) -> None:
    out, renderer = roll_out(searching, make_engine, [QUESTION, ANSWER])
    assert searching._asked == [(URL, 2)]
    assert "<information>Results for: capital of France" in text_where(out, renderer, "response_mask", 0)
    assert text_where(out, renderer, "loss_mask", 1) == QUESTION + ANSWER


@pytest.mark.parametrize(("turns", "searches"), [(None, 10), (0, 0), (2, 2)])
def test_the_number_of_searches(
    searching: RunConfig, make_engine: MakeEngine, turns: int | None, searches: int
) -> None:
    searching.max_turns = turns
    searching.data.max_response_length = 4000
    searching.actor_rollout_ref.rollout.response_length = None
    roll_out(searching, make_engine, [QUESTION])
    assert len(searching._asked) == searches


def test_other_markers_are_seen_in_the_response_and_in_the_masks(searching: RunConfig, make_engine: MakeEngine) -> None:
    """The documents stand in them; what the model itself writes in them was sampled, but is not trained on."""
    made_up = "<doc>It is Rome.</doc> "
    masking = searching.algorithm.state_masking
    masking.start_state_marker, masking.end_state_marker = "<doc>", "</doc>"
    out, renderer = roll_out(searching, make_engine, [made_up + QUESTION, "<information>x</information>" + ANSWER])
    said = text_where(out, renderer, "response_mask", 0)
    assert said.strip().startswith("<doc>Results")
    assert said.strip().endswith("</doc>")
    assert text_where(out, renderer, "response_mask", 1).startswith(made_up)
    trained = " " + QUESTION + "<information>x</information>" + ANSWER
    assert text_where(out, renderer, "loss_mask", 1) == trained
    masking.start_state_marker = masking.end_state_marker = None
    out, renderer = roll_out(searching, make_engine, [made_up + QUESTION, ANSWER])
    assert text_where(out, renderer, "loss_mask", 1) == made_up + QUESTION + ANSWER


def test_one_marker_goes_with_the_usual_other_one(searching: RunConfig) -> None:
    searching.algorithm.state_masking.start_state_marker = "<docs>"
    assert searching.algorithm.state_masking.markers() == ("<docs>", "</information>")


def test_the_service_of_a_tool_yaml_is_replaced(searching: RunConfig, tmp_path: Path) -> None:
    tools = tmp_path / "tools.yaml"
    tools.write_text(
        "tools: [{class_name: calculator}, {class_name: search, "
        "config: {retrieval_service_url: 'http://old', topk: 9, timeout_s: 5}}]"
    )
    turns = searching.actor_rollout_ref.rollout.multi_turn
    turns.tool_config_path = str(tools)
    searching.retriever.topk = None
    calculator, search = RolloutSetup.load(searching).tools
    assert calculator.name == "calculator"
    assert (search.cls, search.timeout_s) == (Search, 5)
    assert search.config == {"retrieval_service_url": URL, "topk": 9, "timeout_s": 5}
    turns.tool_envs = {"books": str(tools)}
    turns.tool_config_path = None
    setup = RolloutSetup.load(searching)
    assert not setup.tools
    assert setup.tool_envs["books"][1].config["retrieval_service_url"] == URL


def test_there_is_nothing_to_search_in(config: RunConfig, tmp_path: Path) -> None:
    config.retriever.topk = 2
    with pytest.raises(ConfigError, match=r"retriever.topk: got 2, but no tool of the run is named search: set"):
        RolloutSetup.load(config)
    (tmp_path / "mine.py").write_text("def search(query: str):\n    '''Look up.'''\n    return query\n")
    (tmp_path / "tools.yaml").write_text("tools: [{class_name: mine.py:search}]")
    config.actor_rollout_ref.rollout.multi_turn.tool_config_path = str(tmp_path / "tools.yaml")
    with pytest.raises(ConfigError, match=r"the tool named search in .* is your own: give its service in its `config`"):
        RolloutSetup.load(config)
