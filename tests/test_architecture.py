"""The shape of the code: who may import whom, how long files and functions may be, no stray copies of plug-ins."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from product_source import syntax

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "agentrl"
PLUGIN_FOLDERS = ("tools", "interactions", "agent_loops", "services")
LINKED = (*PLUGIN_FOLDERS, "configs")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

LAYERS = (
    {"types", "errors", "own_time", "boxed", "openmp", "timeline", "otel"},
    {"reported", "pictures", "leftovers"},
    {"files", "hub", "yaml_reader", "trajectory", "data_proto", "clients", "algorithms"},
    {"interfaces", "single_controller", "observability"},
    {"plugins"},
    {"chat"},
    {"config"},
    {"placement"},
    {"data", "inference", "rewards"},
    {"rollout", "workers"},
    {"trainer"},
    {"jobs"},
    {"cli", "testing"},
    {"__main__"},
)
"""Lowest first: an area imports only from those below it."""
LEVEL = {area: level for level, areas in enumerate(LAYERS) for area in areas}
PLUGIN_MAY_IMPORT = {"types", "interfaces", "errors", "otel", "pictures", "trajectory", "chat"}


def module_files(folder: str) -> list[Path]:
    """Python files of a folder of the repository; those behind agentrl's links are in the linked folders."""
    linked = {CORE / name for name in LINKED}
    return sorted(path for path in (ROOT / folder).rglob("*.py") if not linked & set(path.parents))


def core_files() -> list[Path]:
    return module_files("agentrl")


def plugin_files() -> list[Path]:
    return sorted(path for name in LINKED for path in module_files(name))


def module_name(path: Path) -> str:
    """`tools/search.py` -> `agentrl.tools.search`, as it is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "agentrl" else ("agentrl", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in [*core_files(), *plugin_files()]}


def imports(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line, module, name taken from it or "") of every import, those inside functions and for types included."""
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield from ((node.lineno, node.module or "", alias.name) for alias in node.names)


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import; `from agentrl.chat import probe` imports `agentrl.chat.probe`."""
    for line, module, name in imports(path):
        part = f"{module}.{name}"
        whole = part if part in MODULES or part == "agentrl.__version__" else module
        # The version is set before anything else in the package: no module of agentrl is loaded for it.
        if whole != "agentrl.__version__":
            yield line, whole


def area(module: str) -> str | None:
    """`agentrl.chat.renderer` -> `chat`; None for modules of others and for the bare package."""
    parts = module.split(".")
    return parts[1] if parts[0] == "agentrl" and len(parts) > 1 else None


def test_core_imports_point_one_way() -> None:
    for path in core_files():
        own = area(module_name(path))
        if own is None:  # the face of the package names what is in any area
            continue
        assert own in LEVEL, f"{path.relative_to(ROOT)}: `{own}` has no layer in {Path(__file__).name}"
        for line, module in imported_modules(path):
            other = area(module)
            if other is None or other == own:
                assert module != "agentrl", f"{path.relative_to(ROOT)}:{line} imports the face: name the module"
                continue
            where = f"{path.relative_to(ROOT)}:{line} imports {module}"
            assert other not in LINKED, f"{where}: the core finds plug-ins by name through agentrl.plugins"
            assert other in LEVEL, f"{where}: `{other}` has no layer in {Path(__file__).name}"
            assert LEVEL[other] < LEVEL[own], f"{where}: wrong direction, `{other}` is not below `{own}`"


def test_every_layer_exists() -> None:
    assert {area(name) for name in MODULES} - {None, *LINKED} == set(LEVEL)


def test_no_circle_in_the_import_graph() -> None:
    """Over every module, plug-in folders too. A lazy import, or one for types only, closes a circle like any other."""
    graph = {
        name: {module for _, module in imported_modules(path) if module in MODULES and module != name}
        for name, path in MODULES.items()
    }
    assert len(graph) > 300
    assert graph["agentrl.plugins.specs"] >= {"agentrl.plugins.registry", "agentrl.interfaces", "agentrl.files"}
    assert circle(graph) == []


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, in order; none: an empty list."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        for other in () if name in done else sorted(graph[name]):
            if found := visit(other, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := visit(name, []))), [])


def test_a_circle_is_seen() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_plugin_folders_import_only_the_contracts() -> None:
    for path in plugin_files():
        own = path.relative_to(ROOT).parts[0]
        for line, module in imported_modules(path):
            other = area(module)
            assert module != "agentrl", f"{path.relative_to(ROOT)}:{line} imports the face: name the module"
            if other is not None and other != own:
                assert other in PLUGIN_MAY_IMPORT, f"{path.relative_to(ROOT)}:{line} imports {module}"


def test_plugins_are_never_imported_bare() -> None:
    for path in [*MODULES.values(), *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
        for line, module in imported_modules(path):
            top = module.split(".")[0]
            assert top not in LINKED, f"{path.relative_to(ROOT)}:{line} imports {module}: write agentrl.{module}"


def test_sizes() -> None:
    for path in MODULES.values():
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= MAX_FILE_LINES, f"{path.relative_to(ROOT)} is over {MAX_FILE_LINES} lines"
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                assert length <= MAX_FUNCTION_LINES, (
                    f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length} lines"
                )


@pytest.mark.parametrize("name", LINKED)
def test_plugin_folders_are_linked_into_the_namespace(name: str) -> None:
    link = CORE / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name


def test_every_module_says_what_it_is_for() -> None:
    for path in [*core_files(), *plugin_files()]:
        doc = ast.get_docstring(syntax(path))
        assert doc, f"{path.relative_to(ROOT)} has no module docstring"
        assert "TODO" not in doc, f"{path.relative_to(ROOT)}: {doc}"


BROAD_EXCEPT_ALLOWED = {
    "agentrl/rollout/guarded_call.py",
    "agentrl/rollout/worker.py",
    "agentrl/single_controller/ray_runtime.py",  # Ray raises `Exception` itself where its start takes too long
    "agentrl/reported.py",  # values of plug-ins' own classes, in a log that must never end a run
}


def test_broad_except_only_at_the_boundaries() -> None:
    for path in MODULES.values():
        if str(path.relative_to(ROOT)) in BROAD_EXCEPT_ALLOWED or "testing" in path.parts:
            continue
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.ExceptHandler):
                name = ast.unparse(node.type) if node.type else ""
                assert name not in ("", "Exception"), f"{path.relative_to(ROOT)}:{node.lineno} catches everything"


SAME_NAME_ALLOWED = {
    "main": "the entry point of a command",
    "compute_score": "the name that a score function has by contract",
    "register": "verl's decorator of worker methods, and the one of plug-ins",
    "gpg": "the paper's name of its advantage and of its loss",
    "create_app": "the application of each server",
    "assemble": "each kind of index builds itself from shards",
    "same_output": "one rule, in the service and in its client, which shares no code with it",
    "children": "one thing, again in the sandbox's guest, which may import nothing of the server",
    "descendants": "one thing, again in the sandbox's guest",
    "die_with_parent": "one thing, again in the sandbox's guest",
}


def public_definitions(path: Path) -> Iterator[str]:
    """Public classes and functions at the top of a module, but not commands: those are named as a user types them."""
    for node in syntax(path).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if not any(".command(" in ast.unparse(decorator) for decorator in node.decorator_list):
            yield node.name


def test_one_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for path in [*core_files(), *plugin_files()]:
        if "verl" in path.parts:  # verl's own names, for its plug-ins
            continue
        for name in set(public_definitions(path)):  # once, however many overloads it has
            homes.setdefault(name, []).append(str(path.relative_to(ROOT)))
    twice = {name: places for name, places in homes.items() if len(places) > 1}
    assert {name: places for name, places in twice.items() if name not in SAME_NAME_ALLOWED} == {}
    assert set(SAME_NAME_ALLOWED) == set(twice), "an allowed name that is not needed any more"
