"""What nothing but tests uses is no part of the product: it goes, or it stands in the list of promises below."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from product_source import syntax

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("agentrl", "tools", "interactions", "agent_loops", "services")
NAMED_BY_TEXT = ("configs/**/*.yaml", "pyproject.toml", "benchmarks/*.py", "examples/**/*.py", "docs/*.md", "README.md")
"""Plug-ins are found by name: these files count as users. So do pages for what only a user of the package calls."""
PROMISED = {
    # Hooks that a library calls by name.
    "bind_tools", "_llm_type", "model_config", "yaml_implicit_resolvers", "_fields_", "_pack_", "_layout_", "emit",
    # What plug-ins written for verl call and read.
    "get_tool_parser", "extract_tool_calls", "_class_initialized", "process_vision_info",
    # Fields of SandboxFusion's answers.
    "driver", "executor_pod_name",
    # What users' own tests build.
    "build_tiny_classifier", "NEEDS_SEEDS",
    # A value that is read, never named: `Habit("tool")`, the path of a file that the demo writes.
    "TOOL", "held_out",
}  # fmt: skip


def product_files() -> list[Path]:
    linked = {ROOT / "agentrl" / name for name in (*PRODUCT[1:], "configs")}
    files = (path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in files if not linked & set(path.parents))


def definitions(body: list[ast.stmt]) -> Iterator[tuple[str, int]]:
    """Functions, classes, constants of a module, methods and fields of its classes; what a decorator takes is used."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if all(ast.unparse(name).split("(")[0].split(".")[-1] in HARMLESS for name in node.decorator_list):
                yield node.name, node.lineno
            if isinstance(node, ast.ClassDef):
                yield from definitions(node.body)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, node.lineno) for target in targets if isinstance(target, ast.Name))


HARMLESS = {
    "property",
    "cached_property",
    "staticmethod",
    "classmethod",
    "dataclass",
    "contextmanager",
    "cache",
    "no_grad",
}


def uses(tree: ast.Module, *, is_face: bool) -> Iterator[str]:
    """Names that code reads, imports or spells out; a face (`__init__.py`) that hands a name on does not use it."""
    skipped = {id(part) for node in tree.body if is_face and _hands_on(node) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.alias) and id(node) not in skipped:
            yield node.name
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))  # a docstring; `ast.walk` comes to it later
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield from re.findall(r"\w+", node.value)


def _hands_on(node: ast.stmt) -> bool:
    is_list = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    return is_list or isinstance(node, ast.ImportFrom)


def test_everything_is_used_by_something_else_than_tests() -> None:
    trees = {path: syntax(path) for path in product_files()}
    used = {name for path, tree in trees.items() for name in uses(tree, is_face=path.name == "__init__.py")}
    for pattern in NAMED_BY_TEXT:
        for path in ROOT.glob(pattern):
            used.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    unused = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path, tree in trees.items()
        for name, line in definitions(tree.body)
        if name not in used | PROMISED and not (name.startswith("__") and name.endswith("__"))
    ]
    assert unused == [], "nothing but tests uses these: remove them, or add them to PROMISED with the reason"
