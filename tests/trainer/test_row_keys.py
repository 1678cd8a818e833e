"""Keys that no row of the run lets act are told when its rows are loaded; rewards that no row can earn are an error."""

from __future__ import annotations

import logging
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.config import load_config
from agentrl.errors import ConfigError
from agentrl.trainer.inputs import prepare

CALCULATOR = str(resources.files("agentrl.configs").joinpath("tools/calculator.yaml"))
ROLLOUT = "actor_rollout_ref.rollout."
TURNS = f"{ROLLOUT}multi_turn."
TOOL_AGENT = {f"{ROLLOUT}agent.default_agent_loop": "tool_agent"}
TOOLS = {f"{TURNS}tool_config_path": CALCULATOR}


class Run:
    """A run whose rows differ from the usual ones in some columns."""

    def __init__(self, folder: Path, model: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.folder, self.model, self.caplog = folder, model, caplog
        (folder / "plug.py").write_text(
            "from agentrl.interfaces import AgentLoopBase, BaseInteraction\n\n\n"
            "class Ask(BaseInteraction):\n    async def generate_response(self, messages): ...\n\n\n"
            "class Own(AgentLoopBase):\n    async def run(self, sampling_params, sample): ...\n"
        )
        (folder / "ask.yaml").write_text("interaction: [{name: ask, class_name: 'plug.py:Ask'}]\n")
        (folder / "loops.yaml").write_text(f"- {{name: own, _target_: '{folder}/plug.py:Own'}}\n")

    def rows(self, name: str, *rows: dict[str, Any]) -> str:
        plain = {
            "prompt": [{"role": "user", "content": "1 + 1"}],
            "data_source": "agentrl/arithmetic",
            "reward_model": {"ground_truth": "2"},
        }
        pq.write_table(pa.Table.from_pylist([{**plain, **row} for row in rows or ({},)]), self.folder / name)
        return str(self.folder / name)

    def notes(self, given: dict[str, Any], *rows: dict[str, Any]) -> list[str]:
        base = {
            "data.train_files": self.rows("train.parquet", *rows),
            "data.train_batch_size": 1,
            "data.max_prompt_length": 1000,
            "actor_rollout_ref.model.path": str(self.model),
            "actor_rollout_ref.actor.ppo_mini_batch_size": 1,
            f"{ROLLOUT}n": 2,
            "trainer.device": "cpu",
        }
        self.caplog.clear()
        with self.caplog.at_level(logging.WARNING):
            config = load_config({**base, **given})
            prepare(config)
            told = [line for line in self.caplog.messages if " no effect here: " in line]
            self.caplog.clear()
            prepare(config)
        assert not self.caplog.messages, "told twice"
        return told


@pytest.fixture
def run(tmp_path: Path, tiny_model_dir: Path, caplog: pytest.LogCaptureFixture) -> Run:
    return Run(tmp_path, tiny_model_dir, caplog)


@pytest.mark.parametrize(
    ("given", "row", "note"),
    [
        (TOOLS, {}, "tool_config_path has no effect here: the rows run single_turn_agent, which uses no tools"),
        ({**TOOLS, f"{TURNS}tool_envs": {"own": CALCULATOR}, **TOOL_AGENT}, {}, "tool_envs has no effect here: no row"),
        (
            {**TOOLS, f"{TURNS}tool_envs": {"own": CALCULATOR}, **TOOL_AGENT},
            {"extra_info": {"tool_env_name": "own"}},
            "tool_config_path has no effect here: every row names a tool set of its own",
        ),
        (
            {f"{TURNS}tool_envs": {"own": CALCULATOR, "spare": CALCULATOR}, **TOOL_AGENT},
            {"extra_info": {"tool_env_name": "own"}},
            f"{TURNS}tool_envs.spare has no effect here: no row names it",
        ),
        (
            {**TOOLS, **TOOL_AGENT},
            {"tool_config": {"available_tools": []}, "data_source": "agentrl/arithmetic"},
            "tool_config_path has no effect here: no row is offered a tool",
        ),
        (
            {f"{TURNS}interaction_config_path": "ask.yaml"},
            {},
            "interaction_config_path has no effect here: no row names",
        ),
        (TOOL_AGENT, {"agent_name": "single_turn_agent"}, "default_agent_loop has no effect here: every row names its"),
        ({f"{ROLLOUT}agent.agent_loop_config_path": "loops.yaml"}, {}, "no row runs a loop of it, all run single_turn"),
        ({f"{TURNS}max_assistant_turns": 3}, {}, "max_assistant_turns has no effect here: every row has one turn"),
        ({f"{TURNS}max_user_turns": 3, **TOOL_AGENT}, {}, "max_user_turns has no effect here: every row has one turn"),
        ({f"{TURNS}trainable_turns": "last_assistant"}, {}, "trainable_turns has no effect here: every row has one"),
        ({f"{TURNS}tool_timeout_s": 3.0}, {}, "tool_timeout_s has no effect here: every row has one turn"),
        ({f"{TURNS}format": "hermes"}, {}, "format has no effect here: the rows run single_turn_agent"),
        (
            {f"{TURNS}format": "kimi_k2"},
            {"agent_name": "react_agent"},
            "format has no effect here: no row is offered a tool",
        ),
        (
            {f"{TURNS}format": "kimi_k2", **TOOLS},
            {"agent_name": "react_agent"},
            "or their loops (react_agent) have their own",
        ),
        ({"reward_model.combine.turn": 0.5}, {}, "combine.turn has no effect here: no row has an interaction"),
        ({"reward_model.combine.tool": 0.5, **TOOL_AGENT}, {}, "combine.tool has no effect here: no row is offered"),
        ({"reward_model.combine.level": "trajectory"}, {}, "reward_model.combine.turn and tool are 0"),
        (
            {"reward_model.sandbox_fusion.url": "http://127.0.0.1:9"},
            {},
            "sandbox_fusion.url has no effect here: no row is scored by running code",
        ),
    ],
)
def test_a_key_that_acts_on_no_row_is_told(run: Run, given: dict[str, Any], row: dict[str, Any], note: str) -> None:
    given = {key: str(run.folder / value) if str(value).endswith(("ask.yaml", "loops.yaml")) else value
             for key, value in given.items()}  # fmt: skip
    assert any(note in line for line in run.notes(given, row)), run.notes(given, row)


def test_one_row_that_uses_a_key_is_enough(run: Run) -> None:
    given = {
        **TOOLS,
        f"{TURNS}interaction_config_path": str(run.folder / "ask.yaml"),
        f"{TURNS}tool_timeout_s": 3.0,
        f"{TURNS}format": "hermes",
        f"{TURNS}max_user_turns": 3,
        f"{TURNS}max_tool_calls": 3,
        f"{TURNS}trainable_turns": "last_assistant",
        f"{ROLLOUT}agent.default_agent_loop": "single_turn_agent",
        f"{ROLLOUT}agent.agent_loop_config_path": str(run.folder / "loops.yaml"),
        "reward_model.combine.turn": 0.5,
        "reward_model.combine.tool": 0.5,
        "reward_model.sandbox_fusion.url": "http://127.0.0.1:9",
    }
    rows = (
        {},
        {"agent_name": "tool_agent", "interaction_kwargs": {"name": "ask"}},
        {"agent_name": "own"},
        {"data_source": "apps", "reward_model": {"ground_truth": '{"inputs": ["1"], "outputs": ["1"]}'}},
    )
    assert run.notes(given, *({"agent_name": None, "interaction_kwargs": None, **row} for row in rows)) == []


def test_a_loop_of_the_users_own_may_do_anything(run: Run) -> None:
    given = {
        f"{ROLLOUT}agent.agent_loop_config_path": str(run.folder / "loops.yaml"),
        f"{ROLLOUT}agent.default_agent_loop": "own",
        f"{TURNS}max_user_turns": 3,
        f"{TURNS}format": "hermes",
        "reward_model.combine.turn": 0.5,
    }
    assert run.notes(given) == []


def test_a_loop_that_registers_its_own_name_is_of_the_file(run: Run) -> None:
    (run.folder / "loop.py").write_text(
        "from agentrl.interfaces import AgentLoopBase\nfrom agentrl.plugins import register\n\n\n"
        '@register("of_the_file", "agent_loops")\n'
        "class Loop(AgentLoopBase):\n    async def run(self, sampling_params, sample): ...\n"
    )
    loops = run.folder / "registered.yaml"
    loops.write_text(f"- {{name: of_the_file, _target_: '{run.folder}/loop.py:Loop'}}\n")
    agent = f"{ROLLOUT}agent."
    given = {f"{agent}agent_loop_config_path": str(loops), f"{agent}default_agent_loop": "of_the_file"}
    assert run.notes(given) == []
    assert run.notes({**given, f"{agent}agent_loop_config_path": str(run.folder / "loops.yaml")}) == [
        f"{agent}agent_loop_config_path has no effect here: no row runs a loop of it, all run of_the_file"
    ]


def test_validation_rows_use_keys_too(run: Run) -> None:
    rows = run.rows("val.parquet", {"agent_name": "tool_agent"})
    given = {**TOOLS, "data.val_files": rows}
    assert run.notes({**given, "trainer.val_before_train": True}) == []
    never = run.notes({**given, "trainer.val_before_train": False})
    assert any("tool_config_path has no effect here" in line for line in never)


def test_only_the_rows_that_are_rolled_out_count(run: Run) -> None:
    given = {**TOOLS, "data.val_files": run.rows("val.parquet"), "trainer.val_only": True}
    notes = run.notes(given, {"agent_name": "tool_agent"})
    assert any("tool_config_path has no effect here" in line for line in notes)


@pytest.mark.parametrize(
    ("combine", "given", "why"),
    [
        ({"outcome": 0, "turn": 1}, {}, "no row has an interaction"),
        ({"outcome": 0, "tool": 1}, {}, "no row is offered tools"),
        ({"outcome": 0, "tool": 1, "turn": 1}, TOOL_AGENT, "no row has an interaction and no row is offered tools"),
        ({"outcome": 0, "turn": 1}, {**TOOLS, **TOOL_AGENT}, "no row has an interaction"),
    ],
)
def test_rewards_that_would_all_be_0(run: Run, combine: dict[str, float], given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=f"reward_model.combine: outcome is 0 and {why}, so every reward would be 0"):
        run.notes({"reward_model.combine": combine, **given})


def test_a_reward_of_tools_alone(run: Run) -> None:
    assert run.notes({"reward_model.combine": {"outcome": 0, "tool": 1}, **TOOLS, **TOOL_AGENT}) == []


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "min_p"])
def test_sampling_of_training_where_nothing_is_trained(run: Run, name: str) -> None:
    given = {"data.val_files": run.rows("val.parquet"), "trainer.val_only": True, f"{ROLLOUT}{name}": 1}
    notes = run.notes({**given, f"{ROLLOUT}top_p": 0.9})
    assert any(name in note and "validation samples as rollout.val_kwargs says" in note for note in notes)
    assert "sampling is truncated" not in run.caplog.text


def test_a_variable_that_the_chat_template_lacks(run: Run) -> None:
    (note,) = run.notes({"data.apply_chat_template_kwargs": {"enable_thinkin": False}})
    assert note.startswith(
        "data.apply_chat_template_kwargs.enable_thinkin has no effect here: the chat template has no"
    )
