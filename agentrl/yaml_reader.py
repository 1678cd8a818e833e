"""Reads users' YAML by the rules of version 1.2: `1e-6` is a number, `on` is text, a key given twice is an error.

It also reads users' JSON, with the same rule for keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from agentrl.errors import ConfigError

_STR, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
_RESOLVERS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+",
    "float": r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf)|\.(?:nan|NaN)",
}


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2 and without silent duplicates."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own name)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Refuse keys that are given twice and keys that are not text."""
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key}' is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


for _name, _pattern in _RESOLVERS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(rf"(?:{_pattern})\Z"), None)
_Loader.add_implicit_resolver(_MERGE, re.compile(r"<<\Z"), ["<"])


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = node.value.replace("_", "")
    return int(text, 16) if text.lower().startswith("0x") else int(text, 10)


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = node.value.replace("_", "").lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)


def read_yaml(path: Path) -> Any:
    """The content of a YAML file; None if it is empty.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or gives a key twice; the message gives the line.
    """
    try:
        return yaml.load(_read_text(path), _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {_explain(error)}") from error


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ConfigError: the file cannot be read, is not JSON, or gives a key twice.
    """
    try:
        return json.loads(_read_text(path), object_pairs_hook=_unique)
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    except KeyError as error:
        raise ConfigError(f"{path}: key {error} is given twice") from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise KeyError(key)
        mapping[key] = value
    return mapping


def parse_scalar(text: str) -> Any:
    """Value of a plain scalar, whatever characters it holds: number, bool, null or the text itself."""
    loader = _Loader("")
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return loader.construct_object(yaml.ScalarNode(tag, text))


def parse_flow(text: str) -> Any:
    """Value of a list, mapping or quoted string in YAML's flow style. Raises ValueError."""
    try:
        return _split_tight_pairs(yaml.load(text, _Loader))
    except yaml.YAMLError as error:
        raise ValueError(_explain(error)) from error


def _split_tight_pairs(value: Any) -> Any:
    """Read `{a:1}` as Hydra does, though YAML wants a space after the colon."""
    if isinstance(value, list):
        return [_split_tight_pairs(item) for item in value]
    if not isinstance(value, dict):
        return value
    pairs = {}
    for key, item in value.items():
        if item is None and ":" in key:
            key, _, rest = key.partition(":")
            item = parse_scalar(rest.strip())
        pairs[key] = _split_tight_pairs(item)
    return pairs


def _explain(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or str(error)
    if not isinstance(error, yaml.constructor.ConstructorError):
        problem = f"is not YAML: {problem}"
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem
