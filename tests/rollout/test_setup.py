"""Which loop, tools and parser a row gets: sets by name, offered tools, formats, stop tools; refusals at the start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollout_helpers import ANSWER, CALL, MakeEngine, batch_of, sample

from agentrl.config.root import RunConfig
from agentrl.data.row import RowReader
from agentrl.errors import ConfigError, DataError, PluginError
from agentrl.rollout.manager import AgentLoopManager
from agentrl.rollout.setup import RolloutSetup

MakeManager = Callable[..., AgentLoopManager]


@pytest.fixture
def sets(config: RunConfig, tmp_path: Path) -> RunConfig:
    """The calculator for all, and a set of two tools."""
    (tmp_path / "mine.py").write_text(
        "def lookup(key: str):\n    '''Look up.'''\n    return key * 2\n"
        "def final_answer(answer: str):\n    '''Answer.'''\n    return answer\n"
    )
    (tmp_path / "env.yaml").write_text("tools: [{class_name: mine.py:lookup}, {class_name: mine.py:final_answer}]")
    config.actor_rollout_ref.rollout.multi_turn.tool_envs = {"books": str(tmp_path / "env.yaml")}
    return config


def in_env(index: int, name: str = "books", **fields: Any) -> Any:
    return sample(index, extra_info={"index": index, "tool_env_name": name}, **fields)


def call(name: str, **arguments: str) -> str:
    inner = ", ".join(f'"{key}": "{value}"' for key, value in arguments.items())
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{{inner}}}}}\n</tool_call>'


def said(out: Any, row: int) -> list[str]:
    return [m["content"] for m in out.non_tensor_batch["messages"][row] if m["role"] == "tool"]


def test_rows_pick_their_tool_set(sets: RunConfig, make_engine: MakeEngine, make_manager: MakeManager) -> None:
    def respond(payload: dict[str, Any]) -> tuple[list[int], str]:
        prompt = setup.renderer.decode(payload["input_ids"])
        shows = {name: f'"{name}"' in prompt.split("<|im_start|>user")[0] for name in ("calculator", "lookup")}
        text = call("lookup", key="ab") if shows["lookup"] else CALL
        assert shows["lookup"] != shows["calculator"]
        turn = payload["rid"].rpartition("-")[2]
        ids = setup.renderer.encode_text(text if turn == "0" else ANSWER)
        return [*ids, setup.renderer.turn_end_ids[-1]], "stop"

    setup = RolloutSetup.load(sets)
    out = make_manager(make_engine(respond).address).generate_sequences(batch_of([sample(0), in_env(1)]))
    assert said(out, 0) == ["7"]
    assert said(out, 1) == ["abab"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (in_env(0, "boks"), r"row 0: no tool set is named 'boks' \(`extra_info.tool_env_name`\). Did you mean 'books'"),
        (in_env(0, tools_kwargs={"calculator": {}}), "no tool is named 'calculator'"),
        (in_env(0, tool_config={"available_tools": ["lokup"]}), "no tool is named 'lokup'. Did you mean 'lookup'"),
        (in_env(0, agent_name="single_turn_agent"), "gives tools but names the agent loop 'single_turn_agent'"),
        (sample(0, tool_config={"tool_format": "hermse"}), "row 0: .*'hermse'. Did you mean 'hermes'"),
        (sample(0, agent_name="search_r1_agent"), "needs a tool named 'search'"),
        (sample(0, agent_name="langgraph_agent"), "LangGraphAgent needs the option `graph`"),
        (sample(0, agent_name="tool_agnt"), "no agent loop is named 'tool_agnt'. Did you mean 'tool_agent'"),
        (sample(0, agent_name="zzz"), "no agent loop is named 'zzz'. Known: .*react_agent.*tool_agent"),
    ],
)
def test_rows_that_cannot_be_routed(sets: RunConfig, row: Any, says: str) -> None:
    with pytest.raises(PluginError, match=says):
        RolloutSetup.load(sets).check_rows([row])


def test_without_sets_the_key_is_named(config: RunConfig) -> None:
    with pytest.raises(PluginError, match=r"The run has none: set `multi_turn.tool_envs`"):
        RolloutSetup.load(config).check_rows([in_env(0)])


def test_a_template_that_hides_the_tools_is_refused(config: RunConfig, make_manager: MakeManager) -> None:
    config.actor_rollout_ref.model.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    manager = make_manager("http://127.0.0.1:9")
    with pytest.raises(PluginError, match="row 0: the prompt does not name the tools calculator"):
        manager.check_rows([sample(0)])
    manager.check_rows([sample(0, agent_name="react_agent"), sample(1, tool_config={"available_tools": []})])


def test_a_row_has_a_format_of_its_own(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, play: Any
) -> None:
    text = 'Action: calculator\nAction Input: {"expression": "1+1"}'
    engine = make_engine(play(text, ANSWER))
    rows = [sample(0, tool_config={"tool_format": "react"}), sample(1)]
    out = make_manager(engine.address).generate_sequences(batch_of(rows))
    assert list(out.non_tensor_batch["num_tool_calls"]) == [1, 0]


def test_a_stop_tool_ends_the_trajectory(
    sets: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, play: Any, encode: Any, tmp_path: Path
) -> None:
    score = tmp_path / "score.py"
    score.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return float(extra_info['stop_tool']['arguments']['answer'] == ground_truth)\n"
    )
    sets.custom_reward_function.path = str(score)
    sets.actor_rollout_ref.rollout.multi_turn.stop_tools = ["final_answer"]
    wrong, last = call("final_answer", text="7"), call("lookup", key="a") + call("final_answer", answer="7")
    engine = make_engine(play(wrong, last))
    out = make_manager(engine.address).generate_sequences(batch_of([in_env(0)]))
    assert list(out.non_tensor_batch["stop_reason"]) == ["stop_tool"]
    assert out.meta_info["metrics"]["rollout/stop_reason/stop_tool"] == 1.0
    assert list(out.non_tensor_batch["score"]) == [1.0]
    ids = encode(last)
    assert out.batch["responses"][0][-len(ids) :].tolist() == ids
    assert out.batch["response_mask"][0][-len(ids) :].tolist() == [1] * len(ids)
    assert "'answer' is a required property" in said(out, 0)[0]
    assert out.non_tensor_batch["extra_fields"][0]["stop_tool"]["response"] == "7"


def test_a_stop_tool_gives_the_final_answer(
    sets: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, play: Any, encode: Any
) -> None:
    turns = sets.actor_rollout_ref.rollout.multi_turn
    turns.stop_tools, turns.trainable_turns = ["final_answer"], "final_answer"
    last = call("final_answer", answer="7")
    engine = make_engine(play(call("lookup", key="a"), last))
    out = make_manager(engine.address).generate_sequences(batch_of([in_env(0)]))
    ids = encode(last)
    assert out.batch["loss_mask"].sum().item() == len(ids)
    assert out.batch["loss_mask"][0][-len(ids) :].tolist() == [1] * len(ids)


def test_unknown_stop_tools_are_refused(sets: RunConfig) -> None:
    turns = sets.actor_rollout_ref.rollout.multi_turn
    turns.stop_tools = ["final_anser"]
    with pytest.raises(ConfigError, match=r"stop_tools: no tool is named 'final_anser'. Did you mean 'final_answer'"):
        RolloutSetup.load(sets)
    turns.tool_envs, turns.tool_config_path = {}, None
    with pytest.raises(ConfigError, match="The run has no tools"):
        RolloutSetup.load(sets)


def test_several_loops_in_one_batch(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, tmp_path: Path
) -> None:
    """Five loops side by side over one engine; each gets turns that it understands."""
    (tmp_path / "mine.py").write_text(
        "def search(query: str):\n    '''Find.'''\n    return f'about {query}'\n"
        "def build(model, tools):\n"
        "    from langchain.agents import create_agent\n"
        "    return create_agent(model, tools)\n"
    )
    (tmp_path / "tools.yaml").write_text("tools: [{class_name: mine.py:search}]")
    (tmp_path / "loops.yaml").write_text(
        "- {name: pad, _target_: react_agent, style: scratchpad}\n"
        "- {name: graph, _target_: langgraph_agent, graph: mine.py:build}\n"
    )
    rollout = config.actor_rollout_ref.rollout
    rollout.multi_turn.tool_config_path = str(tmp_path / "tools.yaml")
    rollout.agent.agent_loop_config_path = str(tmp_path / "loops.yaml")
    hermes = [call("search", query="q"), ANSWER]
    react = ["Action: search\nAction Input: q", f"Final Answer: {ANSWER}"]
    scripts = {
        "single_turn_agent": [ANSWER],
        "tool_agent": hermes,
        "react_agent": react,
        "pad": react,
        "search_r1_agent": ["<search>q</search>", f"<answer>{ANSWER}</answer>"],
        "graph": hermes,
    }
    names = list(scripts)

    def respond(payload: dict[str, Any]) -> tuple[list[int], str]:
        row, turn = int(payload["rid"].split("-")[2]), int(payload["rid"].rpartition("-")[2])
        stops = payload["sampling_params"]["stop"]
        assert ("</search>" in stops) == (names[row % 6] == "search_r1_agent")
        ids = setup.renderer.encode_text(scripts[names[row % 6]][turn])
        return ids if stops else [*ids, setup.renderer.turn_end_ids[-1]], "stop"

    setup = RolloutSetup.load(config)
    rows = [sample(i, agent_name=name) for i, name in enumerate(names * 3)]
    out = make_manager(make_engine(respond).address).generate_sequences(batch_of(rows))
    assert list(out.non_tensor_batch["row"]) == list(range(18))
    assert list(out.non_tensor_batch["num_turns"]) == [2, 4, 4, 4, 4, 4] * 3
    assert list(out.non_tensor_batch["num_tool_calls"]) == [0, 1, 1, 1, 1, 1] * 3
    assert set(out.non_tensor_batch["stop_reason"]) == {"completed"}
    assert list(out.non_tensor_batch["score"]) == [1.0] * 18


def test_where_rows_keep_their_tool_config() -> None:
    base = {"prompt": "hi", "data_source": "x"}
    read = RowReader("f.parquet", "prompt").sample
    offered = {"available_tools": ["a"], "tool_format": "hermes"}
    assert read({**base, "extra_info": {"tool_config": offered}}, 0, 0).tool_config == offered
    row = read({**base, "tool_config": offered, "extra_info": {"tool_env_name": "books"}}, 0, 0)
    assert (row.tool_format, row.tool_env_name) == ("hermes", "books")
    with pytest.raises(DataError, match=r"the same as extra_info\.tool_config"):
        read({**base, "tool_config": offered, "extra_info": {"tool_config": {"available_tools": ["b"]}}}, 0, 0)
    with pytest.raises(DataError, match=r"extra_info.tool_env_name.*got 3, wanted"):
        read({**base, "extra_info": {"tool_env_name": 3}}, 0, 0)
