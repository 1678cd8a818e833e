"""Names, entry points, dotted paths and files; the nearest name where there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentrl.config.root import RunConfig
from agentrl.errors import PluginError
from agentrl.interfaces import BaseTool
from agentrl.plugins import (
    catalogue,
    check_routing,
    known,
    load_agent_loops,
    load_interactions,
    load_registrations,
    load_tools,
    register,
    registry,
    resolve,
)
from agentrl.rewards.loading import load_reward_manager, load_score_function
from agentrl.types import JsonDict, Sample, ToolResponse


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    before = {kind: dict(names) for kind, names in registry._registry.items()}
    yield
    for kind, names in before.items():
        registry._registry[kind] = names


class Echo(BaseTool):
    async def execute(self, arguments: JsonDict, **execute_kwargs: object) -> ToolResponse:
        return ToolResponse(text=str(arguments))


def test_register_sees_the_kind() -> None:
    register("echo")(Echo)
    assert resolve("tools", "echo") is Echo
    assert "echo" in known("tools")


def test_register_of_a_function_needs_the_kind() -> None:
    with pytest.raises(PluginError, match=r'@register\("f", kind="tools"\)|say what it is'):
        register("f")(lambda: None)
    with pytest.raises(PluginError, match="Did you mean 'tools'"):
        register("f", kind="tool")(lambda: None)  # type: ignore[arg-type]


def test_a_name_belongs_to_one_plugin() -> None:
    register("echo")(Echo)
    register("echo")(Echo)

    class Other(Echo):
        pass

    with pytest.raises(PluginError, match="two plug-ins register the tool 'echo'"):
        register("echo")(Other)


def test_every_builtin_entry_point_can_be_imported() -> None:
    for kind, names in {
        "agent_loops": ["react_agent", "single_turn_agent", "tool_agent"],
        "tools": ["calc_gsm8k_reward", "calculator", "search"],
        "interactions": ["gsm8k"],
        "tool_parsers": ["hermes"],
    }.items():
        assert set(names) <= set(known(kind))  # type: ignore[arg-type]
        for name in names:
            assert isinstance(resolve(kind, name), type)  # type: ignore[arg-type]


def test_a_dotted_path_and_a_file(tmp_path: Path) -> None:
    assert resolve("tools", "agentrl.tools.calculator.Calculator").__name__ == "Calculator"
    assert resolve("tools", "agentrl.tools.calculator:Calculator").__name__ == "Calculator"
    file = tmp_path / "mine.py"
    file.write_text("class Outer:\n    class Inner:\n        pass\n")
    first = resolve("tools", f"{file}:Outer.Inner")
    assert first is resolve("tools", f"{file}:Outer.Inner")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("calcluator", "no tool is named 'calcluator'. Did you mean 'calculator'?"),
        ("nowhere.module.Tool", "there is no module 'nowhere'"),
        ("agentrl.tools.calculater.Calculator", "there is no module 'agentrl.tools.calculater'"),
        ("agentrl.tools.calculator.Calculater", "Did you mean 'Calculator'?"),
        ("missing.py:Tool", "plug-in file missing.py does not exist"),
    ],
)
def test_what_cannot_be_found(name: str, message: str) -> None:
    with pytest.raises(PluginError) as caught:
        resolve("tools", name)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [("import not_installed_here\n", "No module named"), ("def f(:\n", "SyntaxError"), ("x = 1 / 'a'\n", "TypeError")],
)
def test_a_file_that_cannot_be_imported(tmp_path: Path, source: str, message: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(source)
    before = set(sys.modules)
    with pytest.raises(PluginError, match=message):
        resolve("tools", f"{file}:Tool")
    assert not [name for name in set(sys.modules) - before if "broken" in name]


PACKAGE_CODE = """
from agentrl.agent_loops.single_turn_agent import SingleTurnAgent
from agentrl.interfaces import BaseInteraction, BaseTool

class Loop(SingleTurnAgent):
    pass
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Makes packages with entry points that this process sees."""
    monkeypatch.syspath_prepend(tmp_path)
    registry._entry_points.cache_clear()

    def make(package: str, code: str, group: str, **points: str) -> None:
        (tmp_path / f"{package}.py").write_text(code)
        info = tmp_path / f"{package}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        lines = "".join(f"{name} = {package}:{attribute}\n" for name, attribute in points.items())
        (info / "entry_points.txt").write_text(f"[agentrl.{group}]\n{lines}")
        registry._entry_points.cache_clear()

    yield make
    registry._entry_points.cache_clear()
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


def test_a_package_offers_names(install: Callable[..., None]) -> None:
    install("mine", PACKAGE_CODE, "agent_loops", my_loop="Loop")
    assert "my_loop" in known("agent_loops")
    assert resolve("agent_loops", "my_loop").__name__ == "Loop"
    assert load_agent_loops()["my_loop"].cls.__name__ == "Loop"
    (info,) = [info for info in catalogue() if info.name == "my_loop"]
    assert (info.kind, info.origin, info.target, info.problem) == ("agent_loops", "mine 1.2", "mine:Loop", None)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import no_such_package_at_all", "needs 'no_such_package_at_all', which is not installed"),
        ("raise RuntimeError('no GPU here')", "RuntimeError: no GPU here"),
        ("import sys\nsys.exit(3)", "SystemExit: 3"),
        ("1 / 0", "ZeroDivisionError"),
        ("{}['key']", "KeyError"),
        ("def broken(:", "SyntaxError"),
        ("assert False, 'not today'", "AssertionError: not today"),
        ("x = 1", "has no 'Loop'"),
        ("from agentrl.errors import ConfigError\nraise ConfigError('wrong')", "wrong"),
    ],
)
def test_a_broken_package_breaks_only_those_who_name_it(install: Callable[..., None], code: str, says: str) -> None:
    install("broken", code, "agent_loops", broken_loop="Loop")
    loops = load_agent_loops()
    assert "tool_agent" in loops
    assert "broken_loop" not in loops
    (info,) = [info for info in catalogue() if info.name == "broken_loop"]
    assert says in str(info.problem)
    assert info.origin == "broken 1.2"
    row = Sample(3, [], "x", agent_name="broken_loop")
    with pytest.raises(PluginError, match="row 3: the agent loop 'broken_loop' cannot be loaded") as caught:
        check_routing([row], default_loop="tool_agent", loops=loops, tools=[], interactions=[])
    assert says in str(caught.value)


def test_a_package_may_replace_what_agentrl_ships(install: Callable[..., None]) -> None:
    install("mine", PACKAGE_CODE, "agent_loops", single_turn_agent="Loop")
    assert resolve("agent_loops", "single_turn_agent").__module__ == "mine"


def test_two_packages_with_one_name(install: Callable[..., None]) -> None:
    install("one", PACKAGE_CODE, "agent_loops", shared="Loop")
    install("two", PACKAGE_CODE, "agent_loops", shared="Loop")
    with pytest.raises(PluginError, match=r"several packages offer the agent loop 'shared': .*one 1\.2.*Name one by"):
        resolve("agent_loops", "shared")
    assert resolve("agent_loops", "two.Loop").__module__ == "two"
    assert {info.origin for info in catalogue() if info.name == "shared"} == {"one 1.2", "two 1.2"}


def test_registered_plugins_are_listed_with_their_file(tmp_path: Path) -> None:
    file = tmp_path / "registering.py"
    file.write_text(
        "from agentrl.plugins import register\n\n@register('score7', kind='rewards')\ndef seven(**_):\n    return 7.0\n"
    )
    load_registrations([str(file)])
    (info,) = [info for info in catalogue() if info.name == "score7"]
    assert (info.origin, info.file) == ("@register", str(file))
    config = RunConfig.model_validate({"custom_reward_function": {"path": "score7"}})
    assert load_score_function(config)() == 7.0
    with pytest.raises(PluginError, match="there is no module 'no_such_module'"):
        load_registrations(["no_such_module"])


EVERY_KIND = """
from agentrl.agent_loops.single_turn_agent import SingleTurnAgent
from agentrl.interfaces import BaseInteraction, RewardManager, RewardResult
from agentrl.types import InteractionResponse

class Loop(SingleTurnAgent):
    pass

def tool(x: int):
    '''Double.'''
    return 2 * x

class Talk(BaseInteraction):
    async def generate_response(self, messages):
        return InteractionResponse(True, "")

def compute_score(**_):
    return 0.25

class Manager(RewardManager):
    def __init__(self, score_fn, timeout_s):
        self.score_fn = score_fn

    async def score(self, item):
        return RewardResult(0.5)
"""


@pytest.mark.parametrize("way", ["file", "dotted"])
def test_files_and_dotted_paths_work_for_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    (tmp_path / "every_kind.py").write_text(EVERY_KIND)
    monkeypatch.syspath_prepend(tmp_path)
    prefix = "every_kind.py:" if way == "file" else "every_kind."
    (tmp_path / "loops.yaml").write_text(f"- name: mine\n  _target_: {prefix}Loop\n")
    (tmp_path / "tools.yaml").write_text(f"tools:\n- class_name: {prefix}tool\n")
    (tmp_path / "talk.yaml").write_text(f"interaction:\n- class_name: {prefix}Talk\n")
    assert load_agent_loops(tmp_path / "loops.yaml")["mine"].cls.__name__ == "Loop"
    assert load_tools(tmp_path / "tools.yaml")[0].name == "tool"
    assert load_interactions(tmp_path / "talk.yaml")["talk"].cls.__name__ == "Talk"
    path = str(tmp_path / "every_kind.py") if way == "file" else "every_kind"
    manager = f"{path}:Manager" if way == "file" else "every_kind.Manager"
    config = RunConfig.model_validate(
        {"custom_reward_function": {"path": path}, "reward_model": {"reward_manager": manager}}
    )
    assert load_reward_manager(config).score_fn() == 0.25  # type: ignore[attr-defined]
    sys.modules.pop("every_kind", None)
