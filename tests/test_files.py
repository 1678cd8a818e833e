"""Every file that a user names is found in the same places and read by the same rules, whatever its kind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.chat.loading import load_renderer
from agentrl.config import load_config
from agentrl.errors import AgentRLError, ConfigError
from agentrl.files import find_file, find_input
from agentrl.plugins import load_agent_loops, load_interactions, load_tools, resolve
from agentrl.testing.models import byte_tokenizer
from agentrl.yaml_reader import parse_flow

PLUGINS = """
from agentrl.interfaces import AgentLoopBase, BaseInteraction, BaseTool

class Tool(BaseTool):
    async def execute(self, arguments): ...

class Talk(BaseInteraction):
    async def generate_response(self, messages): ...

class Loop(AgentLoopBase):
    def __init__(self, context, rate): ...
    async def run(self, sampling_params, **fields): ...
"""
TOOL = "tool_schema: {type: function, function: {name: t, description: '', parameters: {type: object}}}"


def recipe(file: Path) -> Any:
    rows = ["data.train_files=rows.parquet", "actor_rollout_ref.rollout.n=2", "actor_rollout_ref.model.path=model"]
    return load_config(file, rows).actor_rollout_ref.actor.optim.lr


def tools(file: Path) -> Any:
    return load_tools(file)[0].timeout_s


def interactions(file: Path) -> Any:
    return load_interactions(file)["talk"].config["rate"]


def loops(file: Path) -> Any:
    return load_agent_loops(file)["mine"].kwargs["rate"]


KINDS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "recipe": ("actor_rollout_ref:\n actor:\n  optim: {%s}\n", recipe),
    "tools": (f"tools:\n- class_name: mine.py:Tool\n  {TOOL}\n  config: {{%s}}\n", tools),
    "interactions": ("interaction:\n- class_name: mine.py:Talk\n\n  config: {%s}\n", interactions),
    "agent_loops": ("- {name: mine, _target_: mine.py:Loop,\n\n   %s}\n", loops),
}
KEYS = {"recipe": "lr", "tools": "timeout_s", "interactions": "rate", "agent_loops": "rate"}
LINES = {"recipe": 3, "tools": 4, "interactions": 4, "agent_loops": 3}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(PLUGINS)
    return str(request.param)


def write(folder: Path, kind: str, values: str) -> Path:
    file = folder / f"{kind}.yaml"
    file.write_text(KINDS[kind][0] % values)
    return file


def test_a_key_given_twice_is_an_error_with_file_and_line(kind: str, tmp_path: Path) -> None:
    file, key = write(tmp_path, kind, f"{KEYS[kind]}: 20, {KEYS[kind]}: 1"), KEYS[kind]
    with pytest.raises(ConfigError) as caught:
        KINDS[kind][1](file)
    assert f"{file}: line {LINES[kind]}, column " in str(caught.value)
    assert f"key '{key}' is given twice" in str(caught.value)


def test_a_number_with_an_exponent_is_a_number(kind: str, tmp_path: Path) -> None:
    assert KINDS[kind][1](write(tmp_path, kind, f"{KEYS[kind]}: 1e1")) == 10.0


def test_text_that_is_not_yaml(kind: str, tmp_path: Path) -> None:
    file = write(tmp_path, kind, "a: [")
    with pytest.raises(ConfigError, match=rf"{file}: line \d+, column \d+: is not YAML: "):
        KINDS[kind][1](file)


def test_servers_of_mcp_that_are_given_twice(tmp_path: Path) -> None:
    (tmp_path / "servers.json").write_text('{"mcpServers": {"a": {"url": "http://x"}, "a": {"url": "http://y"}}}')
    (tmp_path / "tools.yaml").write_text("tools: [{config: {type: mcp}, mcp: {mcp_servers_config_path: servers.json}}]")
    with pytest.raises(ConfigError, match=r"servers\.json: key 'a' is given twice"):
        load_tools(tmp_path / "tools.yaml", discover=lambda *_: [])


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Three folders: where the command runs, where the naming YAML is, agentrl's `configs/`."""
    folders = {name: tmp_path / name for name in ("here", "beside", "configs")}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.chdir(folders["here"])
    monkeypatch.setattr("agentrl.files.CONFIGS", folders["configs"])
    return folders


def test_a_file_is_taken_as_given_then_beside_its_yaml_then_from_configs(places: dict[str, Path]) -> None:
    for name in ("configs", "beside", "here"):
        (places[name] / "x.yaml").write_text("")
        found = find_file("x", places["beside"], suffix=".yaml")
        assert found.resolve() == places[name] / "x.yaml"
        assert Path(find_input("x.yaml", places["beside"])).resolve() == found.resolve()
        assert Path(find_input("x.*", places["beside"])).resolve().parent == places[name]


def test_includes_are_looked_for_in_the_same_order(places: dict[str, Path]) -> None:
    (places["beside"] / "run.yaml").write_text("defaults: [part]")
    for number, name in enumerate(("configs", "beside", "here")):
        (places[name] / "part.yaml").write_text(f"actor_rollout_ref: {{actor: {{optim: {{lr: {number + 1}e-3}}}}}}")
        assert recipe(places["beside"] / "run.yaml") == (number + 1) / 1000


def named_by_recipe(key: str, value: str) -> Callable[[Path, str], Any]:
    def load(folder: Path, name: str) -> Any:
        (folder / "run.yaml").write_text(f"{key}: {value % name}\n")
        return recipe(folder / "run.yaml")

    return load


def of_tool_yaml(entry: str) -> Callable[[Path, str], Any]:
    def load(folder: Path, name: str) -> Any:
        (folder / "tools.yaml").write_text(f"tools: [{{{entry % name}}}]")
        return load_tools(folder / "tools.yaml", discover=lambda *_: [])

    return load


NAMERS: dict[str, tuple[str, Callable[[Path, str], Any]]] = {
    "an included recipe": ("yaml", named_by_recipe("defaults", "[%s]")),
    "tools of a recipe": (
        "yaml",
        named_by_recipe("actor_rollout_ref", "{rollout: {multi_turn: {tool_config_path: %s}}}"),
    ),
    "interactions of a recipe": (
        "yaml",
        named_by_recipe("actor_rollout_ref", "{rollout: {multi_turn: {interaction_config_path: %s}}}"),
    ),
    "loops of a recipe": (
        "yaml",
        named_by_recipe("actor_rollout_ref", "{rollout: {agent: {agent_loop_config_path: %s}}}"),
    ),
    "a score function": ("py", named_by_recipe("custom_reward_function", "{path: %s, name: f}")),
    "a chat template": ("jinja", named_by_recipe("actor_rollout_ref", "{model: {chat_template: %s}}")),
    "tools": ("yaml", lambda folder, name: load_tools(name, folder)),
    "interactions": ("yaml", lambda folder, name: load_interactions(name, folder)),
    "agent loops": ("yaml", lambda folder, name: load_agent_loops(name, folder)),
    "servers of mcp": ("json", of_tool_yaml("config: {type: mcp}, mcp: {mcp_servers_config_path: %s}")),
    "a tool's code": ("py", of_tool_yaml("class_name: '%s:f'")),
}


@pytest.mark.parametrize("namer", NAMERS)
def test_one_message_for_a_file_that_does_not_exist(places: dict[str, Path], namer: str) -> None:
    ending, load = NAMERS[namer]
    (places["beside"] / f"parts.{ending}").write_text("")
    with pytest.raises(AgentRLError) as caught:
        load(places["beside"], f"part.{ending}")
    name = f"part.{ending}"
    looked = f"{name}, {places['beside'] / name}, {places['configs'] / name}"
    assert f"{name} does not exist (looked for {looked}). Did you mean 'parts.{ending}'?" in str(caught.value)


def test_a_chat_template_is_found_alike(places: dict[str, Path]) -> None:
    byte_tokenizer().save_pretrained(places["here"] / "model")
    (places["configs"] / "own.jinja").write_text("")
    with pytest.raises(AgentRLError, match=r"owns\.jinja does not exist \(looked for .*\)\. Did you mean 'own\.jinja'"):
        load_renderer("model", chat_template="owns.jinja")


def test_a_folder_is_no_file(places: dict[str, Path]) -> None:
    (places["here"] / "x.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"x\.yaml is a folder, wanted a file"):
        find_file("x.yaml")


def test_home_and_variables_are_expanded_everywhere(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOOLS", str(places["beside"]))
    (places["beside"] / "tools.yaml").write_text("tools: []")
    assert load_tools("$MY_TOOLS/tools.yaml") == []


def test_flow_text_of_a_command_line() -> None:
    assert parse_flow("1e1") == 10.0


def test_modules_beside_a_recipe_are_found_after_those_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, recipes = tmp_path / "here", tmp_path / "recipes"
    for folder in (here, recipes):
        folder.mkdir()
        (folder / "in_both_folders.py").write_text(f"PLACE = {folder.name!r}\n")
    (recipes / "beside_a_recipe.py").write_text("def compute_score(**_): return 1.0\n")
    (recipes / "run.yaml").write_text("actor_rollout_ref: {actor: {optim: {lr: 1}}}")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [str(here), *sys.path])
    recipe(recipes / "run.yaml")
    recipe(recipes / "run.yaml")
    assert sys.path[:2] == [str(here), str(recipes)]
    assert sys.path.count(str(recipes)) == 1
    assert callable(resolve("rewards", "beside_a_recipe.compute_score"))
    assert resolve("rewards", "in_both_folders.PLACE") == "here"
    for name in ("beside_a_recipe", "in_both_folders"):
        sys.modules.pop(name)


def test_the_folder_of_a_shipped_recipe_is_on_no_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [*sys.path]
    monkeypatch.setattr(sys, "path", [*sys.path])
    load_config("grpo", ["data.train_files=x", "data.val_files=x", "actor_rollout_ref.model.path=m"])
    load_config({"data.train_files": "x", "actor_rollout_ref.model.path": "m", "actor_rollout_ref.rollout.n": 2})
    assert [place for place in sys.path if place not in before and not place.startswith("__editable__")] == []


def test_a_recipe_that_is_named_without_its_folder() -> None:
    with pytest.raises(ConfigError, match=r"\. Did you mean 'gpu/search_qwen2\.5_3b_4gpu'\?$"):
        find_file("search_qwen2.5_3b_4gpu", suffix=".yaml")
    with pytest.raises(
        ConfigError, match=r"gpu is a folder of recipes, wanted one of them: gpu/gsm8k_tool, gpu/gsm8k_"
    ):
        find_file("gpu", suffix=".yaml")
