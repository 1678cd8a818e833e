"""The table of hops in CONTRIBUTING.md is true: each named function calls the next one of its row.

An arrow a → b holds where the body of a has one of these:

- a function: a call of its name, and the module of a has it by definition or import;
- a method of a worker: its name as text handed to a call (`Pass("update_actor", self.actor, "update_actor")`);
- a method: a call of an attribute of its name, or such an attribute handed to a call (`guarded_call(loop.run, …)`). The
  class of b, or a contract of `agentrl.interfaces` that has the method, is named in the module of a or in one that this
  imports; or b is a worker method, which a `WorkerGroup` calls in the ranks by name; or both belong to one class and it
  is `self.b`;
- an entry of a table: `TABLE[...]`, where `TABLE` stands in the module of b and has b among its values.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from product_source import syntax

ROOT = Path(__file__).resolve().parents[2]
MOST_HOPS_TO_FIT = 6
Function = ast.FunctionDef | ast.AsyncFunctionDef


def table(text: str) -> dict[str, list[str]]:
    """Rows of the table of hops: what, and the places in backquotes."""
    section = text.split("## Find your way", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| ") and "`" in line]
    return {what.strip(): re.findall(r"`([^`]+)`", places) for what, places in rows}


ROWS = table((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
HOPS = [(what, *pair) for what, places in ROWS.items() for pair in pairwise(places)]


@dataclass(frozen=True)
class Place:
    """`path.py::Class.method`, `path.py::function`, or a file."""

    file: Path
    owner: str
    name: str
    node: Function | ast.ClassDef | None

    @classmethod
    def of(cls, text: str) -> Place:
        path, _, names = text.partition("::")
        file = next((ROOT / top / path for top in ("agentrl", ".") if (ROOT / top / path).is_file()), None)
        assert file is not None, f"CONTRIBUTING.md names {text}: no such file"
        if not names:
            return cls(file, "", "", None)
        owner, _, name = names.rpartition(".")
        inside: ast.Module | ast.ClassDef | None = syntax(file)
        if owner:
            inside = next((n for n in syntax(file).body if isinstance(n, ast.ClassDef) and n.name == owner), None)
        kinds = Function | ast.ClassDef
        found = next((n for n in inside.body if isinstance(n, kinds) and n.name == name), None) if inside else None
        assert found is not None, f"CONTRIBUTING.md names {text}: {file.name} does not define it"
        return cls(file, owner, name, found)

    @property
    def is_worker_method(self) -> bool:
        """Decorated with `@register(Dispatch…)`."""
        decorators = [] if self.node is None else [ast.unparse(item) for item in self.node.decorator_list]
        return any(text.startswith("register(Dispatch.") for text in decorators)


def calls(caller: Place, called: Place) -> bool:
    """Whether one place calls the other, by the rules above."""
    assert caller.node is not None
    nodes = [node for statement in caller.node.body for node in ast.walk(statement)]
    if _through_table(nodes, called):
        return True
    made = [node for node in nodes if isinstance(node, ast.Call)]
    if not called.owner:
        named = any(isinstance(node.func, ast.Name) and node.func.id == called.name for node in made)
        return named and (caller.file == called.file or called.name in _imported_names(caller.file, called.file))
    handed = [item for node in made for item in (node.func, *node.args) if isinstance(item, ast.Attribute)]
    named_so = [item for item in handed if item.attr == called.name]
    texts = [item.value for node in made for item in node.args if isinstance(item, ast.Constant)]
    if called.is_worker_method and called.name in texts:
        return True
    if caller.owner == called.owner and caller.file == called.file:
        return any(isinstance(item.value, ast.Name) and item.value.id == "self" for item in named_so)
    kinds = [called.owner, *_contracts(called.name)]
    return bool(named_so) and (called.is_worker_method or any(_knows_class(caller.file, kind) for kind in kinds))


def _through_table(nodes: list[ast.AST], called: Place) -> bool:
    used = {node.value.id for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)}
    for node in syntax(called.file).body:
        target = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id in used and isinstance(value, ast.Dict):
            return any(isinstance(entry, ast.Name) and entry.id == called.name for entry in value.values)
    return False


def _contracts(method: str) -> list[str]:
    """Classes of `agentrl.interfaces` with such a method."""
    classes = [node for node in syntax(ROOT / "agentrl/interfaces.py").body if isinstance(node, ast.ClassDef)]
    return [kind.name for kind in classes if any(isinstance(n, Function) and n.name == method for n in kind.body)]


def _imported_names(file: Path, source: Path) -> set[str]:
    """Names that a module takes from another one."""
    module = ".".join(source.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    package = module.rpartition(".")[0]
    nodes = [node for node in ast.walk(syntax(file)) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in nodes if node.module in (module, package) for alias in node.names}


def _knows_class(file: Path, name: str) -> bool:
    """Whether a module names a class, or one of the modules that it imports does."""
    nodes = [node for node in ast.walk(syntax(file)) if isinstance(node, ast.ImportFrom)]
    near = [ROOT / f"{(node.module or '').replace('.', '/')}.py" for node in nodes]
    return any(_names(path, name) for path in (file, *near) if path.is_file())


def _names(file: Path, name: str) -> bool:
    return any(
        (isinstance(node, ast.Name) and node.id == name)
        or (isinstance(node, ast.alias) and node.name == name)
        or (isinstance(node, ast.ClassDef) and node.name == name)
        for node in ast.walk(syntax(file))
    )


def test_the_table_has_the_ways_that_a_newcomer_looks_for() -> None:
    assert {"a run starts", "a step", "a tool runs", "the mask is written", "the loss", "add a tool"} <= set(ROWS)
    assert all(len(places) >= 3 for places in ROWS.values()), ROWS
    assert sum("::" in first and "::" in then for _, first, then in HOPS) >= 12


@pytest.mark.parametrize(("what", "first", "then"), HOPS, ids=lambda text: text)
def test_each_calls_the_next(what: str, first: str, then: str) -> None:
    caller, called = Place.of(first), Place.of(then)
    if caller.node is None or isinstance(caller.node, ast.ClassDef):
        assert what == "add a tool", f"{what}: {first} is no function"
        return
    assert calls(caller, called), f"{what}: {first} does not call {then}"


def test_the_command_reaches_the_loop_in_few_hops() -> None:
    start = ROWS["a run starts"]
    assert (start[0], start[-1]) == ("cli/__init__.py::train", "trainer/ppo.py::RayPPOTrainer.fit")
    assert len(start) - 1 <= MOST_HOPS_TO_FIT


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("trainer/ppo.py::RayPPOTrainer._generate", "rollout/tools/toolset.py::ToolSet.execute"),
        ("trainer/ppo.py::RayPPOTrainer.fit", "trainer/ppo.py::RayPPOTrainer._train"),
        ("agent_loops/tool_agent.py::ToolAgent.run", "agent_loops/conversation.py::Conversation.observe_text"),
        ("trainer/run.py::train", "trainer/sft.py::run_sft"),
        ("cli/train.py::sft_command", "trainer/run.py::train"),
        ("rollout/worker.py::AgentLoopWorker._play", "inference/client.py::EngineClient.pause"),
    ],
)
def test_what_is_not_called_is_seen(first: str, then: str) -> None:
    assert not calls(Place.of(first), Place.of(then))


def test_a_place_that_does_not_exist_is_seen() -> None:
    for text in ("trainer/ppo.py::RayPPOTrainer.fitt", "trainer/pppo.py::RayPPOTrainer.fit", "trainer/ppo.py::nothing"):
        with pytest.raises(AssertionError, match=r"CONTRIBUTING\.md names"):
            Place.of(text)
