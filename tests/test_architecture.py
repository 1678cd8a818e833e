"""The shape of the code: who may import whom, how long files and functions may be, no stray copies of plug-ins."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "agentrl"
PLUGIN_FOLDERS = ("tools", "interactions", "agent_loops", "services")
LINKED = (*PLUGIN_FOLDERS, "configs")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

LAYERS = {
    **dict.fromkeys(("types", "errors"), 0),
    **dict.fromkeys(
        (
            "trajectory",
            "interfaces",
            "plugins",
            "data_proto",
            "clients",
        ),
        1,
    ),
    **dict.fromkeys(
        ("chat", "data", "inference", "rewards", "algorithms", "config", "single_controller", "observability"), 2
    ),
    **dict.fromkeys(("rollout", "workers"), 3),
    "trainer": 4,
    "cli": 5,
}
PLUGIN_MAY_IMPORT = {"types", "interfaces", "errors", "trajectory", "chat"}


def python_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*.py") if not any(part in LINKED for part in p.relative_to(CORE).parts[:1]))


def core_files() -> list[Path]:
    return python_files(CORE)


def plugin_files() -> list[Path]:
    return sorted(p for name in LINKED for p in (ROOT / name).rglob("*.py"))


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted module) of every import statement, lazy ones included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            if module == "agentrl":
                yield from ((node.lineno, f"agentrl.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


def area(module: str) -> str | None:
    """`agentrl.chat.renderer` -> `chat`; None for modules of others and for the bare package."""
    parts = module.split(".")
    return parts[1] if parts[0] == "agentrl" and len(parts) > 1 else None


@pytest.mark.parametrize("path", core_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_core_imports_point_one_way(path: Path) -> None:
    own = path.relative_to(CORE).parts[0].removesuffix(".py")
    if own in ("__init__", "__main__"):
        own = "cli"
    for line, module in imported_modules(path):
        other = area(module)
        if other is None or other == "__version__":
            continue
        where = f"{path.relative_to(ROOT)}:{line} imports {module}"
        assert other not in LINKED, f"{where}: the core finds plug-ins by name through agentrl.plugins"
        if own == "testing":
            continue
        assert other != "testing", f"{where}: agentrl.testing is imported by nothing in the core"
        assert other in LAYERS, f"{where}: {other} has no layer"
        assert LAYERS[other] < LAYERS[own] or other == own or LAYERS[other] == LAYERS[own] <= 3, (
            f"{where}: wrong direction"
        )


def test_no_import_cycles_between_areas() -> None:
    graph: dict[str, set[str]] = {}
    for path in core_files():
        own = path.relative_to(CORE).parts[0].removesuffix(".py")
        if own in LAYERS:
            others = {area(module) for _, module in imported_modules(path)}
            graph.setdefault(own, set()).update(o for o in others if o in LAYERS and o != own)

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        stack = list(graph.get(start, ()))
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack.extend(graph.get(node, ()))
        return seen

    cycles = sorted(name for name in graph if name in reach(name) and name not in TYPE_ONLY_CYCLES)
    assert not cycles, f"areas that import each other in a circle: {cycles}"


TYPE_ONLY_CYCLES = frozenset[str]()


@pytest.mark.parametrize("path", plugin_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_plugin_folders_import_only_the_contracts(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0]
    for line, module in imported_modules(path):
        other = area(module)
        if other is not None and other != own:
            assert other in PLUGIN_MAY_IMPORT, f"{path.relative_to(ROOT)}:{line} imports {module}"


@pytest.mark.parametrize(
    "path",
    [
        *core_files(),
        *plugin_files(),
        *sorted((ROOT / "tests").rglob("*.py")),
        *sorted((ROOT / "benchmarks").rglob("*.py")),
    ],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_plugins_are_never_imported_bare(path: Path) -> None:
    for line, module in imported_modules(path):
        top = module.split(".")[0]
        assert top not in LINKED, f"{path.relative_to(ROOT)}:{line} imports {module}: write agentrl.{module}"


@pytest.mark.parametrize("path", [*core_files(), *plugin_files()], ids=lambda p: str(p.relative_to(ROOT)))
def test_sizes(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_FILE_LINES, f"{path.relative_to(ROOT)} is over {MAX_FILE_LINES} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length} lines"


@pytest.mark.parametrize("name", LINKED)
def test_plugin_folders_are_linked_into_the_namespace(name: str) -> None:
    link = CORE / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name


def test_every_module_says_what_it_is_for() -> None:
    for path in [*core_files(), *plugin_files()]:
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert doc, f"{path.relative_to(ROOT)} has no module docstring"
        assert "TODO" not in doc, f"{path.relative_to(ROOT)}: {doc}"


BROAD_EXCEPT_ALLOWED = {"agentrl/rollout/guarded_call.py", "agentrl/rollout/worker.py"}


@pytest.mark.parametrize("path", [*core_files(), *plugin_files()], ids=lambda p: str(p.relative_to(ROOT)))
def test_broad_except_only_at_the_two_boundaries(path: Path) -> None:
    if str(path.relative_to(ROOT)) in BROAD_EXCEPT_ALLOWED or "testing" in path.parts:
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ExceptHandler):
            name = ast.unparse(node.type) if node.type else ""
            assert name not in ("", "Exception"), f"{path.relative_to(ROOT)}:{node.lineno} catches everything"
