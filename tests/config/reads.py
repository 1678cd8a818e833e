"""Finds which configuration keys code reads, by following the types of expressions through the source.

Types come from annotations of parameters, attributes and return values, and from assignments: enough to know that
`rollout.dtype` reads `RolloutConfig.dtype` after `rollout = config.actor_rollout_ref.rollout`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from product_source import syntax

from agentrl.config.base import Section
from agentrl.config.schema import section_of

Types = frozenset[type[Section]]
NOTHING: Types = frozenset()
Read = tuple[type[Section], str]


class Reads(ast.NodeVisitor):
    """Collects `(section, field)` for every field that is read in some files.

    Args:
        sections: every section class.
        files: the source to search.
    """

    def __init__(self, sections: Iterable[type[Section]], files: Iterable[Path]) -> None:
        self.found: set[Read] = set()
        self._by_name = {section.__name__: section for section in sections}
        self._returns: dict[str, Types] = {}
        self._scopes: list[dict[str, Types]] = [{}]
        self._members: list[dict[str, Types]] = [{}]
        modules = [syntax(file) for file in files]
        for function in _functions(modules):
            kinds = self._annotated(function.returns)
            if kinds:
                self._returns[function.name] = self._returns.get(function.name, NOTHING) | kinds
        for module in modules:
            self.visit(module)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        own = self._by_name.get(node.name)
        members: dict[str, Types] = {}
        for item in ast.walk(node):  # dataclass fields, and `self.name = …` with a type that is known
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                members[item.target.id] = self._annotated(item.annotation)
        self._members.append(members)
        for function in _functions([node]):
            self._enter(function, own)
            for item in ast.walk(function):
                if isinstance(item, ast.Assign):
                    self._assign(item)
            self._scopes.pop()
        for item in node.body:
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                self._enter(item, own)
                for statement in item.body:
                    self.visit(statement)
                self._scopes.pop()
            else:
                self.visit(item)
        self._members.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._enter(node, None)
        for statement in node.body:
            self.visit(statement)
        self._scopes.pop()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        self._assign(node)

    def visit_For(self, node: ast.For) -> None:
        if isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Tuple | ast.List):
            self._scopes[-1][node.target.id] = frozenset().union(*map(self._type, node.iter.elts))
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self._record(self._type(node.value), node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == "getattr" and isinstance(node.args[1], ast.Constant):
            self._record(self._type(node.args[0]), node.args[1].value)
        self.generic_visit(node)

    def _record(self, kinds: Types, name: str) -> None:
        self.found |= {(kind, name) for kind in kinds if name in kind.model_fields}

    def _enter(self, function: ast.FunctionDef | ast.AsyncFunctionDef, own: type[Section] | None) -> None:
        scope = dict(self._scopes[-1])
        arguments = function.args
        for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
            scope[argument.arg] = self._annotated(argument.annotation)
        if own is not None and arguments.args:
            scope[arguments.args[0].arg] = frozenset({own})
        self._scopes.append(scope)

    def _assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for name, value in zip(target.elts, node.value.elts, strict=True):
                    self._bind(name, self._type(value))
            else:
                self._bind(target, self._type(node.value))

    def _bind(self, target: ast.expr, kinds: Types) -> None:
        if isinstance(target, ast.Name):
            self._scopes[-1][target.id] = kinds
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            self._members[-1][target.attr] = self._members[-1].get(target.attr, NOTHING) | kinds

    def _type(self, node: ast.expr) -> Types:
        if isinstance(node, ast.Name):
            return self._scopes[-1].get(node.id, NOTHING)
        if isinstance(node, ast.IfExp):
            return self._type(node.body) | self._type(node.orelse)
        if isinstance(node, ast.BoolOp):
            return frozenset().union(*map(self._type, node.values))
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name == "model_copy" and isinstance(node.func, ast.Attribute):
                return self._type(node.func.value)
            return self._returns.get(name, NOTHING)
        if isinstance(node, ast.Attribute):
            return self._type_of_attribute(node)
        return NOTHING

    def _type_of_attribute(self, node: ast.Attribute) -> Types:
        base = self._type(node.value)
        if base:
            fields = [kind.model_fields[node.attr] for kind in base if node.attr in kind.model_fields]
            return frozenset(section for field in fields if (section := section_of(field)))
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return self._members[-1].get(node.attr) or self._returns.get(node.attr, NOTHING)
        # An attribute of another object: believe a name that some class annotates.
        return self._returns.get(node.attr, NOTHING) or self._conventional(node.attr)

    def _conventional(self, name: str) -> Types:
        """`setup.config` and the like are the whole run."""
        return frozenset({self._by_name["RunConfig"]}) if name in ("config", "_config") else NOTHING

    def _annotated(self, annotation: ast.expr | None) -> Types:
        if annotation is None:
            return NOTHING
        names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
        text = annotation.value if isinstance(annotation, ast.Constant) else ""
        return frozenset(self._by_name[name] for name in {*names, str(text)} if name in self._by_name)


def _functions(trees: Iterable[ast.AST]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for tree in trees:
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
